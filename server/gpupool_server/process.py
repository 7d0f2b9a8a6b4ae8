"""Processes by pid *and* start time, watched through pidfds.

A pid alone may have passed to another process while nobody looked; a pidfd that
was opened before the start time was compared cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which ``pid`` started; None if it does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field, the program's name, may hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X", "x"):
        return None
    return int(fields[19])


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


class Process:
    """One process that we may signal and wait for, whoever its parent is."""

    def __init__(self, pid: int, pidfd: int, wait: Callable[[], int] | None) -> None:
        """``wait`` reaps it, if it is a child of ours, and gives its code as Popen does."""
        self.pid = pid
        self._pidfd = pidfd
        self._wait = wait
        self._ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    @classmethod
    def of_child(cls, child: subprocess.Popen[bytes]) -> Process:
        """Watch a process that we started and have not waited for."""
        return cls(child.pid, os.pidfd_open(child.pid), child.wait)

    @classmethod
    def of_pid(cls, pid: int) -> Process:
        """The same for a child that another process has made for us."""
        return cls(pid, os.pidfd_open(pid), lambda: _reap(pid))

    @classmethod
    def find(cls, pid: int, started: int) -> Process | None:
        """Watch the process ``pid`` if it is the one that started at ``started``."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        if start_time(pid) != started:
            os.close(pidfd)
            return None
        return cls(pid, pidfd, None)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if not self._ended.done():
            self._ended.set_result(self._reason())

    def _reason(self) -> str:
        if self._wait is None:
            return "ended; its exit code went to another parent"
        code = self._wait()
        if code < 0:
            return f"killed by {_signal_name(-code)}"
        return f"exit code {code}"

    @property
    def alive(self) -> bool:
        return self._pidfd >= 0

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> str:
        """Wait for the end; the answer is the reason, for the log."""
        reason: str = await asyncio.shield(self._ended)
        return reason

    def forget(self) -> None:
        """Stop watching without touching the process (it outlives us)."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if not self._ended.done():
            self._ended.cancel()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
