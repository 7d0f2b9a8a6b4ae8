"""/v1/leases and /v1/queue."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from gpupool_common.lease import LIVE, LeaseState
from gpupool_common.node_protocol import Name
from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager import tables, views
from gpupool_manager.api_common import (
    Caller,
    Pages,
    Reply,
    ThePool,
    User,
    Write,
    send,
)
from gpupool_manager.calendar import in_utc
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.records import Lease
from gpupool_manager.scheduler import NoRoom, Placement, explain, summarise, summarise_own
from gpupool_manager.schemas import (
    ExplainOut,
    LeaseChange,
    LeaseOut,
    LeaseRequestIn,
    Page,
    PlacementRequestIn,
    QueueOut,
    TenantName,
    maybe_when,
)
from gpupool_manager.transaction import Transaction

router = APIRouter()

_REQUEST = set(PlacementRequestIn.model_fields)


@router.post(
    "/leases",
    response_model=LeaseOut,
    status_code=201,
    tags=["leases"],
    responses={202: {"model": LeaseOut, "description": "The pool is full: it waits"}},
)
async def create_lease(body: LeaseRequestIn, pool: ThePool, caller: User, write: Write) -> Response:
    """Ask for GPUs. 201: granted; 202: queued; 403: over quota; 409: full, and no wait asked."""
    tenant = caller.tenant(body.tenant)
    if tenant is None:
        raise bad_field(
            "body.tenant",
            "an admin's request must name a tenant; `gpupool run` wants a tenant's token",
        )
    _check_ceiling(body)
    ask = _asked(body, tenant)

    def admit(transaction: Transaction) -> Reply:
        lease = pool.leases.admit(transaction, ask)
        return Reply(views.lease(pool, lease), 201 if lease.state == LeaseState.ACTIVE else 202)

    answer = await write.do(caller, admit)
    name = json.loads(bytes(answer.body))["id"]
    _hear(pool, caller, name, 0)
    await pool.confirmed(name)
    return await _as_it_is(pool, caller, name, answer.status_code)


def _hear(pool: Pool, caller: Caller, name: str, wait: int) -> None:
    """Its tenant asks for a lease, or somebody who waits for it: it keeps its place.

    An operator who only looks at it does not keep the place of a request that is dead.
    """
    lease = pool.ledger.leases.get(name)
    if lease is not None and (wait or caller.token.tenant == lease.tenant):
        pool.leases.hear(lease, pool.clock() + wait)


async def _as_it_is(pool: Pool, caller: Caller, name: str, status: int) -> Response:
    """The lease as it is now, with a token that is fresh and never kept."""
    lease = await _find(pool, caller, name)
    shown = views.lease_with_token(pool, lease)
    if lease.state == LeaseState.LOST and lease.granted is None:
        raise Problem(409, "full", lease.reason)  # it never was of any use
    if status == 201 and shown.state == LeaseState.QUEUED:
        status = 202
    return send(shown, status=status)


def _asked(body: LeaseRequestIn, tenant: str) -> LeaseRequest:
    return LeaseRequest(
        tenant=tenant,
        request=wanted(body),
        priority=body.priority,
        wait=float(body.wait_seconds),
        ttl=float(body.ttl_seconds),
        label=body.label,
        until=body.until,
        sessions=body.sessions,
        ceiling_permille=body.ceiling_permille,
        beyond=body.beyond_quota,
        time_limit=None if body.time_seconds is None else float(body.time_seconds),
    )


def wanted(body: PlacementRequestIn) -> PlacementRequest:
    """The request, if its fields go together."""
    if body.memory_bytes is None and body.share_permille != WHOLE_GPU:
        raise bad_field("body.memory_bytes", "needed with a share of less than 1000")
    if body.uuids:
        _check_named(body)
    request = PlacementRequest.parse(body.model_dump(include=_REQUEST))
    return replace(request, gpus=len(body.uuids)) if body.uuids else request


def _check_named(body: PlacementRequestIn) -> None:
    count = len(body.uuids)
    if len(set(body.uuids)) < count:
        raise bad_field("body.uuids", "names a GPU twice; each virtual GPU is on another one")
    if "gpus" in body.model_fields_set and body.gpus != count:
        raise bad_field("body.gpus", f"{body.gpus} asked, and {count} named; leave one of them out")
    if body.hosts != "any":
        raise bad_field("body.hosts", "is for GPUs that the pool chooses; leave it out")


def _check_ceiling(body: LeaseRequestIn) -> None:
    if body.ceiling_permille < body.share_permille:
        raise bad_field("body.ceiling_permille", "less than the share")


@router.get("/leases", response_model=Page[LeaseOut], tags=["leases"])
async def list_leases(
    pool: ThePool,
    caller: User,
    pages: Pages,
    tenant: Annotated[TenantName | None, Query()] = None,
    state: Annotated[list[LeaseState] | None, Query(description="one or more")] = None,
    node: Annotated[Name | None, Query()] = None,
    gpu: Annotated[Name | None, Query()] = None,
) -> Response:
    """Leases, oldest first, ended ones too."""
    whose = caller.tenant(tenant)
    table, grants = tables.leases, tables.grants
    question = select(table).order_by(table.c.id).limit(pages.limit + 1)
    if (after := pages.after(str)) is not None:
        question = question.where(table.c.id > after[0])
    if whose is not None:
        question = question.where(table.c.tenant == whose)
    if state:
        question = question.where(table.c.state.in_(set(state)))
    for column, value in ((grants.c.node, node), (grants.c.gpu, gpu)):
        if value is not None:
            question = question.where(table.c.id.in_(select(grants.c.lease).where(column == value)))
    found = await pool.store.find_leases(question)
    page = found[: pages.limit]
    live = pool.ledger.leases
    return send(
        Page[LeaseOut](
            items=[views.lease(pool, live.get(lease.id, lease)) for lease in page],
            next=pages.cursor_for((page[-1].id,)) if len(found) > pages.limit else None,
        )
    )


@router.post("/leases/explain", response_model=ExplainOut, tags=["leases"])
async def explain_request(
    body: LeaseRequestIn,
    http: Request,
    pool: ThePool,
    caller: User,
    limit: Annotated[int, Query(ge=0, le=1000, description="the most GPUs to show")] = 100,
) -> Response:
    """What would come of a request; for admins GPU by GPU.

    Nothing is changed. A tenant's token sees how many GPUs would do, and nothing of others. The
    quota is looked at, too, where a tenant is known: an admin's request may leave it out.
    """
    http.state.looked = len(pool.ledger.index.slots)
    _check_ceiling(body)
    request = wanted(body)
    refused: str | None = None
    if (tenant := caller.tenant(body.tenant)) is not None:
        try:
            request = pool.leases.check(_asked(body, tenant), pool.clock())
        except Problem as problem:
            if problem.code != "over-quota":
                raise
            refused = f"over the quota: {problem.detail}"
    return send(_explained(pool, caller, None, request, limit, refused, body.time_seconds))


@router.get("/leases/{id}", response_model=LeaseOut, tags=["leases"])
async def get_lease(
    id: Name,
    pool: ThePool,
    caller: User,
    wait: Annotated[
        int, Query(ge=0, le=60, description="seconds to wait for the end of queueing")
    ] = 0,
) -> Response:
    """One lease. With ``wait`` the answer to a queued one comes when it is granted or ends."""
    lease = await _find(pool, caller, id)
    _hear(pool, caller, id, wait)
    if wait and lease.state == LeaseState.QUEUED:
        await _wait(pool, id, wait)
        lease = await _find(pool, caller, id)
    if lease.state == LeaseState.ACTIVE:
        await pool.confirmed(id)
        lease = await _find(pool, caller, id)
    return send(views.lease_with_token(pool, lease), lease.version)


@router.patch(
    "/leases/{id}",
    response_model=LeaseOut,
    tags=["leases"],
    responses={
        202: {
            "model": LeaseOut,
            "description": "Not all servers have made it: see `resize`, or `leaves`",
        }
    },
)
async def change_lease(
    id: Name, body: LeaseChange, pool: ThePool, caller: User, write: Write
) -> Response:
    """Other limits, or more or fewer GPUs, while its programs run.

    409: no room, or more memory is in use.
    """
    await _find(pool, caller, id)

    def change(transaction: Transaction) -> Reply:
        lease = pool.ledger.leases.get(id)
        if lease is None:
            raise Problem(409, "ended", "the lease has ended")
        write.check(lease.version)
        limits = body.model_dump(exclude={"force", "gpus"}, exclude_none=True)
        if body.gpus is None:
            pool.resizes.change(transaction, lease, limits, body.force, caller.is_admin)
        elif limits or body.force:
            raise bad_field("body.gpus", "another number of GPUs is a change of its own")
        elif body.gpus < len(lease.grants) or lease.leaving:
            pool.shrinking.shrink(transaction, lease, body.gpus)
        else:
            pool.growth.grow(transaction, lease, body.gpus)
        return Reply(views.lease(pool, lease), 200, lease.version)

    answer = await write.do(caller, change)
    number = int(answer.headers["ETag"].strip('"'))
    await pool.resized(id, number)
    lease = await _find(pool, caller, id)
    resize = lease.resize
    if resize is not None and resize.refused and resize.number == number:
        raise Problem(409, "in-use", resize.refused)
    pending = resize is not None and not resize.refused or lease.leaving
    status = 202 if pending else 200
    return send(views.lease_with_token(pool, lease), lease.version, status)


async def _wait(pool: Pool, name: str, seconds: int) -> None:
    watcher = pool.bus.watch()
    try:
        async with asyncio.timeout(seconds):
            lease = pool.ledger.leases.get(name)
            while lease is not None and lease.state == LeaseState.QUEUED:
                if await watcher.next() is None:
                    return
                lease = pool.ledger.leases.get(name)
    except TimeoutError:
        pass
    finally:
        pool.bus.forget(watcher)


async def _find(pool: Pool, caller: Caller, name: str) -> Lease:
    """A lease that the caller may see, from memory or from history."""
    lease = pool.ledger.leases.get(name)
    if lease is None:
        await pool.commands.settle()  # it may be ending right now
        found = await pool.store.find_leases(
            select(tables.leases).where(tables.leases.c.id == name)
        )
        lease = pool.ledger.leases.get(name) or (found[0] if found else None)
    planned = pool.ledger.reservations.get(name)
    if planned is not None and (caller.is_admin or planned.tenant == caller.token.tenant):
        raise Problem(409, "full", f"it is a reservation, and begins at {in_utc(planned.start)}")
    if lease is None or not (caller.is_admin or lease.tenant == caller.token.tenant):
        raise not_found("lease", name)
    return lease


@router.post("/leases/{id}/renew", response_model=LeaseOut, tags=["leases"])
async def renew_lease(id: Name, pool: ThePool, caller: User) -> Response:
    """It lasts for another period from now. 409 if it has ended."""
    lease = await _find(pool, caller, id)
    if lease.state not in LIVE:
        raise Problem(409, "ended", f"the lease is {lease.state}: {lease.reason}")
    _hear(pool, caller, id, 1)  # who renews it wants it
    if lease.state == LeaseState.ACTIVE:
        pool.leases.renew(lease, pool.clock())
    return send(views.lease_with_token(pool, lease))


@router.post("/leases/{id}/release", response_model=LeaseOut, tags=["leases"])
async def release_lease(id: Name, pool: ThePool, caller: User, write: Write) -> Response:
    """Give it back, or stop waiting for it. A second time changes nothing."""
    before = await _find(pool, caller, id)

    def release(transaction: Transaction) -> Reply:
        lease = pool.ledger.leases.get(id)
        if lease is None:
            return Reply(views.lease(pool, before))
        if lease.state == LeaseState.QUEUED:
            pool.leases.end(transaction, lease, LeaseState.CANCELLED, "no longer wanted")
        else:
            who = "an operator" if caller.is_admin else "its tenant"
            pool.leases.end(transaction, lease, LeaseState.RELEASED, f"released by {who}")
        return Reply(views.lease(pool, lease))

    return await write.do(caller, release)


@router.get("/leases/{id}/explain", response_model=ExplainOut, tags=["leases"])
async def explain_lease(
    id: Name,
    http: Request,
    pool: ThePool,
    caller: User,
    limit: Annotated[int, Query(ge=0, le=1000, description="the most GPUs to show")] = 100,
) -> Response:
    """Why it is where it is, or why it waits."""
    http.state.looked = len(pool.ledger.index.slots)
    lease = await _find(pool, caller, id)
    waiting = pool.ledger.queue.get(id)
    if waiting is not None:
        return send(_explained(pool, caller, lease, waiting.request, limit, waiting.reason))
    if not lease.placement:
        decision = f"never granted; {lease.state}: {lease.reason}"
    else:
        decision = f"{lease.state}; it was placed by the rule: {lease.placement['rule']}"
        if lease.ending is not None:
            decision += f"; it goes back: {lease.ending.reason}"
    return send(
        ExplainOut(
            lease=id, decision=decision, placement=lease.placement or None, summary={}, gpus=[]
        )
    )


def _explained(
    pool: Pool,
    caller: Caller,
    lease: Lease | None,
    request: PlacementRequest,
    limit: int,
    reason: str | None = None,
    lasts: float | None = None,
) -> ExplainOut:
    """An admin sees it GPU by GPU; what others have there is no tenant's business."""
    verdicts = explain(pool.ledger.index, request)
    if reason is None:
        found = pool.leases.calendar.place(request, pool.clock(), lasts)
        reason = _would_go(found, caller.is_admin)
    elif lease is not None:
        position = pool.ledger.queue.position(lease)
        of = f" of {len(pool.ledger.queue)}" if caller.is_admin else ""
        reason = f"it waits at position {position}{of}: {reason}"
    start = None if lease is None else pool.leases.expected_start(lease, pool.clock())
    shown = verdicts[:limit] if caller.is_admin else []
    return ExplainOut(
        lease=None if lease is None else lease.id,
        decision=reason,
        placement=None,
        summary=summarise(verdicts) if caller.is_admin else summarise_own(request, verdicts),
        gpus=[views.verdict(verdict) for verdict in shown],
        expected_start=maybe_when(start),
    )


def _would_go(result: Placement | NoRoom, with_names: bool) -> str:
    if isinstance(result, NoRoom):
        return f"no room: {result.reason}"
    if not with_names:
        return f"it would be granted; {result.rule}"
    names = ", ".join(f"{slot.uuid} on {slot.node}" for slot in result.slots)
    return f"it would be placed on {names}; {result.rule}"


@router.get("/queue", response_model=Page[QueueOut], tags=["queue"])
async def list_queue(
    pool: ThePool,
    caller: User,
    pages: Pages,
    tenant: Annotated[TenantName | None, Query()] = None,
) -> Response:
    """Who waits, in order, with the reason; a tenant's token sees its own."""
    whose = caller.tenant(tenant)
    items = [
        (place, waiting)
        for place, waiting in enumerate(pool.ledger.queue.in_order(), 1)
        if whose in (None, waiting.lease.tenant)
    ]
    return send(pages.cut(items, lambda pair: (pair[0],), lambda pair: views.waiting(*pair), int))
