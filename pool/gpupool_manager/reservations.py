"""Reservations: made, cancelled, and begun as leases that go before all others.

What is in the way of one when its time comes may be warned and taken back, if that is the policy.
"""

from __future__ import annotations

import math
from typing import Literal

from gpupool_common.lease import LeaseState
from gpupool_manager.calendar import Plans, in_utc
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger, least_use, request_of
from gpupool_manager.making_room import Room
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.quotas import Use, excesses, over_quota
from gpupool_manager.records import Ending, Lease, Reservation
from gpupool_manager.scheduler import could_ever
from gpupool_manager.transaction import Transaction

#: Which leases go back for a reservation that needs their GPUs.
Reclaims = Literal["none", "borrowed", "all"]

#: So many are kept at most, and of one tenant.
MOST = 256
MOST_EACH = 64

#: Nobody knows today what is so far off.
FURTHEST = 366 * 86400.0

#: A start that a clock of another machine takes for now.
_NOW = 60.0


class Reservations:
    """Every change of a reservation."""

    def __init__(self, ledger: Ledger, leases: Leases, reclaims: Reclaims) -> None:
        self._ledger = ledger
        self._leases = leases
        self._reclaims = reclaims

    def find(self, name: str) -> Reservation:
        found = self._ledger.reservations.get(name)
        if found is None:
            raise not_found("reservation", name)
        return found

    def in_the_way(self, reservation: Reservation) -> int | None:
        """How many leases may last into it on GPUs that it needs; None: it has no place at all."""
        room = self._leases.calendar.plans().get(reservation.id)
        return None if room is None else len(room.ended)

    def make(
        self,
        transaction: Transaction,
        tenant: str,
        request: PlacementRequest,
        start: float,
        seconds: float,
        label: str = "",
    ) -> Reservation:
        """Problem, and nothing is changed, if it may not be or takes what others have reserved."""
        ledger, now = self._ledger, transaction.now
        self._leases.check_named(request)
        if tenant not in ledger.tenants:
            raise not_found("tenant", tenant)
        if ledger.tenants[tenant].disabled:
            raise Problem(403, "disabled", f"the tenant '{tenant}' is disabled")
        if start < now - _NOW:
            raise bad_field("body.start", f"that is over; now it is {in_utc(now)}")
        if start > now + FURTHEST:
            raise bad_field("body.start", "not more than 366 days from now")
        if len(ledger.reservations) >= MOST:
            raise Problem(409, "full", f"{MOST} reservations are kept, and no more")
        if sum(each.tenant == tenant for each in ledger.reservations.values()) >= MOST_EACH:
            raise Problem(409, "full", f"{MOST_EACH} of a tenant are kept, and no more")
        start = max(start, now)
        name = ledger.ids.make("lease", now)
        made = Reservation(name, tenant, request, start, start + seconds, label, now)
        request = request_of(self._lease_of(made, now), ledger.quotas[tenant])
        if (never := could_ever(ledger.index, request)) is not None:
            raise Problem(409, "impossible", never)
        self._check_quota(made, now)
        plans = self._checked_plans(made)
        ledger.reservations[name] = made
        self._leases.calendar.adopt(plans)
        transaction.put(made)
        when = {"start": made.start, "end": made.end}
        transaction.log("reservation.made", name, tenant, gpus=request.gpus, **when)
        self._leases.pump(transaction)
        return made

    def _check_quota(self, made: Reservation, now: float) -> None:
        """The tenant's whole quota has to have room for it, beside its others of that time."""
        ledger = self._ledger
        have = Use()
        for each in ledger.reservations.values():
            if each.tenant == made.tenant and each.start < made.end and made.start < each.end:
                have.add(least_use(ledger, self._lease_of(each, now), each.request))
        asked = least_use(ledger, self._lease_of(made, now), made.request)
        if found := excesses(ledger.quotas[made.tenant], asked, Use(), have):
            raise over_quota(made.tenant, found)

    def _checked_plans(self, made: Reservation) -> Plans:
        """All of them with one more; those that were there before must have what they had."""
        calendar = self._leases.calendar
        before = calendar.plans(best=True)
        after = calendar.plan([*calendar.known(), made])
        if after[made.id] is None:
            raise Problem(409, "full", "not so much is left of the pool at that time")
        for name, room in before.items():
            if room is not None and _cost(after, name) > _cost(before, name):
                raise Problem(409, "full", "it would take what is reserved for that time already")
        return after

    def cancel(self, transaction: Transaction, name: str) -> None:
        """It is forgotten; what it kept free is everybody's."""
        gone = self.find(name)
        del self._ledger.reservations[name]
        transaction.drop(gone)
        transaction.log("reservation.cancelled", name, gone.tenant)
        self._review(transaction)
        self._leases.pump(transaction)

    # Time --------------------------------------------------------------------------------

    def any_due(self, now: float) -> bool:
        """Whether :meth:`sweep` has something to do."""
        found = self._ledger.reservations.values()
        if any(each.start <= now for each in found):
            return True
        self._leases.calendar.refresh(now)
        return self._needed(now).keys() != self._warned(now)

    def sweep(self, transaction: Transaction) -> None:
        """Begin those whose time has come, and warn who is in the way of the next."""
        now = transaction.now
        begun = [each for each in self._ledger.reservations.values() if each.start <= now]
        for each in sorted(begun, key=lambda each: (each.start, each.id)):
            del self._ledger.reservations[each.id]
            transaction.drop(each)
            transaction.log("reservation.begun", each.id, each.tenant)
            if each.end > now:
                self._leases.begin(transaction, self._lease_of(each, now))
        if begun:
            self._leases.pump(transaction)
        self._review(transaction)

    def _review(self, transaction: Transaction) -> None:
        """Warn those leases that are in the way, and no others."""
        ledger = self._ledger
        self._leases.calendar.forget()
        needed, warned = self._needed(transaction.now), self._warned(transaction.now)
        for name in sorted(needed.keys() ^ warned):
            lease = ledger.leases[name]
            if name in needed:
                at, start = needed[name]
                reason = f"its GPUs are reserved from {in_utc(start)} on"
                ledger.announce(lease, Ending(at, reason, cause="reserved"))
                transaction.log("lease.reclaiming", name, lease.tenant, at=at, reason=reason)
            else:
                ledger.announce(lease, None)
                transaction.log("lease.kept", name, lease.tenant)
            transaction.put(lease)

    def _needed(self, now: float) -> dict[str, tuple[float, float]]:
        """The leases that must end for reservations that begin soon, or wait; when, and since when
        their GPUs are reserved."""
        found: dict[str, tuple[float, float]] = {}
        if self._reclaims == "none":
            return found
        calendar, grace = self._leases.calendar, self._ledger.queue.rules.grace
        plans = calendar.plans()
        for each in calendar.known():
            if each.start <= now + grace:
                at = each.start if each.id in self._ledger.reservations else now + grace
                self._add(found, plans.get(each.id), at, each.start)
        return found

    def _add(
        self, found: dict[str, tuple[float, float]], room: Room | None, at: float, start: float
    ) -> None:
        for lease in () if room is None else room.ended:
            if self._may_end(lease):
                found[lease.id] = min((at, start), found.get(lease.id, (math.inf, start)))

    def _may_end(self, lease: Lease) -> bool:
        free = lease.ending is None or lease.ending.cause == "reserved"
        return free and (lease.borrowed or self._reclaims == "all")

    def _warned(self, now: float) -> set[str]:
        """Those that were warned; what ends this moment is not asked again."""
        return {
            lease.id
            for lease in self._ledger.ending.values()
            if lease.ending is not None
            and lease.ending.cause == "reserved"
            and lease.ending.at > now
        }

    def _lease_of(self, reservation: Reservation, now: float) -> Lease:
        lasts = reservation.end - now
        return Lease(
            id=reservation.id,
            tenant=reservation.tenant,
            state=LeaseState.QUEUED,
            request=reservation.request,
            priority=0,
            # Nobody needs to renew it: it is there until its end, as was said.
            ttl=lasts,
            label=reservation.label,
            beyond="wait",
            time_limit=lasts,
            created=now,
            deadline=reservation.end,
            reserved=True,
        )


def _cost(plans: Plans, name: str) -> float:
    """How many leases must end for it."""
    room = plans[name]
    return math.inf if room is None else len(room.ended)
