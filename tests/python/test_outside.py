"""tests/outside: a test that fails, hangs or ends its process costs itself only."""

from __future__ import annotations

import gzip
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
OUTSIDE = HERE.parent / "outside"
sys.path.insert(0, str(OUTSIDE))

from crew import Crew, Job, Task  # noqa: E402
from judging import Difference, judge, judge_soft, tally  # noqa: E402
from planning import Plan, Suite  # noqa: E402
from pytest_files import last_line  # noqa: E402
from records import COUNT, END, NATIVE, Record, Results, halves, left_of, parse  # noqa: E402
from telling import Order  # noqa: E402

#: A suite whose tests do what they are called.
SUITE = """
import os, sys, time
from telling import Skipped, run_all

def fine(): return "bits"
def slow(): time.sleep(0.2); return "bits"
def bad(): raise ValueError("not so")
def bored(): raise Skipped("nothing to do")
def crash(): os.abort()
def hang(): time.sleep(1000)
def who(): return str(os.getpid())
def where(): return os.environ["WAY"]

MIXED = dict(first=fine, bad=bad, crash=crash, bored=bored, hang=hang, last=fine)

def groups(settings):
    return list(settings["groups"])

def run(order, teller):
    if order.settings.get("leaves"):
        sys.exit("I leave")
    if order.group == "mixed":
        tests = MIXED
    else:
        body = {"long": slow, "where": where}.get(order.group, who)
        tests = {f"{order.group}_{number}": body for number in range(12)}
    run_all(teller, order, tests, lambda: not order.settings.get("sick"))
    if order.settings.get("ends_badly"):
        import atexit
        atexit.register(os._exit, 3)
"""


def test_parts_of_a_group_are_all_of_it() -> None:
    names = [f"test_{number}" for number in range(100)]
    parts = [[n for n in names if Order(part=(i, 3)).wants(n)] for i in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(20 < len(part) < 50 for part in parts)


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    (tmp_path / "pretended.py").write_text(SUITE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pretended", raising=False)
    return Crew(Results(), 2, time.monotonic() + 250, tmp_path)


def task(crew: Crew, way: str = NATIVE, **settings: Any) -> Task:
    env = {**os.environ, "PYTHONPATH": str(crew.scratch), "WAY": way}
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
    )


def plan(crew: Crew, ways: tuple[str, ...], groups: tuple[str, ...], **more: Any) -> Plan:
    settings = {"groups": groups, "not_tests": ["mixed::hang"]}
    suite = Suite("pretended", "pretended", settings, 5.0, native_on="here")
    suite.tasks = {way: task(crew, way, **settings) for way in ways}
    return Plan(crew.results, [suite], **more)


def records_of(results: Results, group: str, way: str = NATIVE) -> dict[str, Record]:
    return results.groups("pretended", way, "here")[group]


def outcomes(results: Results, way: str = NATIVE) -> dict[str, str]:
    tests = records_of(results, "mixed", way)
    return {name: record.outcome for name, record in tests.items() if name != COUNT}


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
    crew.run([Job(task(crew), "mixed")])
    assert outcomes(crew.results) == EXPECTED
    tests = records_of(crew.results, "mixed")
    assert tests["first"].digest == "bits"
    assert tests["bad"].why == "ValueError: not so"
    assert tests["crash"].why.startswith("SIGABRT")
    assert tests[COUNT].tests == 6


def test_behind_a_lost_context_another_process_goes_on(crew: Crew) -> None:
    crew.run([Job(task(crew, sick=True), "mixed")])
    assert outcomes(crew.results) == EXPECTED


def test_a_process_that_runs_nothing_is_given_up(crew: Crew) -> None:
    crew.run([Job(task(crew, leaves=True), "mixed")])
    assert outcomes(crew.results) == {END: "crashed"}
    assert records_of(crew.results, "mixed")[END].why == "I leave"


def test_only_what_is_wanted_runs(crew: Crew) -> None:
    crew.run([Job(task(crew), "mixed", only=frozenset({"last"}))])
    assert outcomes(crew.results) == {"last": "passed", END: "passed"}


def test_what_must_not_run_does_not(crew: Crew) -> None:
    crew.run([Job(task(crew, not_tests=["mixed::*a*", "other::last"]), "mixed")])
    assert outcomes(crew.results) == {"first": "passed", "bored": "skipped", END: "passed"}


def processes_of(results: Results) -> set[str]:
    groups = results.groups("pretended", NATIVE, "here").values()
    return {each.digest for tests in groups for each in tests.values() if each.digest}


@pytest.mark.parametrize(("alone", "processes"), [(False, 1), (True, 3)])
def test_a_process_runs_one_group_after_the_other(crew: Crew, alone: bool, processes: int) -> None:
    crew.processes = 1
    by = replace(task(crew), alone=alone)
    crew.run([Job(by, group) for group in ("a", "b", "c")])
    assert len(processes_of(crew.results)) == processes
    assert all(END in records_of(crew.results, group) for group in ("a", "b", "c"))


def test_how_a_process_ends_is_told_of_its_last_group(crew: Crew) -> None:
    crew.processes = 1
    by = task(crew, ends_badly=True)
    crew.run([Job(by, group) for group in ("a", "b")])
    ends = [records_of(crew.results, group)[END] for group in ("a", "b")]
    assert [(end.outcome, end.why) for end in ends] == [
        ("passed", ""),
        ("crashed", "exit code 3: "),
    ]


def test_what_a_slice_leaves_is_run_in_halves(crew: Crew) -> None:
    made = plan(crew, (NATIVE,), ("long",), slice=0.1)
    crew.run(made.jobs(), made.follow)
    tests = records_of(crew.results, "long")
    assert {f"long_{number}" for number in range(12)} < set(tests)
    assert END not in tests
    assert left_of((1, 1), tests) == []


def test_what_passed_runs_through_the_pool_before_anything_else(crew: Crew) -> None:
    crew.processes = 1
    order: list[tuple[str, str]] = []
    made = plan(crew, (NATIVE, "shm"), ("mixed", "a"))
    follow = made.follow

    def noted(job: Job, left: bool) -> Any:
        order.append((job.task.way, job.group))
        now, later = follow(job, left)
        return [each for each in now if not each.again], later

    crew.run(made.jobs(), noted)
    assert order == [(way, group) for group in ("mixed", "a") for way in (NATIVE, "shm")]
    assert outcomes(crew.results, "shm") == {"first": "passed", "last": "passed", END: "passed"}


@pytest.mark.parametrize(("group", "same"), [("who", 12), ("where", 0)])
def test_bits_that_differ_natively_as_well_say_nothing(crew: Crew, group: str, same: int) -> None:
    """Of `who` each process has other bits, of `where` each way."""
    crew.processes = 1
    made = plan(crew, (NATIVE, "shm"), (group,))
    crew.run(made.jobs(), made.follow)
    verdict = judge(crew.results, "pretended", "shm", "here", "here", [])
    assert (verdict.same, len(verdict.differs)) == (same, 12 - same)


def test_a_later_run_begins_with_what_has_no_pair(crew: Crew) -> None:
    for test in ("b_0", "b_1"):
        crew.results.add(Record("pretended", NATIVE, "here", "b", test, "passed"))
    crew.results.add(Record("pretended", "shm", "here", "b", "b_0", "passed"))
    first, *rest = plan(crew, (NATIVE, "shm"), ("a", "b")).jobs()
    assert (first.task.way, first.group, first.only) == ("shm", "b", frozenset({"b_1"}))
    assert [(job.task.way, job.group) for job in rest] == [(NATIVE, "a"), (NATIVE, "b")]


def test_a_way_may_run_some_slices_only(crew: Crew) -> None:
    groups = tuple(f"group-{number}" for number in range(40))
    for group in groups:
        crew.results.add(Record("pretended", NATIVE, "here", group, "t", "passed"))
    ways = (NATIVE, "shm", "tcp")
    jobs = [job.task.way for job in plan(crew, ways, groups, some={"tcp": 4}).jobs()]
    assert jobs.count("shm") == jobs.count(NATIVE) == 40
    assert 3 <= jobs.count("tcp") <= 20


def test_counting_runs_no_test(crew: Crew) -> None:
    made = plan(crew, (NATIVE,), ("a", "mixed"))
    crew.run(made.counts())
    assert [set(records_of(crew.results, group)) for group in ("a", "mixed")] == [{COUNT}] * 2
    assert list(made.counts()) == []
    line = tally(crew.results, "pretended", NATIVE, "here", ["a", "mixed", "unseen"])
    assert line.split(maxsplit=2)[2] == "0 of 18 in 2 of 3 groups: none"


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ([], [(1, 1)]),
        (["(end)"], []),
        (["(end 1/2)"], [(2, 2)]),
        (["(end 2/2)", "(end 1/4)"], [(3, 4)]),
        (["(end 1/2)", "(end 2/2)"], []),
        (["(end 1/3)"], [(1, 1)]),
        (["(count)", "(end_of)"], [(1, 1)]),
    ],
)
def test_what_is_left_of_a_group(ends: list[str], left: list[tuple[int, int]]) -> None:
    assert left_of((1, 1), ends) == left


def test_halves_of_a_part_are_all_of_it() -> None:
    names = [f"test_{number}" for number in range(100)]
    for part in ((1, 1), (2, 3), (4, 4)):
        whole = [name for name in names if Order(part=part).wants(name)]
        both = [name for half in halves(part) for name in names if Order(part=half).wants(name)]
        assert sorted(both) == sorted(whole)


def test_what_is_over_does_not_begin(crew: Crew) -> None:
    crew.deadline = time.monotonic()
    crew.run([Job(task(crew), "mixed")])
    assert crew.results.groups("pretended", NATIVE, "here") == {}


def test_a_later_run_does_what_is_missing(crew: Crew, tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    done = Record("pretended", NATIVE, "here", "mixed", "hang", "passed", digest="of old")
    Results().write_to(first).add(done)
    with first.open("a") as file:
        file.write('{"suite": "pretended", "way": "nat')  # it was cut off here
    merged = tmp_path / "merged.jsonl"
    crew.results = Results().read([first]).write_to(merged)
    crew.run([Job(task(crew), "mixed")])
    again = Results().read([merged])
    assert outcomes(again) == {**EXPECTED, "hang": "passed"}
    assert records_of(again, "mixed")["hang"] == done


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
        crew.results.add(Record("pretended", NATIVE, "here", "mixed", test, outcome))
    crew.results.forget("pretended", NATIVE, "here")
    assert outcomes(crew.results) == {"first": "passed"}


def test_packed_results_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    Results().write_to(plain).add(Record("s", NATIVE, "here", "g", "t", "passed"))
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes() * 500)[:-9])
    assert Results().read([packed]).groups("s", NATIVE, "here")["g"]["t"].outcome == "passed"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            ">   assert f() == 1\nE   assert 0 == 1\nE    +  where 0 = f()\n\na/test_x.py:12: No",
            "assert 0 == 1 (test_x.py:12)",
        ),
        ("E   ValueError: no\n<frozen>", "ValueError: no"),
        ("SyntaxError: bad\nthe end", "SyntaxError: bad"),
        ("", ""),
    ],
)
def test_a_failure_says_what_and_where(text: str, told: str) -> None:
    assert last_line(text) == told


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
