"""Where reservations will go, and what of the pool they leave to others until then.

Each has a plan: the GPUs that it would get at its start if every lease lasts as long as it may.
What ends before is not touched by it. What may last longer is placed beside what the plan needs.
So a plan that was possible stays possible, whoever comes; it is made anew when GPUs change, and
when leases end if it is not certain.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
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

#: A plan looks at all that is granted, in some 0.03 ms a GPU, and the manager does nothing else
#: meanwhile. What is not certain is planned again only after so long a rest for each GPU, so
#: a pool in which leases end all the time has a few percent of it to bear; a small one needs none.
REST_SECONDS = 0.001
AT_ONCE = 500

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
        #: Of what pool they were made.
        self._made_of: tuple[int, int, set[str]] = (0, 0, set())
        #: Whether leases have ended since that were not certain to.
        self._may_be_better = False
        self._now = self._rests_until = 0.0

    def forget(self) -> None:
        """They may all be others now."""
        self._plans = None

    def review(self, now: float) -> None:
        """Something has changed. Plans stay possible where only leases came or went: those that
        came are beside them, and those that went leave more room. What is not certain may be
        so by now, and is planned again."""
        self._now = now
        if self._plans is None:
            return
        if self._made_of != self._pool():
            self._plans = None
            return
        for name, room in self._plans.items():
            if room is not None and not all(map(self._is_there, room.ended)):
                self._plans[name] = Room(list(filter(self._is_there, room.ended)), room.slots)
        certain = all(room is not None and not room.ended for room in self._plans.values())
        self._may_be_better = self._may_be_better or not certain
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Plan again what may be better by now, if the last time is long enough ago."""
        self._now = now
        if self._may_be_better and now >= self._rests_until:
            self._plans = None

    def _is_there(self, lease: Lease) -> bool:
        return lease.id in self._ledger.leases and bool(lease.grants)

    def plans(self, best: bool = False) -> Plans:
        """``best``: whether they are to be made anew if they may be better by now."""
        if self._plans is None or (best and self._may_be_better):
            self.adopt(self.plan(self.known()))
        assert self._plans is not None
        return self._plans

    def adopt(self, plans: Plans) -> None:
        """These were made of the pool as it is."""
        self._plans, self._made_of, self._may_be_better = plans, self._pool(), False
        looked_at = sum(len(lease.grants) for lease in self._ledger.leases.values())
        looked_at += sum(len(room.slots) for room in plans.values() if room is not None)
        rest = looked_at * REST_SECONDS if looked_at > AT_ONCE else 0.0
        self._rests_until = self._now + rest

    def _pool(self) -> tuple[int, int, set[str]]:
        names = {each.id for each in self.known()}
        return (self._ledger.index.changes, self._ledger.upsets, names)

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
        """Where these would go: who begins first chooses first.

        Each lease is ended on trial once, on one way through time, however many reservations
        there are.
        """
        found: Plans = {}
        there: list[tuple[Reservation, Room]] = []
        live = [lease for lease in self._ledger.leases.values() if lease.grants]
        ending = deque(sorted(live, key=_end_of))
        in_the_way = sorted((lease for lease in live if not lease.reserved), key=_who_first)
        gone: set[str] = set()
        with Trial(self._ledger.index) as trial:
            for each in sorted(reservations, key=lambda each: (each.start, each.id)):
                while ending and _end_of(ending[0]) <= each.start:
                    self._end(trial, ending.popleft(), gone)
                for before, room in there:
                    if before.end <= each.start:
                        trial.revoke(before.request, room.slots)
                there = [pair for pair in there if pair[0].end > each.start]
                left = (lease for lease in in_the_way if lease.id not in gone)
                made = make_room(trial, self._ledger, left, self._request(each))
                found[each.id] = made
                if made is not None:
                    there.append((each, made))
                    gone |= {lease.id for lease in made.ended}
        return found

    def _request(self, reservation: Reservation) -> PlacementRequest:
        """Within what the tenant's quota allows, as its lease will be."""
        models = self._ledger.quotas[reservation.tenant].models
        return replace(reservation.request, models=None if models is None else tuple(models))

    @staticmethod
    def _end(trial: Trial, lease: Lease, gone: set[str]) -> None:
        if lease.id not in gone:
            trial.end(lease)
            gone.add(lease.id)

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


def in_utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%MZ")
