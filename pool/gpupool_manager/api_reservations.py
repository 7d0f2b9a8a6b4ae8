"""/v1/reservations: GPUs for a time to come."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from gpupool_common.node_protocol import Name
from gpupool_manager.api_common import Caller, Pages, Reply, ThePool, User, Write, send
from gpupool_manager.api_leases import wanted
from gpupool_manager.attempts import Attempts
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.records import Reservation
from gpupool_manager.schemas import Page, PlacementRequestOut, TenantName, when
from gpupool_manager.schemas_reservations import ReservationIn, ReservationOut
from gpupool_manager.transaction import Transaction

router = APIRouter(tags=["reservations"])

#: So often a tenant may make or cancel one: at once, and then how many seconds are between two.
CHANGES, CHANGE_SECONDS = 32, 10.0


@router.get("/reservations", response_model=Page[ReservationOut])
async def list_reservations(
    pool: ThePool,
    caller: User,
    pages: Pages,
    tenant: Annotated[TenantName | None, Query()] = None,
) -> Response:
    """Those that have not begun, by id; a tenant's token sees its own."""
    whose = caller.tenant(tenant)
    items = [each for each in pool.ledger.reservations.values() if whose in (None, each.tenant)]
    return send(pages.cut(items, lambda each: (each.id,), lambda each: _view(pool, each), str))


@router.post("/reservations", response_model=ReservationOut, status_code=201)
async def make_reservation(
    body: ReservationIn, request: Request, pool: ThePool, caller: User, write: Write
) -> Response:
    """Keep GPUs free for a time. 403: over quota; 409: not so much is left of the pool then."""
    _count(request, caller)
    tenant = caller.tenant(body.tenant)
    if tenant is None:
        raise bad_field("body.tenant", "an admin's request must name a tenant")
    placement = wanted(body)

    def make(transaction: Transaction) -> Reply:
        made = pool.reservations.make(
            transaction, tenant, placement, body.start.timestamp(), body.seconds, body.label
        )
        return Reply(_view(pool, made), 201)

    return await write.do(caller, make)


@router.get("/reservations/{id}", response_model=ReservationOut)
async def get_reservation(id: Name, pool: ThePool, caller: User) -> Response:
    """One that has not begun; after that it is a lease of the same id."""
    return send(_view(pool, _find(pool, caller, id)))


@router.delete("/reservations/{id}", status_code=204)
async def cancel_reservation(
    id: Name, request: Request, pool: ThePool, caller: User, write: Write
) -> Response:
    """What it kept free is everybody's again."""
    _count(request, caller)

    def cancel(transaction: Transaction) -> Reply:
        _find(pool, caller, id)
        pool.reservations.cancel(transaction, id)
        return Reply(status=204)

    return await write.do(caller, cancel)


def _count(request: Request, caller: Caller) -> None:
    """Each change has all that is reserved planned anew, while everybody waits."""
    changes: Attempts = request.app.state.reservation_changes
    tenant = caller.token.tenant
    if tenant is None:
        return
    if changes.too_many(tenant):
        raise Problem(
            429, "too-many", f"tenant '{tenant}' has changed reservations too often; wait a minute"
        )
    changes.count(tenant)


def _find(pool: Pool, caller: Caller, name: str) -> Reservation:
    found = pool.reservations.find(name)
    if not caller.is_admin and found.tenant != caller.token.tenant:
        raise not_found("reservation", name)
    return found


def _view(pool: Pool, record: Reservation) -> ReservationOut:
    count = pool.reservations.in_the_way(record)
    reason = ""
    if count is None:
        reason = "not so many GPUs are usable now"
    elif count:
        reason = f"{count} leases that may last longer are on GPUs that it needs"
    return ReservationOut(
        id=record.id,
        tenant=record.tenant,
        request=PlacementRequestOut.model_construct(**record.request.as_dict()),
        start=when(record.start),
        end=when(record.end),
        label=record.label,
        created=when(record.created),
        certain=not reason,
        reason=reason,
    )
