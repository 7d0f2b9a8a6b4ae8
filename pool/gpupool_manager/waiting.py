"""The queue of a full pool: by priority, then by arrival.

Requests of a tenant that request the same with the same priority form a group: when the
first of them cannot be granted, nor can the others. So what there is to do when there is
more room grows with the groups, not with the queue.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpupool_manager.index import Kind, one_of_a_kind
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.records import Lease

Place = tuple[int, str]
_GroupKey = tuple[str, int, PlacementRequest]


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
        late = now - self.lease.created > patience
        meets = not group.holds_back.isdisjoint(kinds)
        return late and group.for_room and group.hopeful and meets


class LeaseQueue:
    """Everybody who waits, in order."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._waiting: dict[str, Waiting] = {}
        self._groups: dict[_GroupKey, Group] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Waiting]:
        """In order."""
        return (self._waiting[lease] for _, lease in self._places)

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
        # Ids rise with time, so they are the order of arrival.
        insort(self._places, _place(lease))
        self._enter(lease, request, reason, kinds, now)

    def leave(self, lease: Lease) -> None:
        self._exit(lease)
        del self._places[bisect_left(self._places, _place(lease))]

    def regroup(self, lease: Lease, request: PlacementRequest) -> None:
        """It keeps its place and may have something else."""
        heard = self._waiting[lease.id].heard
        group = self._exit(lease)
        self._enter(lease, request, group.reason, group.kinds, heard)

    def position(self, lease: Lease) -> int:
        """1 for who is next."""
        return bisect_left(self._places, _place(lease)) + 1

    def heads(self) -> Iterator[Waiting]:
        """The first of each group, in order; after one that has left its group, the next of it."""
        heads = [(group.members[0], group) for group in self._groups.values()]
        order = [(place, number) for number, (place, _) in enumerate(heads)]
        heapq.heapify(order)
        while order:
            place, number = heapq.heappop(order)
            group = heads[number][1]
            yield self._waiting[place[1]]
            if group.members and group.members[0] != place:
                heapq.heappush(order, (group.members[0], number))

    def blocker(
        self, lease: Lease, kinds: frozenset[Kind], now: float, patience: float
    ) -> Waiting | None:
        """Who before this place has waited so long that the place must wait, too."""
        # The first of a group has waited longest of it.
        before = [
            group.members[0]
            for group in self._groups.values()
            if group.members[0] < _place(lease)
            and self._waiting[group.members[0][1]].goes_first(kinds, now, patience)
        ]
        return self._waiting[min(before)[1]] if before else None

    def _enter(
        self,
        lease: Lease,
        request: PlacementRequest,
        reason: str,
        kinds: frozenset[Kind],
        heard: float,
    ) -> None:
        key = (lease.tenant, lease.priority, request)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(request, reason, kinds)
        insort(group.members, _place(lease))
        self._waiting[lease.id] = Waiting(lease, group, heard)

    def _exit(self, lease: Lease) -> Group:
        group = self._waiting.pop(lease.id).group
        del group.members[bisect_left(group.members, _place(lease))]
        if not group.members:
            del self._groups[(lease.tenant, lease.priority, group.request)]
        return group


def _place(lease: Lease) -> Place:
    return (-lease.priority, lease.id)
