"""A control group (cgroup v2) for each worker: what it may have of memory, threads, processor.

The operator gives the server a folder of the hierarchy that is its own (systemd: ``Delegate=yes``
with ``DelegateSubgroup=``). The server makes a group in it for each worker, which the starter
enters, and removes it when the worker has ended, and all that this had started;
what a crash has left it removes at its start.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpupool_server.config import Settings

CONTROLLERS = ("memory", "pids", "cpu")
PREFIX = "gpupool-"
PROCESSES = 4096
WEIGHT = 100

#: What does not fit into a worker's memory is not put where others' would be.
SWAP = "memory.swap.max"

#: What a driver and the code of a worker take beside what its client makes it keep.
OVERHEAD = 8 << 30


class Cgroups:
    """The groups of this server's workers; ``off`` says why there are none, if there are none."""

    def __init__(self, settings: Settings) -> None:
        self._parent = settings.cgroup
        #: Whose groups could not be removed yet.
        self._left: set[str] = set()
        self.off = ""
        if self._parent is None:
            self.off = "no control group is given; --cgroup names a folder that is delegated"
        else:
            self.off = _prepare(self._parent)

    def sweep(self) -> None:
        """Remove what an earlier server has left; a group with a worker in it cannot be removed.

        At the server's start alone: beside a server at work it would take the groups that are
        made and have no worker yet.
        """
        if self._parent is None or self.off:
            return
        for folder in self._parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def make(self, session: str, memory: int) -> tuple[Path | None, str]:
        """The group of a worker that may keep so much for its client, or why it has none."""
        if self._parent is None or self.off:
            return None, self.off
        folder = self._parent / f"{PREFIX}{session}"
        limits = {
            "memory.max": memory + OVERHEAD,
            "pids.max": PROCESSES,
            "cpu.weight": WEIGHT,
        }
        try:
            folder.mkdir()
            if (folder / SWAP).exists():  # else the kernel counts none, or has none
                limits[SWAP] = 0
            for name, value in limits.items():
                (folder / name).write_text(str(value), encoding="ascii")
        except OSError as error:
            self.remove(session)
            return None, f"the control group {folder} cannot be made: {error.strerror}"
        return folder, ""

    def remove(self, session: str) -> None:
        """When its worker has ended."""
        self._left.add(session)
        self.tidy()

    def tidy(self) -> None:
        """Remove what could not be removed before: a process beside a worker, such as the one that
        counts its calls, ends a moment after it."""
        self._left = {session for session in self._left if not self._gone(session)}

    def _gone(self, session: str) -> bool:
        if self._parent is None:
            return True
        try:
            (self._parent / f"{PREFIX}{session}").rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _prepare(parent: Path) -> str:
    """Give the controllers to the groups below; why that cannot be, or nothing."""
    try:
        there = (parent / "cgroup.controllers").read_text(encoding="ascii").split()
    except OSError:
        return f"{parent} is no control group of cgroup v2"
    missing = [name for name in CONTROLLERS if name not in there]
    if missing:
        return f"{parent} does not have the controllers {', '.join(missing)}; delegate them"
    try:
        text = " ".join(f"+{name}" for name in CONTROLLERS)
        (parent / "cgroup.subtree_control").write_text(text, encoding="ascii")
    except OSError as error:
        return (
            f"{parent} gives its controllers to no group below: {error.strerror}; it must be the"
            " server's, and no process may be in it"
        )
    return ""
