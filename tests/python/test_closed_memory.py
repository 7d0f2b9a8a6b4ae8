"""Processes that keep secrets show nothing of themselves to others of their user."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from harness import wait_until
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


#: Whether one of its own user that may not trace everybody gets at the memory of a process.
PEEK = """
import sys
try:
    open(f"/proc/{sys.argv[1]}/mem", "rb").close()
    print("open")
except PermissionError:
    print("closed")
"""

#: Root reads everybody, unless it has given up that right, as whoever it then reads has to, too.
WITHOUT_TRACING = ("setpriv", "--bounding-set", "-sys_ptrace") if os.geteuid() == 0 else ()


def shows(pid: int) -> str:
    command = [*WITHOUT_TRACING, sys.executable, "-c", PEEK, str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def core_limits(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    (line,) = [each for each in lines if each.startswith("Max core file size")]
    return line.split()[4:6]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found]


def test_a_process_that_does_not_is_read() -> None:
    """Else what is below would show nothing."""
    command = [*WITHOUT_TRACING, sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            wait_until(lambda: shows(other.pid) == "open", "it was read")
        finally:
            other.kill()


def test_the_manager_and_what_hears_strangers_for_it_do(tmp_path: Path) -> None:
    manager = ManagerProcess(tmp_path)
    manager.wrap = WITHOUT_TRACING
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    manager.limits[resource.RLIMIT_CORE] = (hard, hard)
    try:
        manager.start()
        (relay,) = children(manager.pid)
        # The relay closes itself before it is told anything, but the manager does not wait for it.
        wait_until(lambda: shows(relay) == "closed", "the relay closed itself")
        for pid in (manager.pid, relay):
            assert core_limits(pid) == ["0", "0"]
            assert shows(pid) == "closed"
    finally:
        manager.end()
