"""Usage as bars: what was granted, and how much of that was really busy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

#: Of the drawing, in its own units.
HIGH = 100.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour or day of all tenants that are shown."""

    start: str
    granted: float
    busy: float
    granted_high: float
    busy_high: float


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def bars(rows: Iterable[Mapping[str, Any]], starts: Sequence[float]) -> list[Bar]:
    """One for each start, also where nothing was had."""
    granted, busy = dict.fromkeys(starts, 0.0), dict.fromkeys(starts, 0.0)
    for row in rows:
        start = datetime.fromisoformat(row["start"]).timestamp()
        if start in granted:
            granted[start] += row["gpu_hours"]
            busy[start] += row["busy_hours"]
    most = max([*granted.values(), *busy.values(), 1e-9])
    return [
        Bar(iso(s), granted[s], busy[s], HIGH * granted[s] / most, HIGH * busy[s] / most)
        for s in starts
    ]
