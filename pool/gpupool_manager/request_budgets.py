"""How many requests a tenant may make: so many a second, and ten seconds' worth at once.

Who has a valid token is past all other limits, and one that asks without end would keep the
manager from everybody else. Operators' tokens are not limited.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: Bytes of answers that count as one more request: long lists and pages take the most time.
ANSWER_BYTES = 16 << 10

#: GPUs that were looked at, one by one, which count as one more.
LOOKED_GPUS = 256

#: So many seconds' worth may be asked at once.
BURST_SECONDS = 10.0

#: Of so many tenants it is remembered; of the one that asked the longest ago it is forgotten.
MOST_TENANTS = 4096


@dataclass(slots=True)
class _Budget:
    left: float
    since: float
    refused: int = 0


class RequestBudgets:
    """One for each tenant that has asked lately."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._most = max(1.0, rate * BURST_SECONDS)
        self._clock = clock
        self._tenants: OrderedDict[str, _Budget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tenants)

    def spend(self, tenant: str) -> bool:
        """Take one of a tenant's requests; False: it has none left."""
        now = self._clock()
        budget = self._tenants.setdefault(tenant, _Budget(self._most, now))
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        budget.left = min(self._most, budget.left + (now - budget.since) * self.rate)
        budget.since = now
        if budget.left < 1:
            budget.refused += 1
            return False
        budget.left -= 1
        return True

    def answered(self, tenant: str, bytes: int, gpus: int = 0) -> None:
        """A tenant was sent so much, for which so many GPUs were looked at.

        What that is beyond what it has left is a debt.
        """
        budget = self._tenants.get(tenant)
        if budget is not None:
            budget.left -= bytes // ANSWER_BYTES + gpus // LOOKED_GPUS

    def refused(self) -> dict[str, int]:
        """How many requests of each tenant were refused."""
        return {name: each.refused for name, each in self._tenants.items()}
