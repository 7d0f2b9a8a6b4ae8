"""Programs for a real GPU leave nothing that spins there (tests/gpu/keeper.py)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server_harness import process_lives

GPU = Path(__file__).resolve().parents[1] / "gpu"

#: Starts a process that leaves its group and session, names it, and does as it is told.
PROGRAM = f"""
import subprocess, sys, time
sys.path.insert(0, {str(GPU)!r})
from keeper import keep
keep(float(sys.argv[1]))
orphan = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True)"
subprocess.run([sys.executable, "-c", orphan + "; os.close(1); time.sleep(600)"], check=True)
sys.stdin.read()
sys.exit(7)
"""


def started(folder: Path, seconds: float) -> tuple[subprocess.Popen[str], int]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(seconds)]
    kept = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert kept.stdout is not None
    return kept, int(kept.stdout.readline() or 0)


@pytest.mark.parametrize(
    ("how", "seconds", "code"),
    [("done", 600, 7), ("asked", 600, 128 + signal.SIGTERM), ("late", 0.5, 124)],
)
def test_nothing_is_left(tmp_path: Path, how: str, seconds: float, code: int) -> None:
    kept, orphan = started(tmp_path, seconds)
    assert how == "late" or process_lives(orphan)
    if how == "done":
        assert kept.stdin is not None
        kept.stdin.close()
    elif how == "asked":
        kept.terminate()
    assert kept.wait(60) == code
    assert not orphan or not process_lives(orphan)  # 0: it was too late to start it
