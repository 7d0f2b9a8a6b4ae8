"""The bench of the queue's orders: the same day for each, and figures that can be."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from queue_orders import WAYS, Day, jain, trace  # noqa: E402

GPUS, HOURS = 512, 4.0


def test_a_trace_is_its_seeds() -> None:
    once, again, other = (trace(GPUS, HOURS, 1.5, seed) for seed in (1, 1, 2))
    assert once == again != other
    assert all(before.at <= after.at for before, after in pairwise(once))
    assert {job.gpus for job in once} == {1, 2, 4, 8, 16, 32, 64}
    assert len({job.tenant for job in once}) == 8


def test_what_is_lent_is_used_and_waits_are_shorter() -> None:
    found = {}
    for way in WAYS:
        if way.quotas:
            day = Day(way, GPUS, HOURS, trace(GPUS, HOURS, 3.0, 1))
            day.run()
            found[way.name] = day.figures()
            assert 0.0 < found[way.name]["utilisation"] <= 1.0
            assert all(job.left >= -1e-6 for job in day.jobs)
    kept, lent = found["strict, quotas"], found["fair, quotas lent"]
    assert lent["utilisation"] > kept["utilisation"]
    assert lent["wait_mean_min"] < kept["wait_mean_min"]
    assert kept["reclaims"] == 0 < lent["reclaims"]


def test_jains_index() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
