"""The processes that hold the namespaces of leases, one for each lease with workers here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool_server.process import Process, start_time


@dataclass
class Lease:
    """The namespaces of one lease on this host, and who is in them."""

    holder: Process | None = None
    sessions: set[str] = field(default_factory=set)
    #: The user of all its workers; 0: each has its own.
    uid: int = 0
    #: Held while a worker starts: the first one makes what the others join.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Leases:
    """All leases with workers here, by name. For the event loop's thread only."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def enter(self, name: str, session: str) -> Lease:
        """The lease of a session that is about to begin; until :meth:`leave`."""
        lease = self._leases.setdefault(name, Lease())
        lease.sessions.add(session)
        return lease

    def adopt(self, name: str, session: str, pid: int, started: int) -> Lease:
        """A session that an earlier server has begun."""
        lease = self.enter(name, session)
        if lease.holder is None and pid:
            lease.holder = Process.find(pid, started)
        return lease

    def leave(self, name: str, session: str, uid: int) -> bool:
        """The session's worker has ended, and with the last one the namespaces do.

        The answer: whether its user is nobody's any more.
        """
        lease = self._leases.get(name)
        if lease is None:
            return True
        lease.sessions.discard(session)
        if not lease.sessions:
            del self._leases[name]
            if lease.holder is not None:
                lease.holder.kill()
        return not lease.sessions or lease.uid != uid

    def forget(self) -> None:
        """The server stops: the next one finds them by its sessions."""
        for lease in self._leases.values():
            if lease.holder is not None:
                lease.holder.forget()
        self._leases.clear()


def join(lease: Lease) -> int:
    """A descriptor for the holder of a lease, the caller's; -1: there is none (any more)."""
    if lease.holder is None or not lease.holder.alive:
        return -1
    try:
        return os.pidfd_open(lease.holder.pid)
    except OSError:
        return -1


def hold(lease: Lease, pid: int) -> tuple[int, int]:
    """The lease has this holder, a child of ours; its pid and start time."""
    lease.holder = Process.of_pid(pid)
    return pid, start_time(pid) or 0


def lines(values: Iterable[tuple[str, object]]) -> bytes:
    """A description for gpupool-jail; ValueError if a value would not stay on its line."""
    text = []
    for key, value in values:
        line = f"{key} {value}"
        if "\n" in line or "\0" in line:
            raise ValueError(f"'{key}' of a jail has a line end in it")
        text.append(line)
    return "".join(f"{line}\n" for line in text).encode()
