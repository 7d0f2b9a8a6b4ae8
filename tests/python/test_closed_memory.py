"""Processes that keep secrets show nothing of themselves to others of their user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from manager_process import ManagerProcess

LOOK = """
import ctypes, resource
from gpupool_common.closed_memory import close_memory
libc = ctypes.CDLL(None)
print(libc.prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
close_memory()
print(libc.prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))
"""


def test_a_process_closes_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1", "0", "0", "0"]


def core_limits(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    (line,) = [each for each in lines if each.startswith("Max core file size")]
    return line.split()[4:6]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found]


def test_the_manager_and_what_hears_strangers_for_it_do(tmp_path: Path) -> None:
    manager = ManagerProcess(tmp_path)
    try:
        manager.start()
        assert core_limits(manager.pid) == ["0", "0"]
        assert [core_limits(pid) for pid in children(manager.pid)] == [["0", "0"]]
    finally:
        manager.end()
