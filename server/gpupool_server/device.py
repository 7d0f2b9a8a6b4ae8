"""What is known of a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Instance:
    """What a device is a part of that is an instance of a GPU (MIG)."""

    #: The GPU's UUID, and its number in PCI bus order.
    parent: str
    card: int
    #: Thousandths of the GPU's compute.
    share_permille: int
    #: Its numbers in the driver: of the GPU instance, and of the compute instance in that.
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True)
class Device:
    """One GPU, or an instance of one, which CUDA takes for a GPU.

    ``index`` is its number in PCI bus order, cards that are lost counted; those of instances come
    behind those of all cards.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    pci: str
    #: The compute capability, e.g. 9.0.
    capability: str = "0.0"
    #: The newest CUDA that its driver knows, e.g. 12.4; empty: it does not say.
    driver: str = ""
    #: None: a whole GPU.
    instance: Instance | None = None

    @property
    def card(self) -> int:
        """The number of the GPU that this is, or is a part of."""
        return self.instance.card if self.instance is not None else self.index

    @property
    def card_uuid(self) -> str:
        return self.instance.parent if self.instance is not None else self.uuid

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
