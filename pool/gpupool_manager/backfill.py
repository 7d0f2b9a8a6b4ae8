"""When what waits can begin, and who may go before it without making that later.

Only leases with a time limit say when their GPUs are free. Where enough of them do, a request that
has waited long has an expected start, and one that ends before may use the GPUs meanwhile.
"""

from __future__ import annotations

import math

from gpupool_manager.ledger import Ledger, within_quota
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.records import Lease
from gpupool_manager.scheduler import Placement, place
from gpupool_manager.trial import Trial
from gpupool_manager.waiting import Waiting


class Backfill:
    """Expected starts, known until leases come or go."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[PlacementRequest, float | None] = {}

    def forget(self) -> None:
        """Something has changed."""
        self._known.clear()

    def ends_before(self, lease: Lease, blocker: Waiting, now: float) -> bool:
        """Whether a request would be over when the one that it overtakes can begin."""
        if lease.time_limit is None:
            return False
        start = self.start_of(blocker, now)
        return start is not None and now + lease.time_limit <= start

    def start_of(self, waiting: Waiting, now: float) -> float | None:
        """When there is room for it if every lease lasts as long as it may; None: unknown."""
        request = within_quota(self._ledger, waiting.request, waiting.lease.tenant)
        if request not in self._known:
            self._known[request] = self._find(request, now)
        return self._known[request]

    def _find(self, request: PlacementRequest, now: float) -> float | None:
        ledger = self._ledger
        ending = [
            lease
            for lease in ledger.leases.values()
            if lease.grants and lease.latest_end < math.inf
        ]
        ending.sort(key=lambda lease: lease.latest_end)
        with Trial(ledger.index) as trial:
            if isinstance(place(ledger.index, request), Placement):
                return now
            done, step = 0, 1
            while done < len(ending):
                # Twice as many each time, then back to the first that was enough.
                for lease in ending[done : done + step]:
                    trial.end(lease)
                if isinstance(place(ledger.index, request), Placement):
                    last = min(done + step, len(ending))
                    return self._first(trial, request, ending[done:last])
                done, step = done + step, 2 * step
        return None

    def _first(self, trial: Trial, request: PlacementRequest, ended: list[Lease]) -> float:
        """The end of the first of these without those after which there is still room."""
        low, high = 1, len(ended)
        there = high
        while low < high:
            middle = (low + high) // 2
            while there > middle:
                there -= 1
                trial.restore(ended[there])
            while there < middle:
                trial.end(ended[there])
                there += 1
            if isinstance(place(self._ledger.index, request), Placement):
                high = middle
            else:
                low = middle + 1
        return ended[high - 1].latest_end
