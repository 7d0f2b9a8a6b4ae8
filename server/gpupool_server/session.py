"""One session: its worker, its folder, and what is known of it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from gpupool_common import logs
from gpupool_common.node_protocol import SessionState
from gpupool_server import budgets
from gpupool_server.gpus import Allocation
from gpupool_server.jail_status import Confined
from gpupool_server.process import Process
from gpupool_server.rundir import Meta, SessionDir
from gpupool_server.worker import Control, Ready, WorkerError
from gpupool_server.worker_log import LineReader, WorkerLog

#: What a worker says of itself.
COUNTERS = ("memory_bytes", "calls", "peer_bytes_sent", "peer_bytes_received")

_KIND = re.compile(r"[a-z ]{1,40}")


@dataclass(frozen=True)
class Opened:
    """A new session: what its client must know to reach the worker."""

    session: str
    secret: str
    ready: Ready
    #: Where a client of this machine comes to it, with the word; empty: nowhere.
    shm: str
    devices: tuple[int, ...]
    #: Whether these are those alone that the program is to see.
    is_narrow: bool = False


@dataclass
class Session:
    """One running worker."""

    meta: Meta
    folder: SessionDir
    process: Process
    control: Control
    allocation: Allocation
    log: WorkerLog
    readers: list[LineReader] = field(default_factory=list)
    watcher: asyncio.Task[None] | None = None
    #: Answers what its worker asks (exchange.py).
    questions: asyncio.Task[None] | None = None
    #: Fetches what its worker offers (image_keeper.py).
    images: asyncio.Task[None] | None = None
    #: Whether it was told to end.
    ending: bool = False
    #: How often its worker refused more of a budget, when it was asked last.
    told: dict[str, int] = field(default_factory=dict)
    #: Whether it was said that its disk is full.
    told_full: bool = False

    @property
    def confined(self) -> Confined:
        """Its worker's jail."""
        return self.meta.confined

    def let_go(self) -> None:
        """Release what this process holds of it."""
        for reader in self.readers:
            reader.close()
        if self.questions is not None:
            self.questions.cancel()
        if self.images is not None:
            self.images.cancel()
        self.log.over()
        self.control.close()

    @property
    def refused(self) -> dict[str, int]:
        """How often it was refused more of each budget, as far as that is known."""
        return {**self.told, "log_lines": self.log.dropped}

    def _tell_full(self, disk: budgets.State | None) -> None:
        """Say once that what the worker writes to files fails: the kernel tells it alone."""
        if disk is None or self.told_full or not budgets.is_full(disk):
            return
        self.told_full = True
        logs.get("worker").warning(
            "a worker has filled the disk that its session may have; what it writes there fails",
            session=self.meta.session,
            limit=disk["limit"],
            setting="session_disk",
        )

    async def describe(self, state: SessionState) -> dict[str, Any]:
        """What is known of it, with its worker's own counts if that answers."""
        meta = self.meta
        known: dict[str, Any] = {
            "session": meta.session,
            "pid": meta.pid,
            "client_pid": meta.client_pid,
            "client_host": meta.client_host,
            "program": meta.program,
            "devices": list(meta.devices),
            "created": meta.created,
            "tenant": meta.tenant,
            "group": meta.group,
            "lease": meta.lease,
            "state": state,
            "confinement": {
                "off": sorted(n for n, how in meta.confined.layers.items() if how != "on"),
                # the one that depends on the session, and so with its reason
                "net": meta.confined.layers.get("net", "off"),
                "start_us": meta.confined.cost_us,
            },
            "budgets": {
                "log_lines": budgets.state(self.log.lines, self.log.limit, self.log.dropped)
            },
        }
        try:
            status = await self.control.status()
        except WorkerError as error:
            return {**known, "trouble": str(error)}
        for key in COUNTERS:
            if budgets.is_count(status.get(key)):
                known[key] = status[key]
        if isinstance(status.get("connected"), bool):
            known["connected"] = status["connected"]
        read = budgets.read(status.get("budgets"), meta.budgets, meta.confined.layers)
        self.told = {name: each["refused"] or 0 for name, each in read.items()}
        known["budgets"] |= read
        self._tell_full(read.get("disk"))
        if isinstance(kinds := status.get("host"), dict):
            known["host_bytes_by_kind"] = {
                k: v for k, v in kinds.items() if budgets.is_count(v) and _KIND.fullmatch(k)
            }
        return known


def log_fields(meta: Meta) -> dict[str, str]:
    """The lease of a session, and the request for it, as fields of a log line."""
    return {} if meta.lease is None else {"lease": meta.lease, "request": meta.request_id}
