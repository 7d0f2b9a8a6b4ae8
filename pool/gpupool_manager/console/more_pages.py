"""Tenants and their quotas, sessions, usage and events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gpupool_common.sizes import format_part, format_size
from gpupool_manager.console.api import at
from gpupool_manager.console.chart import bars, iso
from gpupool_manager.console.pages import ROWS, Cursor, Word
from gpupool_manager.console.visit import Visit, Visiting

router = APIRouter(include_in_schema=False)

#: So many hours or days of the past a page of usage has, and how long each is.
SPANS = {"hour": (48, 3600), "day": (31, 86400)}


@router.get("/console/tenants")
async def tenants(visit: Visiting, cursor: Cursor = "") -> Response:
    """Quotas with what is in use; a tenant's token has its own."""
    if visit.session.is_admin:
        listed = await visit.api.get("/tenants", limit=ROWS, cursor=cursor)
    else:
        own = await visit.api.get(at("tenants", visit.session.token.tenant or ""))
        listed = {"items": [own], "next": None}
    return visit.page("tenants.html", tenants=listed["items"], more=listed["next"])


@router.get("/console/tenants/{name}")
async def tenant(visit: Visiting, name: str) -> Response:
    """One tenant, and for operators a form for its quota."""
    found = await visit.api.get(at("tenants", name))
    answer = await visit.api.ask("GET", f"{at('tenants', name)}/quota")
    quota = answer.document()
    asked = {
        "gpus": _text(quota["gpus"]),
        "memory": _text(quota["memory_bytes"], format_size),
        "compute": _text(quota["compute_permille"], format_part),
        "sessions": _text(quota["sessions"]),
        "priority": quota["priority"],
        "weight": quota["weight"],
    }
    most = await _most(visit) if visit.session.is_admin else {}
    tag = answer.headers["etag"]
    found["quota"] = quota
    return visit.page("tenant.html", tenant=found, asked=asked, tag=tag, most=most)


def _text(value: int | None, form: Any = str) -> str:
    """As one types it; nothing is no limit."""
    return "" if value is None else str(form(value))


async def _most(visit: Visit) -> dict[str, int]:
    """How far sliders go: what the pool has, reckoned by its first GPUs."""
    count = max(1, (await visit.api.get("/ready"))["gpus"])
    some = (await visit.api.get("/gpus", limit=1000))["items"]
    memory = sum(gpu["memory_bytes"] for gpu in some) * count // max(len(some), 1)
    return {"gpus": count, "memory": max(1, memory >> 30), "compute": count * 100}


@router.get("/console/sessions")
async def sessions(
    visit: Visiting, cursor: Cursor = "", node: Word = "", lease: Word = ""
) -> Response:
    chosen = {"node": node, "lease": lease}
    listed = await visit.api.get("/sessions", limit=ROWS, cursor=cursor, **chosen)
    found, more = listed["items"], listed["next"]
    return visit.page("sessions.html", sessions=found, more=more, chosen=chosen)


@router.get("/console/usage")
async def usage(
    visit: Visiting,
    request: Request,
    cursor: Cursor = "",
    step: Annotated[str, Query(pattern="^(hour|day)$")] = "day",
    tenant: Word = "",
) -> Response:
    """The last hours or days: granted beside really busy."""
    count, width = SPANS[step]
    last = int(request.app.state.pool.clock() // width)
    starts = [float(number * width) for number in range(last - count + 1, last + 1)]
    query = {"step": step, "since": iso(starts[0]), "tenant": tenant}
    summed = await visit.api.get("/usage", total="true", limit=count + 1, **query)
    listed = await visit.api.get("/usage", newest="true", limit=ROWS, cursor=cursor, **query)
    drawn = bars(summed["items"], starts)
    most = max(each.granted for each in drawn)
    shown = {
        "rows": listed["items"],
        "more": listed["next"],
        "chosen": {"step": step, "tenant": tenant},
    }
    return visit.page("usage.html", bars=drawn, most=most, step=step, tenant=tenant, **shown)


@router.get("/console/events")
async def events(visit: Visiting) -> Response:
    return visit.page("events.html")
