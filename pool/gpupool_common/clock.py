"""The time of day for things that must not end because somebody sets a clock."""

from __future__ import annotations

import time
from collections.abc import Callable


def since_boot() -> float:
    """Seconds that have passed since the machine was started, asleep or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Seconds since 1970: the wall clock, read once, and what has passed since then.

    Steps of the wall clock, by an operator or a time server, are not followed: what was to last
    for an hour lasts for an hour. The next process reads the wall clock again.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = since_boot,
    ) -> None:
        self._wall = wall
        self._passed = passed
        self._offset = wall() - passed()

    def __call__(self) -> float:
        return self._offset + self._passed()

    def not_before(self, when: float) -> float:
        """Go on from ``when`` if it is not that late yet; how many seconds that is ahead."""
        ahead = max(0.0, when - self())
        self._offset += ahead
        return ahead

    @property
    def stepped(self) -> float:
        """By how many seconds the wall clock is ahead of this one."""
        return self._wall() - self()
