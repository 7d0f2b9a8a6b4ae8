"""tests/outside: a test that fails, hangs or ends its process costs itself only."""

from __future__ import annotations

import gzip
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
OUTSIDE = HERE.parent / "outside"
sys.path.insert(0, str(OUTSIDE))

from crew import Crew, Task  # noqa: E402
from judging import Difference, judge, judge_soft  # noqa: E402
from records import END, NATIVE, Record, Results, parse  # noqa: E402
from telling import Order  # noqa: E402

#: A suite of one group, whose tests do what they are called.
SUITE = """
import os, sys, time
from telling import Skipped, run_one

def fine(): return "bits"
def bad(): raise ValueError("not so")
def bored(): raise Skipped("nothing to do")
def crash(): os.abort()
def hang(): time.sleep(1000)

def run(group, order, teller):
    teller.ready()
    if order.settings.get("leaves"):
        sys.exit("I leave")
    tests = dict(first=fine, bad=bad, crash=crash, bored=bored, hang=hang, last=fine)
    for name, body in tests.items():
        if order.wants(name):
            run_one(teller, name, body, lambda: not order.settings.get("sick"))
"""


def test_parts_of_a_group_are_all_of_it() -> None:
    names = [f"test_{number}" for number in range(100)]
    parts = [[n for n in names if Order(part=(i, 3)).wants(n)] for i in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(20 < len(part) < 50 for part in parts)


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    (tmp_path / "pretended.py").write_text(SUITE)
    return Crew(Results(), 2, time.monotonic() + 250, tmp_path)


def task(crew: Crew, way: str = NATIVE, only: Any = None, **settings: Any) -> Task:
    env = {**os.environ, "PYTHONPATH": str(crew.scratch)}
    return Task(
        suite="pretended",
        module="pretended",
        way=way,
        on="here",
        python=sys.executable,
        env=env,
        settings=settings,
        limit=5.0,
        start_limit=200.0,
        only=only,
    )


def outcomes(results: Results, way: str = NATIVE) -> dict[str, str]:
    tests = results.groups("pretended", way, "here")["group"]
    return {name: record.outcome for name, record in tests.items()}


EXPECTED = {
    "first": "passed",
    "bad": "failed",
    "crash": "crashed",
    "bored": "skipped",
    "hang": "hung",
    "last": "passed",
    END: "passed",
}


def test_each_test_has_an_outcome(crew: Crew) -> None:
    crew.run(task(crew), ["group"])
    assert outcomes(crew.results) == EXPECTED
    tests = crew.results.groups("pretended", NATIVE, "here")["group"]
    assert tests["first"].digest == "bits"
    assert tests["bad"].why == "ValueError: not so"
    assert tests["crash"].why.startswith("SIGABRT")


def test_behind_a_lost_context_another_process_goes_on(crew: Crew) -> None:
    crew.run(task(crew, sick=True), ["group"])
    assert outcomes(crew.results) == EXPECTED


def test_a_process_that_runs_nothing_is_given_up(crew: Crew) -> None:
    crew.run(task(crew, leaves=True), ["group"])
    assert outcomes(crew.results) == {END: "crashed"}
    assert crew.results.groups("pretended", NATIVE, "here")["group"][END].why == "I leave"


def test_only_what_is_wanted_runs(crew: Crew) -> None:
    crew.run(task(crew, only={"group": frozenset({"last"})}), ["group"])
    assert outcomes(crew.results) == {"last": "passed", END: "passed"}


def test_what_is_over_does_not_begin(crew: Crew) -> None:
    crew.deadline = time.monotonic()
    crew.run(task(crew), ["group"])
    assert crew.results.groups("pretended", NATIVE, "here") == {}


def test_a_later_run_does_what_is_missing(crew: Crew, tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    done = Record("pretended", NATIVE, "here", "group", "hang", "passed", digest="of old")
    Results().write_to(first).add(done)
    with first.open("a") as file:
        file.write('{"suite": "pretended", "way": "nat')  # it was cut off here
    merged = tmp_path / "merged.jsonl"
    crew.results = Results().read([first]).write_to(merged)
    crew.run(task(crew), ["group"])
    again = Results().read([merged])
    assert outcomes(again) == {**EXPECTED, "hang": "passed"}
    assert again.groups("pretended", NATIVE, "here")["group"]["hang"] == done


def test_results_are_there_until_they_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    Results().write_to(path).add(Record("s", NATIVE, "here", "g", "t", "passed"))
    before = path.read_bytes()
    monkeypatch.setattr(Results, "_write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Results().read([path]).write_to(path)
    assert path.read_bytes() == before


def test_what_did_not_pass_runs_again(crew: Crew) -> None:
    for test, outcome in (("first", "passed"), ("last", "failed"), (END, "passed")):
        crew.results.add(Record("pretended", NATIVE, "here", "group", test, outcome))
    crew.results.forget("pretended", NATIVE, "here")
    assert outcomes(crew.results) == {"first": "passed"}


def test_packed_results_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    Results().write_to(plain).add(Record("s", NATIVE, "here", "g", "t", "passed"))
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes() * 500)[:-9])
    assert Results().read([packed]).groups("s", NATIVE, "here")["g"]["t"].outcome == "passed"


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="no outcome"):
        parse('{"suite": "s", "outcome": "splendid"}\n')


def filled(ours: dict[str, tuple[str, str]]) -> Results:
    """Four tests that passed natively, and what came of them through the pool."""
    results = Results()
    for test in ("a", "b", "c", "d"):
        results.add(Record("s", NATIVE, "card", "g", test, "passed", digest="bits"))
    results.add(Record("s", NATIVE, "card", "g", "e", "failed"))
    for test, (outcome, digest) in ours.items():
        results.add(Record("s", "shm", "commit", "g", test, outcome, digest=digest))
    return results


def test_the_verdict_on_a_suite() -> None:
    results = filled({"a": ("passed", "bits"), "b": ("passed", "other"), "c": ("failed", "")})
    known = [Difference("s", "g::c", "for a reason", ways=("shm",))]
    verdict = judge(results, "s", "shm", "card", "commit", known)
    assert (verdict.native, verdict.same, verdict.missing) == (4, 1, ["g::d"])
    assert [record.test for record in verdict.differs] == ["b"]
    assert [(record.test, why) for record, why in verdict.known] == [("c", "for a reason")]


def test_a_result_without_bits_is_the_same_if_it_passed() -> None:
    results = filled({test: ("passed", "") for test in ("a", "b", "c", "d")})
    assert judge(results, "s", "shm", "card", "commit", []).same == 4


@pytest.mark.parametrize(
    "entry",
    [
        Difference("s", "g::c", "", ways=("tcp",)),
        Difference("other", "g::c", ""),
        Difference("s", "g::d", ""),
        Difference("s", "g::c", "", driver="soft"),
    ],
)
def test_a_reason_for_something_else_does_not_count(entry: Difference) -> None:
    results = filled({"c": ("failed", "")})
    assert len(judge(results, "s", "shm", "card", "commit", [entry]).differs) == 1


def test_on_the_soft_gpu_every_test_passes_or_is_listed() -> None:
    results = filled({"a": ("passed", ""), "b": ("skipped", ""), "c": ("hung", "")})
    verdict = judge_soft(results, "s", "shm", "commit", [])
    assert (verdict.same, [record.test for record in verdict.differs]) == (2, ["c"])
    listed = [Difference("s", "g::c", "slow", driver="soft")]
    assert judge_soft(results, "s", "shm", "commit", listed).differs == []
