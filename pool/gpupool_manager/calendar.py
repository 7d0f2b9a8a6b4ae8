"""Where reservations will go, and what of the pool they leave to others until then.

Each has a plan: the GPUs that it would get at its start if every lease lasts as long as it may.
What ends before is not touched by it. What may last longer is placed beside what the plan needs.
So a plan that was possible stays possible, whoever comes; it is made anew when leases end or GPUs
change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from gpupool_manager.ledger import Ledger
from gpupool_manager.making_room import Room, make_room
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.records import Lease, Reservation
from gpupool_manager.scheduler import NoRoom, Placement, place
from gpupool_manager.trial import Trial

#: Memory in bytes, and thousandths of compute.
Amount = tuple[int, int]

#: A plan, or None: there would be no room even if every lease that can end had ended.
Plans = dict[str, Room | None]

NONE_GONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Need:
    """What reservations need of one GPU from a time on."""

    start: float
    end: float
    memory: int
    share: int


class Calendar:
    """The plans of all reservations."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plans: Plans | None = None

    def forget(self) -> None:
        """Leases have ended, GPUs or reservations are others."""
        self._plans = None

    def plans(self) -> Plans:
        if self._plans is None:
            self._plans = self.plan(self.known())
        return self._plans

    def known(self) -> list[Reservation]:
        """Also those that have begun and wait for room: the next ones must not take theirs."""
        found: list[Reservation] = []
        for waiting in self._ledger.queue:  # they are the first in it
            lease = waiting.lease
            if not lease.reserved:
                break
            if waiting.group.for_room:
                start, end = lease.created, lease.deadline
                found.append(
                    Reservation(lease.id, lease.tenant, lease.request, start, end, "", start)
                )
        return [*found, *self._ledger.reservations.values()]

    def plan(self, reservations: Iterable[Reservation]) -> Plans:
        """Where these would go: who begins first chooses first."""
        found: Plans = {}
        earlier: list[Reservation] = []
        for each in sorted(reservations, key=lambda each: (each.start, each.id)):
            with Trial(self._ledger.index) as trial:
                for lease in self._over_by(each.start):
                    trial.end(lease)
                ended = {lease.id for before in earlier for lease in _ended(found, before)}
                for lease in (self._ledger.leases[name] for name in sorted(ended)):
                    if _end_of(lease) > each.start:
                        trial.end(lease)
                for before in earlier:
                    room = found[before.id]
                    if before.end > each.start and room is not None:
                        trial.grant(before.request, room.slots)
                left = [lease for lease in self._in_the_way(each.start) if lease.id not in ended]
                found[each.id] = make_room(trial, self._ledger, left, each.request)
            earlier.append(each)
        return found

    def _over_by(self, time: float) -> list[Lease]:
        live = self._ledger.leases.values()
        return [lease for lease in live if lease.grants and _end_of(lease) <= time]

    def _in_the_way(self, start: float) -> list[Lease]:
        """Who may last longer."""
        live = self._ledger.leases.values()
        found = [lease for lease in live if lease.grants and _end_of(lease) > start]
        found = [lease for lease in found if not lease.reserved]
        return sorted(found, key=_who_first)

    # What others may have ----------------------------------------------------------------

    def place(
        self,
        request: PlacementRequest,
        start: float,
        limit: float | None,
        gone: Collection[str] = NONE_GONE,
    ) -> Placement | NoRoom:
        """Where a request goes that lasts for so long, and takes nothing that is reserved.

        ``gone``: leases that have ended by its start, on trial.
        """
        index = self._ledger.index
        end = math.inf if limit is None else start + limit
        held = self.held(start, end, gone)
        if not held:
            return place(index, request)
        with Trial(index) as trial:
            for gpu, (memory, share) in held.items():
                trial.hold(gpu, memory, share)
            result = place(index, request)
        if isinstance(result, NoRoom) and isinstance(place(index, request), Placement):
            return NoRoom(self._why(start, end))
        return result

    def held(
        self, start: float, end: float, gone: Collection[str] = NONE_GONE
    ) -> dict[str, Amount]:
        """What of each GPU is reserved for a time before that end; never more than is free."""
        by_gpu: defaultdict[str, list[_Need]] = defaultdict(list)
        for each in self._ledger.reservations.values():
            room = self.plans().get(each.id) if each.start < end and each.end > start else None
            for slot in () if room is None else room.slots:
                memory = each.request.takes(slot.total_bytes)
                need = _Need(each.start, each.end, memory, each.request.share_permille)
                by_gpu[slot.uuid].append(need)
        found = {gpu: self._amount(gpu, needs, gone) for gpu, needs in by_gpu.items()}
        return {gpu: amount for gpu, amount in found.items() if amount != (0, 0)}

    def _amount(self, gpu: str, needs: list[_Need], gone: Collection[str]) -> Amount:
        """The most that reservations need of a GPU at once, beside what has ended by then."""
        slot = self._ledger.index.slots.get(gpu)
        if slot is None:
            return (0, 0)
        grants = [
            (_end_of(lease), grant)
            for name in self._ledger.leases_on.get(slot.node, ())
            if name not in gone
            for lease in (self._ledger.leases[name],)
            for grant in lease.grants
            if grant.gpu == gpu
        ]
        memory = share = 0
        for at in (need.start for need in needs):
            there = [need for need in needs if need.start <= at < need.end]
            over = [grant for end, grant in grants if end <= at]
            memory = max(memory, sum(n.memory for n in there) - sum(g.memory_bytes for g in over))
            share = max(share, sum(n.share for n in there) - sum(g.share_permille for g in over))
        return (min(memory, slot.free_bytes), min(share, slot.free_permille))

    def _why(self, start: float, end: float) -> str:
        """Whose it is, other tenants may not know."""
        first = min(
            each.start
            for each in self._ledger.reservations.values()
            if each.start < end and each.end > start
        )
        if first <= start:
            return "reserved: what is free is for a reservation that begins now"
        return f"reserved: what is free is so from {in_utc(first)} on; who has ended by then may go"

    def after(self, now: float) -> list[float]:
        """When reservations end: then there may be room."""
        return sorted(each.end for each in self._ledger.reservations.values() if each.end > now)


def _end_of(lease: Lease) -> float:
    """When it ends, whatever is reserved: who was warned for a plan is part of it."""
    ending = lease.ending
    return lease.time_end if ending is not None and ending.cause == "reserved" else lease.latest_end


def _who_first(lease: Lease) -> tuple[bool, bool, float]:
    """Who was warned for it already; then what is borrowed; then what began last."""
    warned = lease.ending is not None and lease.ending.cause == "reserved"
    return (not warned, not lease.borrowed, -(lease.granted or 0.0))


def _ended(plans: Plans, reservation: Reservation) -> list[Lease]:
    room = plans[reservation.id]
    return [] if room is None else room.ended


def in_utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%MZ")
