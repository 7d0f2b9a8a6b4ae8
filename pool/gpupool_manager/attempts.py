"""How often somebody may do what costs us: an address with a wrong token, a person who signs in."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from gpupool_common.hosts import limited_as

#: Of so many addresses at most is remembered what they did; the longest ago is forgotten.
MOST_ADDRESSES = 4096


class Attempts:
    """A few wrong tokens at once, then one a second."""

    def __init__(
        self,
        burst: int = 20,
        seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._seconds = seconds
        self._clock = clock
        #: By address: when all that it did is forgiven.
        self._until: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def too_many(self, address: str) -> bool:
        """Whether this address must wait before its next attempt."""
        ahead = self._until.get(limited_as(address), 0.0) - self._clock()
        return ahead > (self._burst - 1) * self._seconds

    def count(self, address: str) -> None:
        """One more."""
        now = self._clock()
        address = limited_as(address)
        self._until[address] = max(self._until.get(address, 0.0), now) + self._seconds
        self._until.move_to_end(address)
        while len(self._until) > MOST_ADDRESSES:
            self._until.popitem(last=False)
