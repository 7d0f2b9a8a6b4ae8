""".ci/test.py: the sanitized builds are beside tests that wait, and beside nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "test.py"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("ci_stages", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci_stages", module)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def build(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", str(seconds)], start_new_session=True)


def test_what_runs_alone_waits_for_the_builds(
    stages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stages.Place(tmp_path, 2)
    place.builds.process = builds = build(0.5)
    running: dict[str, bool] = {}

    def pytest_of(place: Any, folder: str, *options: str, name: str = "") -> Any:
        running[name] = builds.poll() is None
        return stages.Count(passed=1)

    monkeypatch.setattr(stages, "pytest", pytest_of)
    stages.stage_e2e(place)
    assert running["alone"] is False


def test_builds_end_with_the_run(
    stages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def begin(place: Any) -> None:
        place.builds.process = build(600)
        begun.append(place.builds.process)

    def interrupted(place: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "begin_builds", begin)
    monkeypatch.setattr(stages, "hear_signals", lambda: None)
    monkeypatch.setattr(stages, "STAGES", {"python": interrupted})
    monkeypatch.setattr(sys, "argv", ["test.py", "--build", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        stages.main()
    assert begun[0].returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(begun[0].pid, 0)
