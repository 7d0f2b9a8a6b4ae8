"""GPUs that are sick are put aside: nothing new is placed there, and who is there is told.

What is known of a sick GPU survives the server; an operator brings it back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from gpupool_common import logs
from gpupool_common.protocol import one_line
from gpupool_server.claims import Refusal
from gpupool_server.gpu import Gpu
from gpupool_server.gpu_events import EventReader, GpuEvent, NoEvents
from gpupool_server.gpus import Gpus
from gpupool_server.rundir import Meta
from gpupool_server.sessions import SessionSupervisor

#: Of so many kinds of errors each has a series of its own; the others are counted together.
MOST_XIDS = 64
OTHER = 0

#: Between looks, where the reader does not wait itself.
PAUSE_SECONDS = 1.0

MOST_REASON = 200


class GpuHealth:
    """Which GPUs are sick. Methods are for the event loop's thread only."""

    def __init__(
        self,
        sick_xids: tuple[int, ...],
        gpus: Gpus,
        supervisor: SessionSupervisor,
        reader: EventReader | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sick_xids = sick_xids
        self._gpus = gpus
        self._supervisor = supervisor
        self._reader = reader or NoEvents()
        self._clock = clock
        self._log = logs.get("health")
        self._task: asyncio.Task[None] | None = None
        #: By GPU and number: those that make sick begin at 0, so that the first can be seen.
        self.xids = Counter({(gpu.index, xid): 0 for gpu in gpus for xid in sick_xids})

    def start(self) -> None:
        """Look for as long as the server runs, if there is anything to look at."""
        if not isinstance(self._reader, NoEvents):
            self._task = asyncio.create_task(self._watch(), name="health")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            # Which waits for the look that may be under way on its thread.
            await asyncio.to_thread(self._reader.close)

    async def _watch(self) -> None:
        while True:
            try:
                self.take(await asyncio.to_thread(self._reader.read))
            except Exception:  # one look is missing then
                self._log.exception("GPUs cannot be looked after")
            await asyncio.sleep(PAUSE_SECONDS)

    def take(self, events: list[GpuEvent]) -> None:
        """What the driver has told."""
        for event in events:
            gpu = next((gpu for gpu in self._gpus if gpu.device.uuid == event.uuid), None)
            if gpu is None:
                continue  # a card that is not served
            if event.xid:
                self._count(gpu, event.xid)
            text = event.text or f"XID {event.xid}"
            if not event.xid or event.xid in self._sick_xids:
                self.put_aside(gpu, text)
            else:
                self._log.warning("the driver tells of an error", gpu=gpu.index, xid=event.xid)

    def take_lost(self, lost: Mapping[int, str]) -> None:
        """Cards that did not answer when the server started, and why."""
        for gpu in self._gpus:
            if gpu.index in lost:
                self.put_aside(gpu, lost[gpu.index])

    def _count(self, gpu: Gpu, xid: int) -> None:
        named = sum(index == gpu.index for index, _ in self.xids)
        known = (gpu.index, xid) in self.xids or named < MOST_XIDS
        self.xids[gpu.index, xid if known else OTHER] += 1

    def put_aside(self, gpu: Gpu, why: str) -> None:
        """Place nothing new on a GPU; what it was put aside for first stays the reason."""
        if gpu.sick:
            return
        when = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        gpu.set_sick(f"{one_line(why)[:MOST_REASON]} at {when}")
        self._log.error(
            "a GPU is put aside; look after it, then: gpupool gpu open",
            gpu=gpu.index,
            uuid=gpu.device.uuid,
            reason=gpu.sick,
        )
        self._supervisor.say(
            lambda meta: _is_on(meta, gpu),
            f"GPU {gpu.index} of the server is put aside: {gpu.sick}; what the program does there"
            " may fail, and no new session is opened on it",
        )
        self._supervisor.on_change()

    def readmit(self, gpu: Gpu, why: str) -> None:
        """It is well again, as an operator says."""
        if gpu.sick:
            self._log.info("a GPU is used again", gpu=gpu.index, was=gpu.sick, reason=why)
            gpu.set_sick("")
            self._supervisor.on_change()

    def change(self, index: int | None, why: str | None) -> dict[str, object]:
        """For the admin socket: put a GPU aside, or (None) bring it back; Refusal."""
        gpu = None if index is None else self._gpus.get(index)
        if gpu is None:
            raise Refusal("not-found", f"there is no GPU {index} here")
        if why is None:
            self.readmit(gpu, "an operator said so")
        else:
            self.put_aside(gpu, why)
        return {"gpu": gpu.index, "sick": gpu.sick}


def _is_on(meta: Meta, gpu: Gpu) -> bool:
    return gpu.index in meta.devices
