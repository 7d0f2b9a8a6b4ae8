"""bench/flood.py: every budget has a flood, and the figures are what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import flood

from gpupool_common.budgets import TenantBudgets


def test_every_budget_is_flooded() -> None:
    pressed = {name for kind in flood.PRESSES for name in flood.PRESSES[kind]}
    assert pressed == set(TenantBudgets.model_fields)
    assert set(flood.PRESSES) < set(flood.KINDS)
    assert {"questions", "connections", "messages"} < set(flood.KINDS)
    assert not set(flood.ASKERS) & set(flood.HOARDS)


def turn(quiet: float, beside: float, after: float) -> dict[str, Any]:
    def told(p99: float) -> dict[str, float]:
        return {"p50_us": p99 / 2, "p99_us": p99}

    return {"quiet": told(quiet), "flood": told(beside), "after": told(after), "refused": 7}


def test_each_flood_is_compared_with_the_quiet_around_it() -> None:
    found = flood.summary([turn(90, 100, 110), turn(100, 300, 100), turn(200, 240, 200)])
    assert (found["p99_ratio_least"], found["p99_ratio"], found["p99_ratio_most"]) == (1, 1.2, 3)
    assert (found["quiet_p99_us"], found["flood_p99_us"]) == (100, 240)
    assert found["refused"] == 7
    head, line, median, worst = flood.table({"disk": found})
    (now, beside) = ("100", "us", "240", "us"), ("1.20", "1.00..3.00", "1.20", "7", "3")
    assert line.split() == ["disk", *now, *beside]
    assert max(len(head), len(line)) <= 80
    assert (median, worst) == (
        "most by the median: disk 1.20",
        "most by the worst round: disk 3.00",
    )
    (_, over, *_) = flood.table({"disk": flood.summary([turn(100, 151, 100)])})
    assert over.endswith("over 1.5")


def test_what_is_said_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--rounds", "0"], ["--seconds", "0"], ["--floods", "sun"], ["--rounds", "x"]):
        monkeypatch.setattr(sys, "argv", ["flood.py", *words])
        with pytest.raises(SystemExit):
            flood.read_arguments()
    monkeypatch.setattr(sys, "argv", ["flood.py", "--json"])
    given = flood.read_arguments()
    # So many measurements, two for each flood and the wait before it, take less than five minutes.
    assert given.rounds * len(given.floods) * (2 * given.seconds + 0.5) < 200
