"""What a scheduler is requested, and what it may choose from: plain values."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpupool_common.models import is_instance
from gpupool_common.sizes import WHOLE_GPU, format_part, format_size

Policy = Literal["binpack", "spread", "fragmentation"]
Hosts = Literal["any", "same", "spread"]
Capability = tuple[int, int]

#: All of a GPU's compute, in thousandths.
WHOLE = WHOLE_GPU


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request for virtual GPUs, each on a physical GPU of its own."""

    gpus: int
    #: Bytes of each GPU; None: all of it, so the GPU must be unused.
    memory_bytes: int | None
    #: Thousandths of each GPU's compute, 1..1000.
    share_permille: int
    policy: Policy = "binpack"
    hosts: Hosts = "any"
    #: A pattern such as ``NVIDIA H100*``; upper and lower case are the same.
    model: str | None = None
    #: At least this one.
    capability: Capability | None = None
    #: What a node must be labelled with.
    labels: tuple[tuple[str, str], ...] = ()
    #: Nodes that the client cannot reach.
    avoid: tuple[str, ...] = ()
    #: The CUDA that a node's driver must know at least.
    min_driver: Capability | None = None
    #: The GPUs that another scheduler has chosen, in the lease's order; empty: ours chooses.
    uuids: tuple[str, ...] = ()
    #: Patterns of the models that the tenant's quota allows; None: all.
    models: tuple[str, ...] | None = None
    #: The most memory that a whole GPU may have for the quota to allow it.
    memory_most: int | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> PlacementRequest:
        """From the fields of the REST API, checked, or what :meth:`as_dict` wrote."""
        capability, min_driver = raw.get("capability"), raw.get("min_driver")
        return cls(
            gpus=raw["gpus"],
            memory_bytes=raw["memory_bytes"],
            share_permille=raw["share_permille"],
            policy=raw["policy"],
            hosts=raw["hosts"],
            model=raw.get("model"),
            capability=parse_capability(capability) if capability else None,
            labels=tuple(sorted(raw.get("labels", {}).items())),
            avoid=tuple(sorted(set(raw.get("avoid", ())))),
            min_driver=parse_capability(min_driver) if min_driver else None,
            uuids=tuple(raw.get("uuids", ())),
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields of the REST API: what was asked, without a quota's bounds."""
        return {
            "gpus": self.gpus,
            "memory_bytes": self.memory_bytes,
            "share_permille": self.share_permille,
            "policy": self.policy,
            "hosts": self.hosts,
            "model": self.model,
            "capability": dotted(self.capability) if self.capability else None,
            "labels": dict(self.labels),
            "avoid": list(self.avoid),
            "min_driver": dotted(self.min_driver) if self.min_driver else None,
            "uuids": list(self.uuids),
        }

    @property
    def any_node(self) -> bool:
        """Whether it asks nothing of nodes."""
        return not self.labels and not self.avoid and self.min_driver is None

    def takes(self, total_bytes: int) -> int:
        """The memory that a GPU of this size would give."""
        return total_bytes if self.memory_bytes is None else self.memory_bytes


@dataclass(slots=True, eq=False)
class Slot:
    """One physical GPU as the scheduler sees it."""

    uuid: str
    node: str
    index: int
    model: str
    capability: Capability
    total_bytes: int
    #: The most grants at once.
    most: int = 20
    labels: dict[str, str] = field(default_factory=dict)
    #: The newest CUDA that its node's driver knows; (0, 0): unknown.
    driver: Capability = (0, 0)
    #: Why nothing new may be placed here; None: it may.
    closed: str | None = None
    used_bytes: int = 0
    used_permille: int = 0
    holders: int = 0

    def __lt__(self, other: Slot) -> bool:
        """Decides between two that a node has under one number: one of them is just going."""
        return self.uuid < other.uuid

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    @property
    def free_permille(self) -> int:
        return WHOLE - self.used_permille

    @property
    def usable(self) -> bool:
        return self.closed is None and self.holders < self.most

    @property
    def whole(self) -> bool:
        return self.holders == 0


def matches(pattern: str, model: str) -> bool:
    """Whether a model's name fits a pattern."""
    return fnmatch.fnmatchcase(model.lower(), pattern.lower())


def wrong_kind(
    request: PlacementRequest, model: str, capability: Capability, total_bytes: int
) -> str | None:
    """Why no GPU of this kind will do, however free it is; None: it may."""
    if request.model is not None and not matches(request.model, model):
        return f"model: it is '{model}', asked for '{request.model}'"
    if request.gpus > 1 and is_instance(model):
        return f"MIG: it is a part of a GPU, which a program has alone, asked for {request.gpus}"
    if request.models is not None and not any(matches(name, model) for name in request.models):
        return f"model: the quota does not allow '{model}'"
    if request.capability is not None and capability < request.capability:
        return (
            f"compute capability: it has {dotted(capability)}, asked {dotted(request.capability)}"
        )
    if request.memory_bytes is not None and total_bytes < request.memory_bytes:
        return (
            f"memory: it has {format_size(total_bytes)}, asked {format_size(request.memory_bytes)}"
        )
    if (
        request.memory_bytes is None
        and request.memory_most is not None
        and total_bytes > request.memory_most
    ):
        left = format_size(request.memory_most)
        return f"memory: all its {format_size(total_bytes)} are over the {left} quota left"
    return None


def wrong_labels(request: PlacementRequest, labels: dict[str, str]) -> str | None:
    """Why a node with these labels will not do; None: it will."""
    for key, value in request.labels:
        if labels.get(key) != value:
            have = f"'{labels[key]}'" if key in labels else "not set"
            return f"labels: '{key}' is {have}, asked '{value}'"
    return None


def wrong_driver(request: PlacementRequest, driver: Capability) -> str | None:
    """Why a node with this driver will not do; None: it will."""
    if request.min_driver is None or driver >= request.min_driver:
        return None
    known = f"it knows CUDA {dotted(driver)}" if driver > (0, 0) else "it is unknown"
    return f"driver: {known}, asked {dotted(request.min_driver)}"


def wrong_node(request: PlacementRequest, slot: Slot) -> str | None:
    """Why a GPU's node will not do, whatever GPUs it has; None: it will."""
    if slot.node in request.avoid:
        return "node: the request avoids it"
    return wrong_driver(request, slot.driver) or wrong_labels(request, slot.labels)


def not_named(request: PlacementRequest, slot: Slot) -> str | None:
    """Why a GPU is not one that the request names; None: it is, or the request names none."""
    if not request.uuids or slot.uuid in request.uuids:
        return None
    return "uuid: the request names other GPUs"


def no_room(request: PlacementRequest, slot: Slot) -> str | None:
    """Why this GPU has no room for the request; None: it has."""
    if slot.closed is not None:
        return slot.closed
    if slot.holders >= slot.most:
        return f"grants: {slot.holders} of {slot.most} are taken"
    if request.memory_bytes is None and not slot.whole:
        return f"memory: {_free(slot)}, asked all of it"
    if slot.free_permille < request.share_permille:
        asked = format_part(request.share_permille)
        return f"compute: {format_part(slot.free_permille)} free, asked {asked}"
    if request.memory_bytes is not None and slot.free_bytes < request.memory_bytes:
        return f"memory: {_free(slot)}, asked {format_size(request.memory_bytes)}"
    return None


def _free(slot: Slot) -> str:
    return f"{format_size(slot.free_bytes)} of {format_size(slot.total_bytes)} free"


def dotted(capability: Capability) -> str:
    """As people write it: ``9.0``."""
    return f"{capability[0]}.{capability[1]}"


def parse_capability(text: str) -> Capability:
    """``9.0`` as numbers that compare."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or "0")
