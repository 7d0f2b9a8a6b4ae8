"""Sessions that were ended because their workers did what no worker of ours does."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from gpupool_common import logs
from gpupool_common.node_protocol import MOST_LIARS, Cause, ReportedLiar
from gpupool_common.protocol import one_line
from gpupool_server.device import Device
from gpupool_server.rundir import Meta
from gpupool_server.session import log_fields

#: So many are remembered, to be shown.
MOST = 64


@dataclass(frozen=True)
class Liar:
    """One of them; ``cause`` is what gave it away: its page, its memory or its time."""

    session: str
    tenant: str
    lease: str | None
    gpu: int
    gpu_uuid: str
    worker_pid: int
    cause: Cause
    reason: str
    #: Seconds since 1970.
    at: float


class Liars:
    """All of them since the server began, to be shown and to be told to the pool's manager."""

    def __init__(self) -> None:
        self._found: deque[Liar] = deque(maxlen=MOST)
        self._untold: deque[Liar] = deque(maxlen=MOST_LIARS)
        self._log = logs.get("sessions")

    def add(self, meta: Meta, gpu: Device, tenant: str, cause: Cause, reason: str) -> None:
        """It is being ended."""
        liar = Liar(
            session=meta.session,
            tenant=tenant,
            lease=meta.lease,
            gpu=gpu.index,
            gpu_uuid=gpu.uuid,
            worker_pid=meta.pid,
            cause=cause,
            reason=one_line(reason),
            at=time.time(),
        )
        self._found.append(liar)
        if liar.lease is not None:
            self._untold.append(liar)
        self._log.error(
            "ended a liar: its worker was taken over",
            session=liar.session,
            worker_pid=liar.worker_pid,
            gpu=gpu.index,
            tenant=tenant,
            cause=cause,
            reason=reason,
            **log_fields(meta),
        )

    def describe(self) -> list[dict[str, Any]]:
        """For people and scripts, oldest first."""
        return [asdict(liar) for liar in self._found]

    def untold(self) -> list[ReportedLiar]:
        """Those of leases that the manager has not been told of yet."""
        return [
            ReportedLiar(
                session=liar.session,
                lease=liar.lease or "",
                gpu=liar.gpu_uuid,
                cause=liar.cause,
                reason=liar.reason[:256],
            )
            for liar in self._untold
        ]

    def told(self, reported: list[ReportedLiar]) -> None:
        """The manager has these."""
        known = {liar.session for liar in reported}
        left = [liar for liar in self._untold if liar.session not in known]
        self._untold.clear()
        self._untold.extend(left)
