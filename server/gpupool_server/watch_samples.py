"""What a driver's looks at moments can say of a process's time, and what may be chance."""

from __future__ import annotations

import math

#: An honest tenant is found so far beyond what it may have with a chance of e to the power of minus
#: this, by Chernoff's bound: one in 65 million.
CERTAIN = 18.0

#: An honest tenant may be found outside of its turns in so many of all looks, since some work of
#: drivers asks for no turn: on an H100 in one of thirty, of one program that made and ended
#: contexts all the time, and again in one of thirty of eight such programs.
STRAY = 0.08

#: Looks are judged over the settings' time, and over so many times as much: the less of its time a
#: liar takes, the more of them it needs.
STRETCHES = (1, 4, 16, 64)

#: But over no more than so many seconds: a server remembers that, and what is older is forgiven.
LONGEST_SECONDS = 640


def stretches_of(seconds: int) -> tuple[int, ...]:
    """How many times the settings' ``seconds`` looks are judged over; the first is once."""
    return tuple(each for each in STRETCHES if each == 1 or each * seconds <= LONGEST_SECONDS)


def may_be_chance(looks: int, outside: float) -> bool:
    """Whether so many ``looks`` may find an honest one at work outside of its turns in that part of
    them."""
    seen = min(outside, 1.0)
    if seen <= STRAY:
        return True
    distance = seen * math.log(seen / STRAY)
    if seen < 1:
        distance += (1 - seen) * math.log((1 - seen) / (1 - STRAY))
    return distance * looks < CERTAIN
