"""The pynvml of fake_nvml.py whose cards have errors, and fail."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fake_nvml import NvmlError, TwoCards


class NumberedError(NvmlError):
    """As pynvml raises it."""

    def __init__(self, text: str, value: int) -> None:
        super().__init__(text)
        self.value = value


class SickCards(TwoCards):
    """Tells of events, and answers with errors, as a test wants it to."""

    NVML_ERROR_TIMEOUT, NVML_ERROR_UNKNOWN = 10, 999
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, can_register: bool = True) -> None:
        super().__init__()
        self._can_register = can_register
        #: What an event set tells next: the card, the kind of event, its number.
        self.events: list[tuple[int, int, int]] = []
        #: Cards that answer with an error of this number.
        self.failing: dict[int, int] = {}
        self.registered: list[int] = []
        self.before_waiting: Callable[[], None] = lambda: None

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, card: int, kinds: int, events: str) -> None:
        assert (kinds, events) == (self.nvmlEventTypeXidCriticalError, "events")
        if not self._can_register:
            raise NumberedError("Not Supported", 3)
        self.registered.append(card)

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        assert events == "events"
        self.before_waiting()
        if not self.events:
            raise NumberedError("Timeout", self.NVML_ERROR_TIMEOUT)
        card, kind, number = self.events.pop(0)
        return SimpleNamespace(device=card, eventType=kind, eventData=number)

    def nvmlEventSetFree(self, events: str) -> None:
        assert events == "events"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        # Once a card is gone NVML says so of whichever is looked up.
        if self.failing:
            raise NumberedError("GPU is lost", self.NVML_ERROR_GPU_IS_LOST)
        return super().nvmlDeviceGetHandleByUUID(uuid)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.failing.get(index) in (self.NVML_ERROR_GPU_IS_LOST, self.NVML_ERROR_UNKNOWN):
            raise NumberedError("no handle", self.failing[index])
        return super().nvmlDeviceGetHandleByIndex(index)

    def nvmlDeviceGetName(self, card: int) -> str:
        if self.failing.get(card) == self.NVML_ERROR_RESET_REQUIRED:
            raise NumberedError("GPU requires reset", self.NVML_ERROR_RESET_REQUIRED)
        return super().nvmlDeviceGetName(card)

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        if card in self.failing:
            raise NumberedError("failing", self.failing[card])
        return super().nvmlDeviceGetTemperature(card, sensor)
