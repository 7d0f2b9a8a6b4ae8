"""Where the time of a gang's windows went, from the moments at which steps ended.

A gang with half of each GPU has the first half of each period of 60 ms of the machine's clock, and
begins and ends up to a quarter of that earlier or later. Of each window: when its first step began
and its last one ended, from the window's own beginning and end on; what its steps took longer than
alone; and when its neighbours' last step before it ended, from its beginning on. That is what the
second of two GPUs makes the first one wait for: a window opens when the later neighbour has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

PERIOD, WINDOW = 0.060, 0.030
#: By how much it may begin or end earlier or later, and more.
ASIDE = 0.015

Report = dict[str, Any]


def read_times(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()]


def windows(job: list[float], others: list[list[float]], moments: Sequence[float]) -> Report:
    """Moments: the job is alone between the first two, and together between the last two."""
    alone = between(job, *moments[:2])
    step = median(b - a for a, b in zip(alone, alone[1:], strict=False))
    first, last = (int(moment // PERIOD) + 1 for moment in moments[2:4])
    rows = [row for number in range(first, last - 1) if (row := window(number, job, others, step))]
    return {"step": round(step * 1e3, 3), "periods": last - 1 - first, "each": rows}


def window(number: int, job: list[float], others: list[list[float]], step: float) -> Report | None:
    begin = number * PERIOD
    steps = between(job, begin - ASIDE, begin + PERIOD - ASIDE)
    before = [between(times, begin - WINDOW, begin + ASIDE) for times in others]
    if not steps:
        return None
    took = steps[-1] - steps[0]
    return {
        "began": ms(steps[0] - step - begin),
        "ended": ms(steps[-1] - begin - WINDOW),
        "steps": len(steps),
        "lost between steps": ms(took - (len(steps) - 1) * step),
        "neighbours ended": [ms(times[-1] - begin) if times else None for times in before],
    }


def describe(found: Report) -> list[str]:
    """Medians, and the nine in ten below."""
    each = found["each"]
    lines = [
        f"a step is {found['step']} ms alone; steps in {len(each)} of {found['periods']} windows"
    ]
    for key in ("began", "ended", "steps", "lost between steps"):
        lines.append(f"{key}: {summary([row[key] for row in each])}")
    for place in range(2):
        ends = [row["neighbours ended"][place] for row in each]
        lines.append(
            f"neighbour {place} ended: {summary([end for end in ends if end is not None])}"
        )
    return lines


def summary(values: list[float]) -> str:
    if not values:
        return "never"
    ordered = sorted(values)
    low, high = (ordered[int(part * (len(ordered) - 1))] for part in (0.1, 0.9))
    return f"{median(ordered)} ({low} to {high})"


def between(times: list[float], begin: float, end: float) -> list[float]:
    return [moment for moment in times if begin <= moment < end]


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
