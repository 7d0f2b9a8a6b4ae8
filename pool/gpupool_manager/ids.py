"""Names for new things: in the order of time, and not to be guessed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

#: 32 digits, in order, without those that people take for others.
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
#: How many there are of them, and how many of their bits are chance.
LENGTH, CHANCE = 20, 56


class Ids:
    """Rising names ``PREFIX-`` and 20 digits: 44 bits of milliseconds, then 56 of chance."""

    def __init__(self, before: Iterable[str] = ()) -> None:
        self._last = max(map(_stamp, before), default=0)

    def make(self, prefix: str, now: float) -> str:
        """Greater than every name made before, even if the clock was set back."""
        stamp = max(int(now * 1000), self._last + 1)
        self._last = stamp
        return f"{prefix}-{_write(stamp << CHANCE | secrets.randbits(CHANCE))}"


def _write(number: int) -> str:
    return "".join(DIGITS[number >> 5 * place & 31] for place in reversed(range(LENGTH)))


def _stamp(name: str) -> int:
    digits = name.rpartition("-")[2]
    if len(digits) != LENGTH or not set(digits) <= set(DIGITS):
        return 0
    number = 0
    for digit in digits:
        number = number << 5 | DIGITS.index(digit)
    return number >> CHANCE
