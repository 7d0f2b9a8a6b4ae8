"""How each GPU does, for the pool's manager: what the arbiter has seen, and what its card says.

A card is asked through NVML on a thread, and a sick one may answer late or never: a heartbeat takes
what was answered last, and has it asked anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gpupool_common import logs
from gpupool_common.node_protocol import GpuReading
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus
from gpupool_server.nvml_cards import Cards, Facts, SoftCards

#: What a card said longer ago is not true any more.
STALE_SECONDS = 60.0


class GpuReadings:
    """Methods are for the event loop's thread only; :meth:`read` does not wait."""

    def __init__(
        self,
        gpus: Gpus,
        cards: Cards | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = gpus
        self._cards = cards or SoftCards()
        self._clock = clock
        self._log = logs.get("gpus")
        #: By index: what the card said, and when.
        self._facts: dict[int, tuple[float, Facts]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}

    def read(self) -> list[GpuReading]:
        found = [self._reading(gpu) for gpu in self._gpus]
        for gpu in self._gpus:
            if gpu.index not in self._asking:
                self._asking[gpu.index] = asyncio.create_task(self._ask(gpu))
        return found

    def _reading(self, gpu: Gpu) -> GpuReading:
        at, facts = self._facts.get(gpu.index, (0.0, {}))
        if self._clock() - at > STALE_SECONDS:
            facts = {}
        return GpuReading(
            gpu=gpu.device.uuid,
            busy_permille=gpu.utilisation(),
            temperature_celsius=_number(facts, "temperature", 1000),
            memory_used_bytes=_number(facts, "memory-used", gpu.device.memory_bytes),
            memory_errors=_number(facts, "ecc-volatile-uncorrected", 1 << 50),
        )

    async def _ask(self, gpu: Gpu) -> None:
        try:
            facts, _ = await self._cards.passing(gpu.device)
            self._facts[gpu.index] = (self._clock(), dict(facts))
        except Exception as error:  # a heartbeat goes without it
            self._log.debug("a card does not answer", gpu=gpu.index, reason=repr(error))
        finally:
            del self._asking[gpu.index]

    async def settled(self) -> None:
        """All cards have answered that were asked."""
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()


def _number(facts: Facts, word: str, most: int) -> int | None:
    """What a card says, if that can be."""
    value = facts.get(word)
    return min(value, most) if isinstance(value, int) and value >= 0 else None
