"""What the driver tells of GPUs that are in trouble: XID errors, and cards that are gone.

Through NVML, on a thread of the reader's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gpupool_common import logs
from gpupool_server.device import Device
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_handles import NvmlHandles, number, text, why_lost

#: How long one look waits for an event; a server that stops waits as long at most.
WAIT_MS = 500

#: So many events are taken in one look; more come in the next.
MOST_EVENTS = 64

#: NVML's word for an error that it cannot attribute to an instance.
ANY_INSTANCE = 0xFFFFFFFF


@dataclass(frozen=True)
class GpuEvent:
    """An XID error of a GPU, or (0) that it does not answer any more."""

    uuid: str
    xid: int
    text: str = ""


class EventReader(Protocol):
    """Asks one kind of driver."""

    def read(self) -> list[GpuEvent]:
        """What there is now, after a moment. Blocks; never raises."""

    def close(self) -> None: ...


class NvmlEvents:
    """Real GPUs."""

    def __init__(self, nvml: Any, devices: Iterable[Device]) -> None:
        self._nvml = nvml
        self._log = logs.get("health")
        self._handles = NvmlHandles(nvml)
        #: The devices of each card, which is what has errors, and what NVML can lose.
        self._cards: dict[str, list[Device]] = {}
        #: Held while NVML waits for events: their set must not be freed meanwhile.
        self._lock = threading.Lock()
        self._is_closed = False
        self._set = nvml.nvmlEventSetCreate()
        for device in devices:
            self._cards.setdefault(device.card_uuid, []).append(device)
        for uuid, own in self._cards.items():
            try:
                card = self._handles.of(uuid)
                nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, self._set)
            except Exception as error:  # of this card's errors nothing is known then
                self._log.warning(
                    "XID errors of a GPU cannot be seen", gpu=own[0].card, reason=str(error)
                )

    def read(self) -> list[GpuEvent]:
        with self._lock:
            return [] if self._is_closed else [*self._events(), *self._lost()]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            try:
                self._nvml.nvmlEventSetFree(self._set)
            except Exception as error:  # it ends with us anyway
                self._log.debug("NVML's events cannot be freed", reason=str(error))

    def _events(self) -> Iterable[GpuEvent]:
        for place in range(MOST_EVENTS):
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0 if place else WAIT_MS)
                if data.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                    card = text(self._nvml.nvmlDeviceGetUUID(data.device))
                    instance = getattr(data, "gpuInstanceId", ANY_INSTANCE)
                    for uuid in self._hit(card, instance):
                        yield GpuEvent(uuid, int(data.eventData))
            except Exception as error:  # mostly that there are no more
                if number(error) != self._nvml.NVML_ERROR_TIMEOUT:
                    self._log.debug("NVML does not tell events", reason=repr(error))
                return

    def _lost(self) -> Iterable[GpuEvent]:
        for uuid in self._cards:
            try:
                card = self._handles.of(uuid)
                self._nvml.nvmlDeviceGetTemperature(card, self._nvml.NVML_TEMPERATURE_GPU)
            except Exception as error:
                if (why := why_lost(self._nvml, error)) is not None:
                    yield from (GpuEvent(hit, 0, why) for hit in self._hit(uuid, ANY_INSTANCE))

    def _hit(self, card: str, instance: int) -> list[str]:
        """The devices that have an error of a card, or of one GPU instance of it."""
        return [
            device.uuid
            for device in self._cards.get(card, ())
            if device.instance is None or instance in (ANY_INSTANCE, device.instance.gpu_instance)
        ]


class NoEvents:
    """Where nobody can be asked: soft GPUs have no such errors."""

    def read(self) -> list[GpuEvent]:
        return []

    def close(self) -> None:
        pass


def open_events(inventory: Inventory) -> EventReader:
    """Through NVML where the devices are real and it works."""
    if inventory.kind != "cuda":
        return NoEvents()
    try:
        import pynvml

        pynvml.nvmlInit()
        return NvmlEvents(pynvml, inventory.devices)
    except Exception as error:  # whatever is wrong with it, there are devices to serve
        logs.get("health").warning("NVML does not work; sick GPUs are not seen", reason=str(error))
        return NoEvents()
