"""A program that leaves no process behind, however it ends: also one that starts servers, whose
workers outlive them, with kernels that never end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36

#: In the environment of the program itself.
_INSIDE = "GPUPOOL_KEPT"

#: For so long what was killed is waited for.
_PATIENCE = 20.0


def keep(seconds: float) -> None:
    """Go on in a process of its own, for so long at most. This one adopts whatever that starts, and
    kills all of it in the end; killed itself, it takes the program with it, which tidies up."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    if os.environ.pop(_INSIDE, ""):
        _prctl(_SET_PDEATHSIG, signal.SIGTERM)
        return
    _prctl(_SET_CHILD_SUBREAPER, 1)
    program = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, _INSIDE: "1"})
    code = 1
    try:
        code = program.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"it took more than {seconds:g} s; all of it is ended", file=sys.stderr)
        code = 124
    finally:
        left = end_all()
    if left:
        print(f"these are left, and cannot be killed: {left}", file=sys.stderr)
    sys.exit(code or int(bool(left)))


def end_all() -> list[int]:
    """Kill all descendants; those that are left after a while."""
    ends = time.monotonic() + _PATIENCE
    while (left := descendants()) and time.monotonic() < ends:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
    return left


def descendants() -> list[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _prctl(what: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
