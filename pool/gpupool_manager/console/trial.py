"""What would come of a request; another quota; what a host is told that is to join."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gpupool_common.sizes import parse_part, parse_size
from gpupool_manager.console.api import at
from gpupool_manager.console.visit import Changing, Form, Sent, Visiting
from gpupool_manager.problems import Problem, bad_field
from gpupool_manager.schemas import QuotaIn

T = TypeVar("T")

router = APIRouter(include_in_schema=False)

#: GPUs that a trial names one by one.
SHOWN = 100
DAY = 86400
_LABEL = re.compile(r"([^=\s]+)=(\S*)")


def read(form: Form, name: str, parse: Callable[[str], T]) -> T | None:
    """A quantity as one types it; None if there is none."""
    text = form.text(name)
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise bad_field(name, str(error)) from None


# A trial -------------------------------------------------------------------------------


def asked(form: Form) -> dict[str, Any]:
    """A request for the API; it says what is wrong with it."""
    body: dict[str, Any] = {
        "gpus": form.whole("gpus"),
        "memory_bytes": read(form, "memory", parse_size),
        "share_permille": read(form, "share", parse_part),
        "priority": form.whole("priority"),
        "time_seconds": form.whole("time_seconds"),
        **{
            name: form.text(name) for name in ("policy", "hosts", "model", "tenant", "beyond_quota")
        },
    }
    return {name: value for name, value in body.items() if value not in (None, "")}


@router.get("/console/what-if")
async def what_if(visit: Visiting, request: Request) -> Response:
    """A trial changes nothing, so its address may be kept and sent to others."""
    form = Form(dict(request.query_params))
    why, wrong = None, ""
    if form.has("gpus"):
        try:
            path = "/leases/explain"
            why = await visit.api.send("POST", path, asked(form), limit=SHOWN)
        except Problem as problem:
            if problem.status == 401:
                raise
            wrong = problem.detail
    return visit.page("what_if.html", form=form, why=why, wrong=wrong)


# A quota -------------------------------------------------------------------------------


@router.post("/console/tenants/{name}/quota")
async def set_quota(visit: Changing, form: Sent, name: str) -> Response:
    """A whole new quota: what the form does not have stays as it was when it was read."""
    path = f"{at('tenants', name)}/quota"
    quota = await visit.api.get(path)
    body = {field: quota[field] for field in QuotaIn.model_fields if field in quota}
    body |= {
        "gpus": form.whole("gpus"),
        "memory_bytes": read(form, "memory", parse_size),
        "compute_permille": read(form, "compute", parse_part),
        "sessions": form.whole("sessions"),
        "priority": form.whole("priority") or 0,
        "weight": 1 if (weight := form.whole("weight")) is None else weight,
        "borrow": form.has("borrow"),
    }
    tag = form.text("tag") or "none"  # a form of ours has one
    await visit.api.send("PUT", path, body, if_match=tag)
    return visit.done(at("console", "tenants", name), f"the quota of {name} is another now")


# A host that joins ---------------------------------------------------------------------


@router.get("/console/join")
async def join_page(visit: Visiting) -> Response:
    if not visit.session.is_admin:
        await visit.api.get("/nodes", limit=1)  # which says why not
    return visit.page("join.html", made=None, form=Form({}))


@router.post("/console/join")
async def join(visit: Changing, form: Sent) -> Response:
    """A token for one host; this page is the only one that ever shows it."""
    name = form.text("name")
    days = form.whole("days") or 1
    body: dict[str, Any] = {"scope": "node", "node": name, "description": "made by the console"}
    body["lifetime_seconds"] = days * DAY
    if form.text("labels"):
        body["labels"] = _labels(form.text("labels"))
    made = await visit.api.send("POST", "/tokens", body)
    return visit.page("join.html", made=made, form=form)


def _labels(text: str) -> dict[str, str]:
    found = [_LABEL.fullmatch(word) for word in text.split()]
    if not all(found):
        raise bad_field("labels", "write KEY=VALUE, with blanks between several")
    return {each[1]: each[2] for each in found if each is not None}
