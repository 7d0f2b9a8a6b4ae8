"""NVML's handles of cards, each looked up once.

nvmlDeviceGetHandleByUUID answers "GPU is lost" as soon as any card has fallen off the bus, so of
the cards that are well nothing would be known any more.
"""

from __future__ import annotations

from typing import Any


class NvmlHandles:
    """Of one reader: it asks on one thread at a time."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._known: dict[str, Any] = {}

    def of(self, uuid: str) -> Any:
        """The handle of a card; whatever NVML raises if it has none."""
        if uuid not in self._known:
            self._known[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._known[uuid]
