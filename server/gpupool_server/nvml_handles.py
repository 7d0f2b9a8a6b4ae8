"""NVML's handles of cards and of their instances, each looked up once, and how it says that a
card is lost.

nvmlDeviceGetHandleByUUID answers "GPU is lost" as soon as any card has fallen off the bus, so of
the cards that are well nothing would be known any more. Then they are looked up one by one.
"""

from __future__ import annotations

from typing import Any

from gpupool_common import logs


class NvmlHandles:
    """Of one reader: it asks on one thread at a time."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._known: dict[str, Any] = {}

    def of(self, uuid: str) -> Any:
        """The handle of a card; whatever NVML raises if it has none."""
        if uuid not in self._known:
            try:
                self._known[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            except Exception as error:
                self._known |= self._by_index()
                if uuid not in self._known:
                    raise error
        return self._known[uuid]

    def _by_index(self) -> dict[str, Any]:
        """Of the cards that have one, and of their instances."""
        found: dict[str, Any] = {}
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                for each in (handle, *(part for _, part in instances(self._nvml, handle) or ())):
                    found[text(self._nvml.nvmlDeviceGetUUID(each))] = each
            except Exception as error:  # that is the one that is lost
                logs.get("nvml").debug("NVML has no handle", gpu=index, reason=repr(error))
        return found


def instances(nvml: Any, card: Any) -> list[tuple[int, Any]] | None:
    """The instances of a card that MIG divides, with their places; None: it does not."""
    try:
        if nvml.nvmlDeviceGetMigMode(card)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(card))
    except Exception as error:  # mostly that this model cannot be divided
        if why_lost(nvml, error) is not None:
            raise
        return None
    found: list[tuple[int, Any]] = []
    for place in places:
        try:
            found.append((place, nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, place)))
        except Exception as error:
            if number(error) != nvml.NVML_ERROR_NOT_FOUND:
                logs.get("nvml").debug("NVML has no handle", instance=place, reason=repr(error))
    return found


def number(error: Exception) -> int | None:
    """Of an error of NVML; None: it is none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def why_lost(nvml: Any, error: Exception) -> str | None:
    """What an error says of a card that cannot be used any more; None: something else."""
    return {
        nvml.NVML_ERROR_GPU_IS_LOST: "it has fallen off the bus",
        nvml.NVML_ERROR_RESET_REQUIRED: "it must be reset before it can be used again",
    }.get(number(error))


def text(value: object) -> str:
    """Some versions of pynvml answer with bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
