"""bench/far.c: a program behind the link reaches this host, and not sooner than it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from far import Far, build  # noqa: E402

from harness import DRIVER  # noqa: E402
from toolchain import Toolchain  # noqa: E402

DELAY_US = 5_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("far"))


def test_a_program_runs_there_and_answers_go_both_ways(program: Path, toolchain: Toolchain) -> None:
    try:
        link = Far(program, DELAY_US, DRIVER)
    except RuntimeError as error:
        pytest.skip(f"no such network here: {error}")
    with link as far:
        result = far.run([str(toolchain.driver_program("driver_memory"))], 60.0)
        assert result.returncode == 0, result.explain()
        assert result.stats["round_trips"] > 0
        assert result.stats["waited_ns"] >= 2 * DELAY_US * 1000


@pytest.mark.parametrize("said", ["", "-1", "2000000", "soon"])
def test_a_delay_that_is_none_is_refused(program: Path, said: str) -> None:
    done = subprocess.run([str(program), said], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "DELAY_US" in done.stderr
