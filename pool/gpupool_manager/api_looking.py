"""/v1/usage, /v1/audit and /v1/events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import func, literal_column, select

from gpupool_common.node_protocol import Name
from gpupool_common.sizes import UNITS
from gpupool_manager import tables
from gpupool_manager.api_common import Admin, Caller, Pages, ThePool, User, send
from gpupool_manager.events import Numbered, Watcher
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem
from gpupool_manager.schemas import AuditOut, Page, TenantName, UsageOut, when
from gpupool_manager.tokens import is_valid
from gpupool_manager.transaction import Event
from gpupool_manager.usage import HOUR

router = APIRouter()

#: A comment line at least so often, so that a lost connection is noticed.
KEEPALIVE_SECONDS = 15.0

#: Streams of one tenant, each with what it has not read. Operators have any number.
MOST_STREAMS = 64

Time = Annotated[datetime | None, Query()]


def _seconds(time: datetime | None, default: float) -> float:
    if time is None:
        return default
    # Without a zone it is UTC. The offset comes last: the calendar ends, a number does not.
    offset = time.utcoffset() or timedelta(0)
    return (time.replace(tzinfo=None) - datetime(1970, 1, 1) - offset).total_seconds()


@router.get("/usage", response_model=Page[UsageOut], tags=["usage"])
async def list_usage(
    pool: ThePool,
    caller: User,
    pages: Pages,
    tenant: Annotated[TenantName | None, Query()] = None,
    since: Time = None,
    until: Time = None,
    step: Annotated[Literal["hour", "day"], Query()] = "hour",
    total: Annotated[
        bool, Query(description="of all tenants together, whose name is null")
    ] = False,
    newest: Annotated[bool, Query(description="first")] = False,
) -> Response:
    """What tenants have had, by hour or day (UTC), until the last full minute."""
    whose = caller.tenant(tenant)
    table = tables.usage
    width = 1 if step == "hour" else 24
    # Whole numbers divide to whole numbers in both databases.
    start: Any = table.c.hour if width == 1 else table.c.hour.op("/")(literal_column("24"))
    first = int(max(_seconds(since, 0.0), 0.0) // HOUR)
    last = int(max(_seconds(until, 4e11), 0.0) // HOUR)
    keys: list[Any] = [start] if total else [start, table.c.tenant]
    question = (
        select(
            literal_column("NULL") if total else table.c.tenant,
            start.label("start"),
            func.sum(table.c.gpu_seconds),
            func.sum(table.c.memory_byte_seconds),
            func.sum(table.c.compute_seconds),
            func.sum(table.c.busy_seconds),
            func.sum(table.c.leases),
        )
        .where(table.c.hour >= first, table.c.hour <= last)
        .group_by(*keys)
        .order_by(*(key.desc() if newest else key for key in keys))
        .limit(pages.limit + 1)
    )
    if whose is not None:
        question = question.where(table.c.tenant == whose)
    if (after := pages.after(int, str)) is not None:
        behind = [key < at if newest else key > at for key, at in zip(keys, after, strict=False)]
        same = (start == after[0]) & behind[-1]
        question = question.where(behind[0] if total else behind[0] | same)
    rows = await pool.store.fetch(question)
    page = rows[: pages.limit]
    more = None
    if len(rows) > pages.limit:
        more = pages.cursor_for((int(page[-1][1]), page[-1][0] or ""))
    return send(Page[UsageOut](items=[_usage(row, width) for row in page], next=more))


def _usage(row: Any, width: int) -> UsageOut:
    return UsageOut(
        tenant=row[0],
        start=when(int(row[1]) * width * HOUR),
        gpu_hours=row[2] / HOUR,
        memory_gib_hours=row[3] / HOUR / UNITS["GiB"],
        compute_hours=row[4] / HOUR,
        busy_hours=row[5] / HOUR,
        leases=int(row[6]),
    )


@router.get("/audit", response_model=Page[AuditOut], tags=["audit"])
async def list_audit(
    pool: ThePool,
    caller: Admin,
    pages: Pages,
    actor: Annotated[Name | None, Query(description="the id of a token, or 'manager'")] = None,
    action: Annotated[Name | None, Query(description="e.g. lease.granted")] = None,
    object: Annotated[Name | None, Query()] = None,
    tenant: Annotated[TenantName | None, Query()] = None,
    since: Time = None,
    until: Time = None,
) -> Response:
    """Who changed what, oldest first."""
    table = tables.audit
    question = select(table).order_by(table.c.id).limit(pages.limit + 1)
    for column, value in (
        (table.c.actor, actor),
        (table.c.action, action),
        (table.c.object, object),
        (table.c.tenant, tenant),
    ):
        if value is not None:
            question = question.where(column == value)
    if since is not None:
        question = question.where(table.c.at >= _seconds(since, 0.0))
    if until is not None:
        question = question.where(table.c.at < _seconds(until, 0.0))
    if (after := pages.after(int)) is not None:
        question = question.where(table.c.id > after[0])
    rows = await pool.store.fetch(question)
    page = rows[: pages.limit]
    return send(
        Page[AuditOut](
            items=[AuditOut(**{**row._mapping, "at": when(row.at)}) for row in page],
            next=pages.cursor_for((page[-1].id,)) if len(rows) > pages.limit else None,
        )
    )


@router.get(
    "/events",
    tags=["events"],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}},
)
async def watch_events(
    request: Request,
    pool: ThePool,
    caller: User,
    kind: Annotated[
        str | None, Query(pattern=r"^[a-z.-]{1,64}$", description="a prefix, e.g. 'lease.'")
    ] = None,
    recent: Annotated[
        int, Query(ge=0, le=1000, description="begin with so many of what was, if it is known")
    ] = 0,
    last: Annotated[str | None, Header(alias="Last-Event-ID", max_length=64)] = None,
) -> StreamingResponse:
    """What happens, as it happens. After a gap the first event is ``gap``: read the state again.

    A tenant's token sees what concerns the tenant.
    """
    tenant = caller.token.tenant
    if tenant is not None and pool.bus.watching(tenant) >= MOST_STREAMS:
        raise Problem(
            429, "too-many", f"tenant '{tenant}' has {MOST_STREAMS} such connections; close some"
        )
    # Watching starts here and not with the first read: nothing in between is missed.
    watcher = pool.bus.watch(tenant)
    earlier = _recent(pool, caller, kind, recent) if last is None else pool.bus.since(last)
    # The console's are of who is signed in, for as long as that one is.
    lasts = getattr(request.state, "lasts", None)
    return StreamingResponse(
        _stream(pool, caller, watcher, earlier, kind, lasts),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )


def _still_allowed(pool: Pool, caller: Caller, lasts: Callable[[], bool] | None) -> bool:
    """A stream lasts; the token with which it was opened need not."""
    if lasts is not None and not lasts():
        return False
    token = pool.ledger.tokens.by_id.get(caller.token.id)
    if token is None or not is_valid(token, pool.clock()):
        return False
    return token.tenant is None or not pool.ledger.tenants[token.tenant].disabled


def _recent(pool: Pool, caller: Caller, kind: str | None, most: int) -> list[Numbered]:
    """The last ones of those that this one may see."""
    kept = pool.bus.kept() if most else []
    return [each for each in kept if _concerns(caller, each.event, kind)][-most:]


async def _stream(
    pool: Pool,
    caller: Caller,
    watcher: Watcher,
    earlier: list[Numbered] | None,
    kind: str | None,
    lasts: Callable[[], bool] | None = None,
) -> AsyncIterator[str]:
    try:
        yield ": watching\n\n"
        if earlier is None:
            yield "event: gap\ndata: {}\n\n"
        for event in earlier or ():
            if _concerns(caller, event.event, kind):
                yield _as_text(pool, event)
        while True:
            try:
                found = await watcher.next(KEEPALIVE_SECONDS)
            except TimeoutError:
                if not _still_allowed(pool, caller, lasts):
                    return
                yield ": still here\n\n"
                continue
            if found is None or not _still_allowed(pool, caller, lasts):
                return
            if _concerns(caller, found.event, kind):
                yield _as_text(pool, found)
    finally:
        pool.bus.forget(watcher)


def _concerns(caller: Caller, event: Event, kind: str | None) -> bool:
    mine = caller.is_admin or event.tenant == caller.token.tenant
    return mine and (kind is None or event.kind.startswith(kind))


def _as_text(pool: Pool, numbered: Numbered) -> str:
    event = numbered.event
    data = {
        "object": event.object,
        "tenant": event.tenant,
        "at": datetime.fromtimestamp(event.at, UTC).isoformat(),
        **event.detail,
    }
    return f"id: {pool.bus.id_of(numbered)}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n"
