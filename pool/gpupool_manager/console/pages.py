"""What the console shows: every figure is an answer of the REST API to who is signed in."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gpupool_common.lease import LIVE, LeaseState
from gpupool_manager.console.api import at
from gpupool_manager.console.render import HEADERS, go_to, static_files
from gpupool_manager.console.visit import Visit, Visiting
from gpupool_manager.problems import Problem, not_found
from gpupool_manager.reservations import MOST

router = APIRouter(include_in_schema=False)

#: Hosts of one page of the grid, and rows of other lists.
HOSTS = 24
ROWS = 100
#: Of so many who wait, from the first, the page says when there may be room.
FORESEEN = 10

Cursor = Annotated[str, Query(max_length=1024)]
Word = Annotated[str, Query(max_length=64)]


@router.get("/")
async def grid(
    visit: Visiting,
    cursor: Cursor = "",
    state: Word = "",
    mode: Word = "",
    name: Word = "",
    model: Word = "",
    label: Word = "",
) -> Response:
    """Hosts with their GPUs. A tenant's token begins with what is the tenant's."""
    if not visit.session.is_admin:
        return go_to("/console/leases")
    chosen = {"state": state, "mode": mode, "name": name, "model": model, "label": label}
    query = {**chosen, "name": _anywhere(name), "model": _anywhere(model)}
    listed, ready = await asyncio.gather(
        visit.api.get("/nodes", limit=HOSTS, cursor=cursor, **query), visit.api.get("/ready")
    )
    hosts = [await _with_gpus(visit, node) for node in listed["items"]]
    sums = _sums([gpu for each in hosts for gpu in each["devices"]])
    shown = {"hosts": hosts, "sums": sums, "more": listed["next"], "chosen": chosen}
    return visit.page("grid.html", ready=ready, **shown)


def _anywhere(text: str) -> str:
    """What is looked for as a pattern of the API."""
    return text if not text or any(mark in text for mark in "*?[") else f"*{text}*"


async def _with_gpus(visit: Visit, node: dict[str, Any]) -> dict[str, Any]:
    """A host, its GPUs, and what they are if they all are the same."""
    gpus = await _gpus(visit, node["name"])
    kinds = {(gpu["model"], gpu["memory_bytes"]): gpu for gpu in gpus}
    return {**node, "devices": gpus, "kind": gpus[0] if len(kinds) == 1 else None}


def _sums(gpus: list[dict[str, Any]]) -> dict[str, int | None]:
    """Thousandths of all these GPUs; busy: of those that say it."""
    memory = sum(gpu["memory_bytes"] for gpu in gpus)
    readings = [gpu["reading"] for gpu in gpus if gpu["reading"] is not None]
    busy = [each["busy_permille"] for each in readings if each["busy_permille"] is not None]
    return {
        "gpus": len(gpus),
        "granted": sum(gpu["used_permille"] for gpu in gpus) // max(len(gpus), 1),
        "memory": 1000 * sum(gpu["used_bytes"] for gpu in gpus) // max(memory, 1),
        "busy": sum(busy) // len(busy) if busy else None,
    }


async def _gpus(visit: Visit, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await visit.api.get("/gpus", node=node, limit=64))["items"]
    return found


@router.get("/console/nodes/{name}")
async def host(visit: Visiting, name: str) -> Response:
    node = await visit.api.get(at("nodes", name))
    leases = await visit.api.get("/leases", node=name, state=list(LIVE), limit=ROWS)
    gpus = await _gpus(visit, name)
    holders: dict[str, list[dict[str, Any]]] = {gpu["uuid"]: [] for gpu in gpus}
    for each in leases["items"]:
        for grant in each["grants"]:
            holders.get(grant["gpu"], []).append({**grant, "id": each["id"], "of": each["tenant"]})
    shown = {"gpus": gpus, "holders": holders, "leases": leases["items"]}
    return visit.page("host.html", node=node, **shown)


@router.get("/console/leases")
async def leases(
    visit: Visiting, cursor: Cursor = "", state: Word = "live", tenant: Word = ""
) -> Response:
    states = list(LIVE) if state == "live" else [state] if state != "all" else None
    query = {"limit": ROWS, "cursor": cursor, "state": states, "tenant": tenant}
    listed = await visit.api.get("/leases", **query)
    chosen = {"state": state, "tenant": tenant}
    return visit.page(
        "leases.html",
        leases=listed["items"],
        more=listed["next"],
        chosen=chosen,
        states=[str(each) for each in LeaseState],
    )


@router.get("/console/leases/{id}")
async def lease(visit: Visiting, id: str) -> Response:
    found = await visit.api.get(at("leases", id))
    why = await visit.api.get(f"{at('leases', id)}/explain")
    found["token"] = None  # no page needs it
    return visit.page("lease.html", lease=found, why=why, live=found["state"] in LIVE)


@router.get("/console/queue")
async def queue(visit: Visiting, cursor: Cursor = "") -> Response:
    listed = await visit.api.get("/queue", limit=ROWS, cursor=cursor)
    for waiting in listed["items"][:FORESEEN]:
        waiting["start"] = await _expected_start(visit, waiting["lease"])
    reserved = (await visit.api.get("/reservations", limit=MOST))["items"]
    shown = {"queue": listed["items"], "more": listed["next"], "foreseen": FORESEEN}
    return visit.page("queue.html", reserved=sorted(reserved, key=_start), **shown)


def _start(reservation: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(reservation["start"])


async def _expected_start(visit: Visit, lease: str) -> str | None:
    try:
        found = await visit.api.get(f"{at('leases', lease)}/explain", limit=0)
    except Problem as problem:
        if problem.status != 404:
            raise
        return None  # it waits no more
    start: str | None = found["expected_start"]
    return start


@router.get("/console/static/{name}")
async def static(request: Request, name: str) -> Response:
    if name not in static_files():
        raise not_found("file", name)
    body, kind = static_files()[name]
    headers = {**HEADERS, "Cache-Control": "max-age=3600"}
    return Response(body, headers=headers, media_type=kind)
