"""Names for new things: in the order of time, unguessable only where that matters."""

from __future__ import annotations

import secrets


class Ids:
    """Rising names ``PREFIX-`` and 20 hexadecimal digits: milliseconds, a count, and chance."""

    def __init__(self) -> None:
        self._last = 0

    def make(self, prefix: str, now: float) -> str:
        """Greater than every name made before, even if the clock was set back."""
        stamp = max(int(now * 1000) << 12, self._last + 1)
        self._last = stamp
        return f"{prefix}-{stamp:015x}{secrets.randbits(20):05x}"
