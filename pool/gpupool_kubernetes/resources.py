"""What a container's resources ask of the pool, in our names and in those people come from.

Each family of names says in its own units how many GPUs, how much memory of each and how much
compute of each. A pod has one lease, so one of its containers may ask, and by one family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpupool_common.quantities import LEAST_MEMORY, MOST_MEMORY
from gpupool_common.request import MAX_GPUS, VCUDA_CARD, VCUDA_UNIT
from gpupool_common.sizes import UNITS, WHOLE_GPU, format_size
from gpupool_kubernetes import names, quantities

_MIB, _GIB = UNITS["MiB"], UNITS["GiB"]

NVIDIA_GPU = "nvidia.com/gpu"
HAMI_MEMORY = "nvidia.com/gpumem"
HAMI_PERCENTAGE = "nvidia.com/gpumem-percentage"
HAMI_CORES = "nvidia.com/gpucores"
ALIYUN_MEMORY = "aliyun.com/gpu-mem"
VCUDA_CORE = "tencent.com/vcuda-core"
VCUDA_MEMORY = "tencent.com/vcuda-memory"


class ResourceError(ValueError):
    """What a pod asks for cannot be: one line that names the container and the resource."""


@dataclass(frozen=True)
class Defaults:
    """What is meant where a manifest does not say it; from the settings."""

    #: Compute in thousandths where a part of a GPU's memory is asked for and no compute.
    share_permille: int = WHOLE_GPU
    #: The memory of a card of which percentages are; None: only 100 % can be read.
    card_bytes: int | None = None


@dataclass(frozen=True)
class Asked:
    """How many GPUs, and what of each. No memory: whole GPUs."""

    gpus: int = 1
    memory_bytes: int | None = None
    share_permille: int = WHOLE_GPU


@dataclass(frozen=True)
class _Reader:
    """The resources of one family that one container asks for."""

    container: str
    amounts: Mapping[str, object]
    defaults: Defaults

    def error(self, name: str, why: str) -> ResourceError:
        return ResourceError(
            f"container '{self.container}': {name}: {str(self.amounts.get(name))[:40]!r} {why}"
        )

    def has(self, name: str) -> bool:
        return name in self.amounts

    def number(self, name: str, low: int, high: int, scale: int = 1) -> int:
        """A whole number of ``scale``-ths."""
        try:
            amount = quantities.parse(self.amounts[name]) * scale
        except ValueError as error:
            raise self.error(name, str(error)) from None
        if amount.denominator != 1 or not low <= amount <= high:
            allowed = f"{low / scale:g}..{high / scale:g}"
            step = "a whole number " if scale == 1 else f"a number in steps of {1 / scale:g}, "
            raise self.error(name, f"is not {step}{allowed}")
        return amount.numerator

    def gpus(self, name: str) -> int:
        return self.number(name, 1, MAX_GPUS) if self.has(name) else 1

    def memory(self, name: str, unit: int) -> int | None:
        if not self.has(name):
            return None
        try:
            size = quantities.whole(self.amounts[name]) * unit
        except ValueError as error:
            raise self.error(name, str(error)) from None
        if not LEAST_MEMORY <= size <= MOST_MEMORY:
            allowed = f"{format_size(LEAST_MEMORY)}..{format_size(MOST_MEMORY)}"
            raise self.error(name, f"is too little or too much; allowed are {allowed} of each GPU")
        return size

    def compute(self, name: str, memory_bytes: int | None, memory: str) -> int:
        """Percent of a GPU, in tenths if need be; less than all of it only with ``memory``."""
        if not self.has(name):
            return WHOLE_GPU if memory_bytes is None else self.defaults.share_permille
        share = self.number(name, 1, WHOLE_GPU, scale=10)
        if memory_bytes is None and share != WHOLE_GPU:
            raise self.error(name, f"is a part of a GPU; say {memory} as well")
        return share


def _gpupool(reader: _Reader) -> Asked:
    memory_bytes = reader.memory(names.MEMORY, 1)
    share = reader.compute(names.COMPUTE, memory_bytes, names.MEMORY)
    return Asked(reader.gpus(names.GPU), memory_bytes, share)


def _hami(reader: _Reader) -> Asked:
    """``gpumem`` in MB, by which it means 2^20 bytes; percentages of a card, and of its cores.

    https://github.com/Project-HAMi/HAMi/blob/master/docs/config.md
    """
    memory_bytes = reader.memory(HAMI_MEMORY, _MIB)
    if reader.has(HAMI_PERCENTAGE):
        if memory_bytes is not None:
            raise reader.error(HAMI_PERCENTAGE, f"and {HAMI_MEMORY} both ask for memory")
        percentage = reader.number(HAMI_PERCENTAGE, 1, 100)
        if percentage < 100:
            if reader.defaults.card_bytes is None:
                raise reader.error(
                    HAMI_PERCENTAGE,
                    f"is of a card, and the pool has many kinds; ask for {HAMI_MEMORY}, or have"
                    " 'card_memory' set",
                )
            memory_bytes = max(reader.defaults.card_bytes * percentage // 100, LEAST_MEMORY)
    share = reader.compute(HAMI_CORES, memory_bytes, HAMI_MEMORY)
    return Asked(reader.gpus(NVIDIA_GPU), memory_bytes, share)


def _aliyun(reader: _Reader) -> Asked:
    """GiB of one GPU.

    https://github.com/AliyunContainerService/gpushare-scheduler-extender/blob/master/docs/userguide.md
    """
    return Asked(1, reader.memory(ALIYUN_MEMORY, _GIB), reader.defaults.share_permille)


def _tencent(reader: _Reader) -> Asked:
    """Hundredths of a GPU, and units of 256 MiB; from 100 on whole GPUs with all their memory.

    https://github.com/tkestack/gpu-manager/blob/master/README.md
    """
    if not reader.has(VCUDA_CORE):
        raise reader.error(VCUDA_MEMORY, f"needs {VCUDA_CORE} beside it")
    core = reader.number(VCUDA_CORE, 1, VCUDA_CARD * MAX_GPUS)
    if core >= VCUDA_CARD:
        if core % VCUDA_CARD:
            raise reader.error(VCUDA_CORE, "is neither 1..99 nor a multiple of 100 (whole GPUs)")
        return Asked(core // VCUDA_CARD)
    memory_bytes = reader.memory(VCUDA_MEMORY, VCUDA_UNIT)
    if memory_bytes is None:
        raise reader.error(VCUDA_CORE, f"needs {VCUDA_MEMORY} beside it")
    return Asked(1, memory_bytes, core * 10)


#: The names of each family, by what it is called in the setting ``resource_names``.
FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[_Reader], Asked]]] = {
    "gpupool": (names.RESOURCES, _gpupool),
    "nvidia": ((NVIDIA_GPU, HAMI_MEMORY, HAMI_PERCENTAGE, HAMI_CORES), _hami),
    "aliyun": ((ALIYUN_MEMORY,), _aliyun),
    "tencent": ((VCUDA_CORE, VCUDA_MEMORY), _tencent),
}


def amounts(
    container: str, resources: Mapping[str, Any], families: tuple[str, ...]
) -> dict[str, object]:
    """What a container's ``resources`` say under the names of these families; {}: nothing.

    As Kubernetes has it for extended resources: a limit, and a request only if it is the same.
    """
    limits, requests = (_table(container, resources, part) for part in ("limits", "requests"))
    found: dict[str, object] = {}
    for name in (name for family in families for name in FAMILIES[family][0]):
        if name in requests and name not in limits:
            raise ResourceError(
                f"container '{container}': {name}: stands in requests only; write it in limits"
            )
        if name not in limits:
            continue
        if name in requests and _differ(requests[name], limits[name]):
            raise ResourceError(
                f"container '{container}': {name}: the request {str(requests[name])[:40]!r} is not"
                f" the limit {str(limits[name])[:40]!r}"
            )
        if not _is_nothing(limits[name]):
            found[name] = limits[name]
    return found


def _differ(one: object, other: object) -> bool:
    try:
        return quantities.parse(one) != quantities.parse(other)
    except ValueError:
        return one != other


def _is_nothing(amount: object) -> bool:
    """A zero asks for nothing, as with device plugins."""
    try:
        return quantities.parse(amount) == 0
    except ValueError:
        return False


def read(container: str, found: Mapping[str, object], defaults: Defaults) -> Asked:
    """What amounts that are there ask for; ResourceError."""
    families = list(_families_of(found))
    if len(families) > 1:
        each = " and ".join(sorted(found))
        raise ResourceError(f"container '{container}': {each} ask for GPUs twice; keep one of them")
    return FAMILIES[families[0]][1](_Reader(container, found, defaults))


def _families_of(found: Mapping[str, object]) -> Iterator[str]:
    return (family for family, (own, _) in FAMILIES.items() if any(name in own for name in found))


def _table(container: str, resources: Mapping[str, Any], part: str) -> Mapping[str, object]:
    found = resources.get(part) or {}
    if not isinstance(found, dict):
        raise ResourceError(f"container '{container}': its resources' {part} are no object")
    return found
