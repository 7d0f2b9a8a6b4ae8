""".ci/test.py: what computes runs beside what waits, and beside nothing else."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "test.py"

#: Stands for .ci/test.py where it is started for the lane beside: its counts are made up.
LANE = """
import json, pathlib, sys, time
path = pathlib.Path(sys.argv[sys.argv.index("--rows") + 1])
rows = [{"name": "lint", "count": {"passed": 2, "failed": 0, "skipped": 1}, "seconds": 1.5}]
"""


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("ci_stages", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setitem(sys.modules, "ci_stages", module)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lane(stages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a program in the place of the one that runs the stages beside."""

    def put(rest: str) -> None:
        program = tmp_path / "lane.py"
        program.write_text(LANE + rest)
        monkeypatch.setattr(stages, "__file__", str(program))

    return put


def test_every_stage_is_in_one_lane(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []

    class NoLane:
        def __init__(self, place: Any, names: Any) -> None:
            begun.append(["beside", *names])

        def rows(self) -> list[Any]:
            begun.append(["over"])
            return []

        def end(self) -> None:
            begun.append(["end"])

    def run(place: Any, names: Any) -> list[Any]:
        begun.append(list(names))
        return []

    monkeypatch.setattr(stages, "Beside", NoLane)
    monkeypatch.setattr(stages, "run_stages", run)
    stages.run_all(None)
    lanes, (waiting, *rest) = begun[:2], begun[2:]
    assert [lane.pop(0) for lane in lanes] == ["beside"] * 2
    assert rest == [["over"]] * 2 + [["end"]] * 2 + [["alone"]]
    assert sorted([*lanes[0], *lanes[1], *waiting, "alone"]) == sorted(stages.STAGES)


def test_what_ran_beside_is_told_and_counted(
    stages: Any, tmp_path: Path, lane: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lane("print('said beside', flush=True); path.write_text(json.dumps(rows))")
    beside = stages.Beside(stages.Place(tmp_path, 2), ["lint", "threads"])
    lint, threads = beside.rows()
    assert (lint.name, lint.count.passed, lint.count.skipped) == ("lint", 2, 1)
    assert (threads.name, threads.count.failed) == ("threads", 1)  # of which it told nothing
    assert threads.count.failures == ["the lane ended with 0\nsaid beside"]
    assert "said beside" in capsys.readouterr().out


def test_rows_come_back_as_they_were_written(stages: Any, tmp_path: Path) -> None:
    rows = [stages.Row("c", stages.Count(3, 1, 1, ["test_ring\nit hung"]), 0.5)]
    stages.write_rows(tmp_path / "rows", rows)
    assert stages.read_rows(tmp_path / "rows") == rows


#: As pytest writes it, and as ctest does.
REPORT = """<testsuites>
<testcase classname="tests.e2e.test_tcp" name="test_far[tcp]" time="1">
<failure message="AssertionError: exit code 1&#10;&#10;gpupool: server lost">where</failure>
</testcase>
<testcase classname="tests.e2e.test_tcp" name="test_near" time="1"/>
<testcase name="test_ring" classname="test_ring" status="fail"><failure message="Failed"/>
<system-out>[ RUN      ] wraps
[  ERROR   ] --- 1 != 2
[   LINE   ] --- ring.c:9: error: Failure!
[  FAILED  ] wraps
[ RUN      ] empties</system-out></testcase>
</testsuites>"""


def test_failed_tests_are_named_from_reports(stages: Any, tmp_path: Path) -> None:
    report = tmp_path / "pytest-e2e.xml"
    report.write_text(REPORT)
    count = stages.read_junit(report, False)
    assert (count.passed, count.failed) == (1, 2)
    far, ring = (failure.splitlines() for failure in count.failures)
    assert far[0] == "tests.e2e.test_tcp.test_far[tcp]"
    assert far[1:] == ["AssertionError: exit code 1", "gpupool: server lost"]
    assert ring[0] == "test_ring"
    assert ring[1:] == [
        "[  ERROR   ] --- 1 != 2",
        "[   LINE   ] --- ring.c:9: error: Failure!",
        "[  FAILED  ] wraps",
    ]
    lost = stages.read_junit(tmp_path / "none.xml", False)
    assert lost.failures == ["no test of none.xml failed, but the run did"]


def test_a_check_that_fails_is_told_with_its_last_words(
    stages: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('begun'); sys.exit('SUMMARY: ThreadSanitizer: data race ring.c:7')"
    count = stages.check([sys.executable, "-c", program], name="races")
    assert (count.passed, count.failed) == (0, 1)
    report = "SUMMARY: ThreadSanitizer: data race ring.c:7"
    assert count.failures == [f"races: exit code 1\n{report}"]
    assert capsys.readouterr().out == f"+ races\nbegun\n{report}\n"
    assert stages.check([sys.executable, "-c", "print(1)"]) == stages.Count(passed=1)


def test_the_end_names_what_failed_and_is_short(stages: Any) -> None:
    words = ["first", "second", "third", "x" * 1000]
    named = [stages.failure(f"check {number}", words) for number in range(12)]
    one = stages.Row("threads", stages.Count(2, 1, 0, named[:1]), 1.0)
    end = stages.summary([one]).splitlines()
    assert end[2:6] == ["failed in threads: check 0", "    first", "    second", "    third"]
    assert end[-1] == "2 passed, 1 failed"
    many = stages.summary([stages.Row("e2e", stages.Count(0, 12, 0, named), 1.0)]).splitlines()
    assert many[2:] == [
        *(f"failed in e2e: check {number}" for number in range(10)),
        "and 2 more",
        "0 passed, 12 failed",
    ]
    assert max(map(len, [*end, *many])) <= 160


def test_the_lane_ends_with_the_run(
    stages: Any, tmp_path: Path, lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane("path.write_text('[]'); time.sleep(600)")
    groups: list[int] = []
    begin = stages.Beside

    def begin_lane(place: Any, names: Any) -> Any:
        groups.append((made := begin(place, names)).process.pid)
        while not made.file.exists():
            time.sleep(0.01)
        return made

    def interrupted(place: Any, names: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "Beside", begin_lane)
    monkeypatch.setattr(stages, "hear_signals", lambda: None)
    monkeypatch.setattr(stages, "run_stages", interrupted)
    monkeypatch.setattr(sys, "argv", ["test.py", "--build", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        stages.main()
    with pytest.raises(ProcessLookupError):
        os.killpg(groups[0], 0)
