"""Names for new things: in the order of time, unguessable only where that matters."""

from __future__ import annotations

import secrets
from collections.abc import Iterable


class Ids:
    """Rising names ``PREFIX-`` and 20 hexadecimal digits: milliseconds, a count, and chance."""

    def __init__(self, before: Iterable[str] = ()) -> None:
        self._last = max(map(_stamp, before), default=0)

    def make(self, prefix: str, now: float) -> str:
        """Greater than every name made before, even if the clock was set back."""
        stamp = max(int(now * 1000) << 12, self._last + 1)
        self._last = stamp
        return f"{prefix}-{stamp:015x}{secrets.randbits(20):05x}"


def _stamp(name: str) -> int:
    digits = name.rpartition("-")[2]
    try:
        return int(digits, 16) >> 20 if len(digits) == 20 else 0
    except ValueError:
        return 0
