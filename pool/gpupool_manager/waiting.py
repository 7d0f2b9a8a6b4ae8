"""The queue of a full pool.

In strict order it goes by priority, then by arrival. In fair order the tenant goes first that has
the smallest share of the pool for its weight; among its own requests waiting counts like priority.
Who has waited very long goes before all shares.

Requests of a tenant that request the same with the same priority form a group: when the
first of them cannot be granted, nor can the others. So what there is to do when there is
more room grows with the groups, not with the queue.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from gpupool_manager.index import Kind, one_of_a_kind
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.records import Beyond, Lease

#: Among those of one rank: lower goes first.
Place = tuple[float, str]
#: A share of the pool, after those who have waited very long.
Rank = tuple[int, float]
_GroupKey = tuple[str, int, PlacementRequest, Beyond, float | None, bool]


@dataclass(frozen=True, slots=True)
class OrderRules:
    """Who goes first."""

    fair: bool = False
    #: In fair order waiting so long counts as much as one step of priority.
    aging: float = 3600.0
    #: In fair order who has waited for so long goes before all shares.
    starving: float = 6 * 3600.0
    #: How long before a lease is given back its programs are told.
    grace: float = 60.0

    def place(self, lease: Lease) -> Place:
        if lease.reserved:
            return (-math.inf, lease.id)
        # Ids rise with time, so they are the order of arrival.
        if self.fair:
            return (lease.created - lease.priority * self.aging, lease.id)
        return (-lease.priority, lease.id)


@dataclass(slots=True, eq=False)
class Group:
    """Requests that can only be granted one after the other."""

    request: PlacementRequest
    reason: str
    #: The kinds of GPUs that would do.
    kinds: frozenset[Kind]
    #: In order; never empty while the group is in the line.
    members: list[Place] = field(default_factory=list)
    #: Whether it is room that lacks, and not the tenant's quota.
    for_room: bool = True
    #: Whether it would be beyond the quota: what it waits for is to be lent.
    over: bool = False
    #: Whether releases can give it room: its nodes are there.
    hopeful: bool = True

    @property
    def holds_back(self) -> frozenset[Kind]:
        """What nobody behind may take once it has waited long.

        Who names GPUs keeps nobody from others of their kind.
        """
        return one_of_a_kind(self.request.uuids) or self.kinds


@dataclass(slots=True)
class Waiting:
    """One request in the queue."""

    lease: Lease
    group: Group
    #: Until when it counts as asked for. Not written down.
    heard: float

    @property
    def request(self) -> PlacementRequest:
        return self.group.request

    @property
    def reason(self) -> str:
        """Why it, or who is before it in its group, was not granted when that was last tried."""
        return self.group.reason

    def goes_first(self, kinds: frozenset[Kind], now: float, patience: float) -> bool:
        """Whether it has waited so long that nobody behind may take what it could use."""
        group = self.group
        late = self.lease.reserved or now - self.lease.created > patience
        meets = not group.holds_back.isdisjoint(kinds)
        return late and group.for_room and group.hopeful and not group.over and meets


class LeaseQueue:
    """Everybody who waits, in order."""

    def __init__(self, rules: OrderRules, share: Callable[[str], float]) -> None:
        self.rules = rules
        #: How much of the pool a tenant has for its weight.
        self._share = share
        #: When it was last worked through: positions are of then.
        self._now = 0.0
        self._places: list[Place] = []
        self._waiting: dict[str, Waiting] = {}
        self._groups: dict[_GroupKey, Group] = {}
        #: In fair order: as they would go, and their positions; empty after a change. Everybody who
        #: waits asks for its own again and again.
        self._order: list[Waiting] = []
        self._positions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Waiting]:
        """By place: in strict order that is the order."""
        return (self._waiting[lease] for _, lease in self._places)

    def in_order(self) -> list[Waiting]:
        """As they would go now, if nobody's share changed by that."""
        if not self.rules.fair:
            return list(self)
        if not self._order:
            ranked = [(self.rank(waiting.lease, self._now), waiting) for waiting in self]
            self._order = [waiting for _, waiting in sorted(ranked, key=itemgetter(0))]
        return list(self._order)

    def forget_order(self) -> None:
        """Some tenant has more of the pool, or less, or somebody has come or gone."""
        self._order.clear()
        self._positions.clear()

    def rank(self, lease: Lease, now: float) -> Rank:
        """What goes before places. All are equal in strict order."""
        if lease.reserved:
            return (-1, 0.0)
        if not self.rules.fair or now - lease.created > self.rules.starving:
            return (0, 0.0)
        return (1, self._share(lease.tenant))

    def __getitem__(self, lease: str) -> Waiting:
        return self._waiting[lease]

    def get(self, lease: str) -> Waiting | None:
        return self._waiting.get(lease)

    def join(
        self,
        lease: Lease,
        request: PlacementRequest,
        reason: str,
        kinds: frozenset[Kind],
        now: float,
    ) -> None:
        insort(self._places, self.rules.place(lease))
        self._enter(lease, request, reason, kinds, now)

    def leave(self, lease: Lease) -> None:
        self._exit(lease)
        del self._places[bisect_left(self._places, self.rules.place(lease))]

    def regroup(self, lease: Lease, request: PlacementRequest) -> None:
        """It keeps its place and may have something else."""
        heard = self._waiting[lease.id].heard
        group = self._exit(lease)
        self._enter(lease, request, group.reason, group.kinds, heard)

    def position(self, lease: Lease) -> int:
        """1 for who is next."""
        if not self.rules.fair:
            return bisect_left(self._places, self.rules.place(lease)) + 1
        if not self._positions:
            ordered = enumerate(self.in_order(), 1)
            self._positions = {waiting.lease.id: position for position, waiting in ordered}
        return self._positions[lease.id]

    def heads(self, now: float) -> Iterator[Waiting]:
        """The first of each group, in order; after one that has left its group, the next of it.

        Shares may grow meanwhile, and do not become smaller.
        """
        self._now = now
        self.forget_order()
        groups = list(self._groups.values())
        order = [(self._turn(group, now), number) for number, group in enumerate(groups)]
        heapq.heapify(order)
        while order:
            turn, number = heapq.heappop(order)
            group = groups[number]
            if (later := self._turn(group, now)) > turn:
                heapq.heappush(order, (later, number))
                continue
            _, place = turn
            yield self._waiting[place[1]]
            if group.members and group.members[0] != place:
                heapq.heappush(order, (self._turn(group, now), number))

    def _turn(self, group: Group, now: float) -> tuple[Rank, Place]:
        place = group.members[0]
        return self.rank(self._waiting[place[1]].lease, now), place

    def blockers(
        self, lease: Lease, kinds: frozenset[Kind], now: float, patience: float
    ) -> list[Waiting]:
        """Who before this place has waited so long that the place must wait, too; in order."""
        turn = (self.rank(lease, now), self.rules.place(lease))
        # The first of a group has waited longest of it.
        before = [
            ahead
            for group in self._groups.values()
            if (ahead := self._turn(group, now)) < turn
            and self._waiting[ahead[1][1]].goes_first(kinds, now, patience)
        ]
        return [self._waiting[place[1]] for _, place in sorted(before)]

    def wanted(self, kinds: frozenset[Kind]) -> bool:
        """Whether somebody within its quota waits for room that one of these kinds could be."""
        return any(
            group.for_room
            and group.hopeful
            and not group.over
            and not group.holds_back.isdisjoint(kinds)
            for group in self._groups.values()
        )

    def members(self, group: Group) -> list[Lease]:
        """Whoever wants the same, in order."""
        return [self._waiting[name].lease for _, name in group.members]

    def _enter(
        self,
        lease: Lease,
        request: PlacementRequest,
        reason: str,
        kinds: frozenset[Kind],
        heard: float,
    ) -> None:
        key = _key(lease, request)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(request, reason, kinds)
        insort(group.members, self.rules.place(lease))
        self.forget_order()
        self._waiting[lease.id] = Waiting(lease, group, heard)

    def _exit(self, lease: Lease) -> Group:
        self.forget_order()
        group = self._waiting.pop(lease.id).group
        del group.members[bisect_left(group.members, self.rules.place(lease))]
        if not group.members:
            del self._groups[_key(lease, group.request)]
        return group


def _key(lease: Lease, request: PlacementRequest) -> _GroupKey:
    return (lease.tenant, lease.priority, request, lease.beyond, lease.time_limit, lease.reserved)
