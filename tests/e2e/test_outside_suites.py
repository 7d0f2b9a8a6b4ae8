"""What the soft GPU carries of suites that others wrote (tests/outside)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import run_program

RUN = Path(__file__).resolve().parents[1] / "outside" / "run.py"

#: Six files, each a process that imports CuPy and compiles what it runs.
PATIENCE = 280.0


def test_cupys_own_tests(home: paths.Home, tmp_path: Path) -> None:
    packages = Path(os.environ.get("GPUPOOL_OUTSIDE", ""))
    if not (packages / "cupy").is_dir():
        pytest.skip("CuPy's tests are not here: `make test` fetches them, and sets GPUPOOL_OUTSIDE")
    command = [sys.executable, str(RUN), "--driver", "soft", "--suites", "cupy"]
    command += ["--packages", str(packages), "--out", str(tmp_path / "results.jsonl")]
    done = run_program([*command, "--processes", "2"], dict(os.environ), PATIENCE)
    assert done.returncode == 0, done.explain()
    words = done.stdout.splitlines()[-1].split()
    assert int(words[words.index("same") - 1]) >= 180, done.explain()
