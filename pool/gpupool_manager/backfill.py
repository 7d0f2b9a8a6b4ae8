"""When what waits can begin, and who may go before it without making that later.

Only leases with a time limit say when their GPUs are free. Where enough of them do, a request that
has waited long has an expected start, and one that ends before may use the GPUs meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import itemgetter

from gpupool_manager.calendar import Calendar
from gpupool_manager.index import Kind
from gpupool_manager.ledger import Ledger, within_quota
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.records import Lease
from gpupool_manager.scheduler import Placement
from gpupool_manager.trial import Trial
from gpupool_manager.waiting import Waiting

#: Of so many different requests that wait a start is looked for; behind others nobody is let in.
MOST_STARTS = 256


#: What is asked for, and for how long.
_Asked = tuple[PlacementRequest, float | None]
#: When something ends: a lease, or (None) a reservation that has not begun.
_End = tuple[float, Lease | None]


class Backfill:
    """Expected starts, known until leases come or go."""

    def __init__(self, ledger: Ledger, calendar: Calendar) -> None:
        self._ledger = ledger
        self._calendar = calendar
        self._known: dict[_Asked, float | None] = {}
        #: What ends by its limit, first to last; None: not looked for yet.
        self._ending: list[_End] | None = None
        #: Whether something was granted since, which makes starts later.
        self._grown = False

    def forget(self) -> None:
        """Leases have ended, or there is more room."""
        self._known.clear()
        self._ending = None
        self._grown = False

    def grow(self) -> None:
        """Something was granted. Who overtakes by starts that are too early does no harm."""
        self._grown = True

    def expected(self, waiting: Waiting, now: float) -> float | None:
        """As :meth:`start_of`, with what was granted since."""
        if self._grown:
            self.forget()
        asked = self._asked(waiting)
        if asked not in self._known and len(self._known) >= MOST_STARTS:
            return self._find(asked, now)
        return self.start_of(waiting, now)

    def ends_before(self, lease: Lease, blocker: Waiting, now: float) -> bool:
        """Whether a request would be over when the one that it overtakes can begin."""
        if lease.time_limit is None:
            return False
        start = self.start_of(blocker, now)
        return start is not None and now + lease.time_limit <= start

    def start_of(self, waiting: Waiting, now: float) -> float | None:
        """When there is room for it if every lease lasts as long as it may; None: unknown."""
        asked = self._asked(waiting)
        if asked not in self._known:
            if len(self._known) >= MOST_STARTS:
                return None
            self._known[asked] = self._find(asked, now)
        return self._known[asked]

    def _asked(self, waiting: Waiting) -> _Asked:
        request = within_quota(self._ledger, waiting.request, waiting.lease.tenant)
        return request, waiting.lease.time_limit

    def _find(self, asked: _Asked, now: float) -> float | None:
        ending = self._endings(now)
        self._calendar.plans()  # they are of the pool as it is, and not of what is tried
        with Trial(self._ledger.index) as trial:
            if self._fits(asked, now, []):
                return now
            done, step = 0, 1
            while done < len(ending):
                # Twice as many each time, then back to the first that was enough.
                last = min(done + step, len(ending))
                for _, lease in ending[done:last]:
                    if lease is not None:
                        trial.end(lease)
                if self._fits(asked, ending[last - 1][0], ending[:last]):
                    return self._first(trial, asked, ending, done, last)
                done, step = last, 2 * step
        return None

    def _fits(self, asked: _Asked, at: float, over: list[_End]) -> bool:
        """Whether there is room at that time, beside what is reserved."""
        request, limit = asked
        gone = set[str]()
        if self._ledger.reservations:
            gone = {lease.id for _, lease in over if lease is not None}
        return isinstance(self._calendar.place(request, at, limit, gone), Placement)

    def _endings(self, now: float) -> list[_End]:
        if self._ending is None:
            live = self._ledger.leases.values()
            found: list[_End] = [
                (lease.latest_end, lease)
                for lease in live
                if lease.grants and lease.latest_end < math.inf
            ]
            found += [(time, None) for time in self._calendar.after(now)]
            self._ending = sorted(found, key=itemgetter(0))
        return self._ending

    def _first(self, trial: Trial, asked: _Asked, ending: list[_End], low: int, high: int) -> float:
        """The end of the first of these after which there is room; after ``high`` there is."""
        there, low = high, low + 1
        while low < high:
            middle = (low + high) // 2
            while there > middle:
                there -= 1
                if (lease := ending[there][1]) is not None:
                    trial.restore(lease)
            while there < middle:
                if (lease := ending[there][1]) is not None:
                    trial.end(lease)
                there += 1
            if self._fits(asked, ending[middle - 1][0], ending[:middle]):
                high = middle
            else:
                low = middle + 1
        return ending[high - 1][0]


@dataclass(slots=True)
class _Held:
    """Who has waited long for GPUs of the same kinds."""

    blockers: list[Waiting] = field(default_factory=list)
    #: Of so many the starts are known, and of whom the earliest is.
    known: int = 0
    first: Waiting | None = None
    earliest: float = math.inf


class Ahead:
    """Who goes first on one way through the queue: each start is looked for once at most."""

    def __init__(self, backfill: Backfill, now: float) -> None:
        self._backfill = backfill
        self._now = now
        self._held: dict[frozenset[Kind], _Held] = {}

    def add(self, waiting: Waiting) -> None:
        """It has waited so long that nobody behind may take what it could use."""
        self._held.setdefault(waiting.group.holds_back, _Held()).blockers.append(waiting)

    def blocker_of(self, waiting: Waiting) -> Waiting | None:
        """Who goes before a request; None: it may go, as it ends before they can begin."""
        for kinds, held in self._held.items():
            if kinds.isdisjoint(waiting.group.kinds):
                continue
            if waiting.lease.time_limit is None:
                return held.blockers[0]
            end = self._now + waiting.lease.time_limit
            self._look(held, end)
            if held.earliest < end:
                return held.first
        return None

    def _look(self, held: _Held, end: float) -> None:
        """Look for starts until one is before that end."""
        while held.earliest >= end and held.known < len(held.blockers):
            blocker = held.blockers[held.known]
            start = self._backfill.start_of(blocker, self._now)
            held.known += 1
            if start is None or start < held.earliest:
                held.first, held.earliest = blocker, -math.inf if start is None else start
