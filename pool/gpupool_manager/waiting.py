"""The queue of a full pool: by priority, then by arrival."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from gpupool_manager.index import Kind
from gpupool_manager.records import Lease
from gpupool_manager.want import Want

Place = tuple[int, str]


@dataclass(slots=True)
class Waiting:
    """One request in the queue."""

    lease: Lease
    want: Want
    reason: str
    #: The kinds of GPUs that would do.
    kinds: frozenset[Kind] = frozenset()
    #: Whether it is room that lacks, and not the tenant's quota.
    for_room: bool = True
    #: Whether releases can give it room: its nodes are there.
    hopeful: bool = True

    def goes_first(self, kinds: frozenset[Kind], now: float, patience: float) -> bool:
        """Whether it has waited so long that nobody behind may take what it could use."""
        late = now - self.lease.created > patience
        return late and self.for_room and self.hopeful and not self.kinds.isdisjoint(kinds)


class Line:
    """Everybody who waits, in order."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Waiting]:
        """In order; what is taken out meanwhile does not disturb."""
        for _, lease in list(self._places):
            if lease in self._waiting:
                yield self._waiting[lease]

    def get(self, lease: str) -> Waiting | None:
        return self._waiting.get(lease)

    def join(self, waiting: Waiting) -> None:
        # Ids rise with time, so they are the order of arrival.
        insort(self._places, _place(waiting.lease))
        self._waiting[waiting.lease.id] = waiting

    def leave(self, lease: Lease) -> None:
        del self._waiting[lease.id]
        del self._places[bisect_left(self._places, _place(lease))]

    def position(self, lease: Lease) -> int:
        """1 for who is next."""
        return bisect_left(self._places, _place(lease)) + 1

    def blocker(
        self, lease: Lease, kinds: frozenset[Kind], now: float, patience: float
    ) -> Waiting | None:
        """Who before this place has waited so long that the place must wait, too."""
        for place in self._places[: bisect_left(self._places, _place(lease))]:
            waiting = self._waiting[place[1]]
            if waiting.goes_first(kinds, now, patience):
                return waiting
        return None


def _place(lease: Lease) -> Place:
    return (-lease.priority, lease.id)
