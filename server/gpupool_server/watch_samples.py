"""What samples of a GPU can say of a process's time, and what may be chance."""

from __future__ import annotations

import math

#: An honest tenant is found so far beyond its turns with a chance of e to the power of minus this,
#: by Chernoff's bound: one in 65 million.
CERTAIN = 18.0

#: So many samples in a row may be of the same part of a round of turns, and then say no more than
#: one: two tenants with half the time each were seen five to eight times in a row. Where rounds are
#: as regular as samples are, it may be more: nobody is ended for that.
ALIKE = 12

#: Samples are judged over the settings' time, and over so many times as much: the less work there
#: is beside a tenant's turns, the more of them it takes.
STRETCHES = (1, 4, 16, 64)

#: But over no more than so many seconds: every look in that time is kept.
LONGEST_SECONDS = 640


def stretches_of(seconds: int) -> tuple[int, ...]:
    """How many times the settings' ``seconds`` samples are judged over; the first is once."""
    return tuple(each for each in STRETCHES if each == 1 or each * seconds <= LONGEST_SECONDS)


def may_be_chance(moments: int, granted: float, seen: float) -> bool:
    """Whether who has the part ``granted`` of the time may be seen at the part ``seen`` of moments.

    NVML looks at a moment, five or six times a second, whose work is on a GPU, and counts all of
    the time around it as that process's (measured on an H100, driver 580). ``moments``: so often
    it has looked; 0: time was measured, not sampled.
    """
    granted, seen = min(granted, 1.0), min(seen, 1.0)
    if not moments or granted <= 0:
        return False
    if seen <= granted:
        return True
    distance = seen * math.log(seen / granted)
    if seen < 1:
        distance += (1 - seen) * math.log((1 - seen) / (1 - granted))
    return distance * moments / ALIKE < CERTAIN
