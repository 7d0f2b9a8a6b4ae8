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
    assert "said beside" in capsys.readouterr().out


def test_rows_come_back_as_they_were_written(stages: Any, tmp_path: Path) -> None:
    rows = [stages.Row("c", stages.Count(3, 2, 1), 0.5)]
    stages.write_rows(tmp_path / "rows", rows)
    assert stages.read_rows(tmp_path / "rows") == rows


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
