"""Names for new things: in the order of time, and not to be guessed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

#: Hexadecimal digits of time and count, and of chance. With ``lease-`` a name has 32
#: characters, the most that servers take for a group.
STAMP, CHANCE = 12, 14


class Ids:
    """Rising names ``PREFIX-``: milliseconds and a count, then 56 bits of chance."""

    def __init__(self, before: Iterable[str] = ()) -> None:
        self._last = max(map(_stamp, before), default=0)

    def make(self, prefix: str, now: float) -> str:
        """Greater than every name made before, even if the clock was set back."""
        stamp = max(int(now * 1000) << 4, self._last + 1)
        self._last = stamp
        return f"{prefix}-{stamp:0{STAMP}x}{secrets.randbits(4 * CHANCE):0{CHANCE}x}"


def _stamp(name: str) -> int:
    digits = name.rpartition("-")[2]
    try:
        return int(digits, 16) >> 4 * CHANCE if len(digits) == STAMP + CHANCE else 0
    except ValueError:
        return 0
