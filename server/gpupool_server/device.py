"""What is known of a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Device:
    """One GPU. ``index`` is its number in PCI bus order, cards that are lost counted."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    pci: str
    #: The compute capability, e.g. 9.0.
    capability: str = "0.0"
    #: The newest CUDA that its driver knows, e.g. 12.4; empty: it does not say.
    driver: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
