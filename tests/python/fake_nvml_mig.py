"""The pynvml of fake_nvml.py whose second card MIG divides: into two GPU instances, of which the
second has two compute instances."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fake_nvml import GIB, UUIDS
from fake_nvml_events import NumberedError, SickCards

DIVIDED = 1
MOST = 7


@dataclass(frozen=True)
class Part:
    """Handle of an instance, and what it is."""

    place: int
    uuid: str
    profile: str
    slices: int
    gpu_instance: int
    compute_instance: int
    memory: int

    @property
    def name(self) -> str:
        return f"NVIDIA H200 MIG {self.profile}"


PARTS = (
    Part(0, "MIG-00000000-0000-4000-8000-000000000000", "3g.71gb", 3, 2, 0, 70 * GIB),
    Part(1, "MIG-00000000-0000-4000-8000-000000000001", "1c.2g.35gb", 1, 5, 0, 34 * GIB),
    Part(3, "MIG-00000000-0000-4000-8000-000000000003", "1c.2g.35gb", 1, 5, 1, 34 * GIB),
)


class DividedCards(SickCards):
    """What is asked of instances alone; of cards, what the others answer."""

    def __init__(self, parts: tuple[Part, ...] = PARTS) -> None:
        super().__init__()
        self.parts = parts
        #: UUIDs of instances that answer with an error of this number.
        self.failing_parts: dict[str, int] = {}
        #: The GPU instance of each event; those that are not here cannot be attributed.
        self.instances: dict[int, int] = {}

    def nvmlDeviceGetMigMode(self, card: int) -> list[int]:
        return [int(card == DIVIDED)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, card: int) -> int:
        return MOST

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: int, place: int) -> Part:
        for part in self.parts:
            if card == DIVIDED and part.place == place:
                return part
        raise NumberedError("Not Found", self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        found = [part for part in self.parts if part.uuid == uuid and not self.failing]
        return found[0] if found else super().nvmlDeviceGetHandleByUUID(uuid)

    def nvmlDeviceGetName(self, card: Any) -> str:
        if isinstance(card, Part) and card.uuid in self.failing_parts:
            raise NumberedError("failing", self.failing_parts[card.uuid])
        return card.name if isinstance(card, Part) else super().nvmlDeviceGetName(card)

    def nvmlDeviceGetUUID(self, card: Any) -> str:
        return card.uuid if isinstance(card, Part) else UUIDS[card]

    def nvmlDeviceGetMemoryInfo(self, card: Any, version: int | None = None) -> Any:
        if isinstance(card, Part):
            return SimpleNamespace(total=card.memory, reserved=0, free=card.memory, used=0)
        return super().nvmlDeviceGetMemoryInfo(card, version)

    def nvmlDeviceGetAttributes(self, part: Part) -> Any:
        return SimpleNamespace(computeInstanceSliceCount=part.slices)

    def nvmlDeviceGetGpuInstanceId(self, part: Part) -> int:
        return part.gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, part: Part) -> int:
        return part.compute_instance

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        data = super().nvmlEventSetWait_v2(events, milliseconds)
        data.gpuInstanceId = self.instances.get(data.eventData, 0xFFFFFFFF)
        return data
