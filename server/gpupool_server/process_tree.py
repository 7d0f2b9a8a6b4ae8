"""Whose a process is, by /proc: a worker's own, or one that a worker has started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: So many parents are looked at: a chain that is longer is nobody's whom we started.
_MOST_PARENTS = 16


@dataclass(frozen=True)
class Kin:
    """What /proc/PID/stat says of a process's origin."""

    parent: int
    #: The process session (setsid) that it is in; each worker has one of its own.
    session: int
    #: When it was started, in ticks since the machine was: the next process of its pid has another.
    started: int = 0


Look = Callable[[int], Kin | None]


def look_up(pid: int) -> Kin | None:
    """None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return Kin(int(fields[1]), int(fields[3]), int(fields[19])) if len(fields) > 19 else None


def owner_of(pid: int, workers: Iterable[int], look: Look = look_up) -> int | None:
    """The worker that a process is, or that it comes from; None: it is somebody else's."""
    known = set(workers)
    here: int = pid
    for _ in range(_MOST_PARENTS):
        if here in known:
            return here
        kin = look(here)
        if kin is None or kin.parent <= 1:
            break
        here = kin.parent
    return _by_session(pid, known, look)


def _by_session(pid: int, workers: set[int], look: Look) -> int | None:
    """One whose parents have ended is still in its worker's process session."""
    own, mine = look(pid), look(os.getpid())
    if own is None or own.session <= 0 or (mine is not None and own.session == mine.session):
        return None
    return next((w for w in workers if (kin := look(w)) and kin.session == own.session), None)


def owners_of(pids: Iterable[int], workers: Iterable[int], look: Look = look_up) -> dict[int, int]:
    """The worker of each that is one or comes from one."""
    known = set(workers)
    owners = {pid: pid if pid in known else owner_of(pid, known, look) for pid in pids}
    return {pid: owner for pid, owner in owners.items() if owner is not None}


def attributed(values: Mapping[int, int], owners: Mapping[int, int]) -> dict[int, int]:
    """What the workers have, each with what it has started; what is others' is left out."""
    found: dict[int, int] = {}
    for pid, value in values.items():
        if (owner := owners.get(pid)) is not None:
            found[owner] = found.get(owner, 0) + value
    return found


def hold_started(pids: Iterable[int], worker: int) -> list[int]:
    """Descriptors of those of these processes that a worker has started.

    Taken while it lives: once it has ended nothing says any more whose they were.
    """
    held: list[int] = []
    for pid in set(pids) - {worker}:
        with contextlib.suppress(OSError):  # it has just ended
            held.append(os.pidfd_open(pid))
            if owner_of(pid, [worker]) != worker:
                os.close(held.pop())
    return held


def kill_held(held: Iterable[int]) -> None:
    """End these processes, and let go of them."""
    for pidfd in held:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
