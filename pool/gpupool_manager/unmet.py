"""Why a request fits not even an empty pool: the condition that too few of its GPUs meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpupool_common.models import is_instance
from gpupool_common.sizes import format_size
from gpupool_manager.index import Index, Kind
from gpupool_manager.placement_request import (
    Capability,
    PlacementRequest,
    Slot,
    dotted,
    matches,
    wrong_driver,
    wrong_kind,
    wrong_labels,
)

#: So many models or values are named; a pool may have hundreds.
_NAMED = 5


@dataclass(frozen=True)
class _Condition:
    """One part of a request: what it asks for, who meets it, and what there is instead."""

    asked: str
    meets: Callable[[Kind, Slot], bool]
    there: str


def unmet(index: Index, request: PlacementRequest) -> str:
    """One line for whoever asked. It tells of the pool's GPUs, and nothing of their users."""
    found = [
        (kind, index.example(node), index.count_of(kind, node)) for kind, node in index.stocked()
    ]
    every = sum(count for _, _, count in found)
    if every < request.gpus:
        return f"the pool has {every or 'no'} GPUs, asked {request.gpus}"
    for condition in _conditions(index, request):
        fitting = sum(count for kind, slot, count in found if condition.meets(kind, slot))
        if fitting < request.gpus:
            return f"{_few(fitting, request.gpus)} {condition.asked}; {condition.there}"
    fitting = sum(
        count
        for kind, slot, count in found
        if not wrong_kind(request, *kind)
        and not wrong_driver(request, slot.driver)
        and not wrong_labels(request, slot.labels)
    )
    asked = " and ".join(condition.asked for condition in _conditions(index, request))
    return f"{_few(fitting, request.gpus)} {asked}; of {every} GPUs of the pool"


def _few(fitting: int, asked: int) -> str:
    if not fitting:
        return "no GPU"
    return f"only {fitting} GPU{'s' if fitting > 1 else ''} (asked {asked})"


def _conditions(index: Index, request: PlacementRequest) -> Iterator[_Condition]:
    kinds = sorted({kind for kind, _ in index.stocked()})
    models = "the pool has " + _list(model for model, _, _ in kinds)
    sizes = [total for _, _, total in kinds]
    if (pattern := request.model) is not None:
        yield _Condition(f"of model '{pattern}'", lambda kind, _: matches(pattern, kind[0]), models)
    if request.gpus > 1 and any(is_instance(model) for model, _, _ in kinds):
        yield _Condition(
            "that is whole",
            lambda kind, _: not is_instance(kind[0]),
            "of instances (MIG) a program has one alone",
        )
    if (allowed := request.models) is not None:
        yield _Condition(
            f"of a model that the quota allows ({_list(allowed)})",
            lambda kind, _: any(matches(name, kind[0]) for name in allowed),
            models,
        )
    if (capability := request.capability) is not None:
        yield _Condition(
            f"of compute capability {dotted(capability)} or more",
            lambda kind, _: kind[1] >= capability,
            f"the most that the pool has is {dotted(max(has for _, has, _ in kinds))}",
        )
    if (memory := request.memory_bytes) is not None:
        yield _Condition(
            f"with {format_size(memory)} of memory",
            lambda kind, _: kind[2] >= memory,
            f"the largest of the pool has {format_size(max(sizes))}",
        )
    elif (most := request.memory_most) is not None:
        yield _Condition(
            f"of no more memory than the {format_size(most)} that the quota allows",
            lambda kind, _: kind[2] <= most,
            f"the smallest of the pool has {format_size(min(sizes))}; ask for a part with --memory",
        )
    if (driver := request.min_driver) is not None:
        known = {index.example(node).driver for _, node in index.stocked()}
        yield _Condition(
            f"with a driver of CUDA {dotted(driver)} or more",
            lambda _, slot: slot.driver >= driver,
            "the pool has " + _list(map(_driver, sorted(known))),
        )
    for key, value in request.labels:
        values = {index.example(node).labels.get(key) for _, node in index.stocked()} - {None}
        there = f"nodes have {key}={_list(map(str, values))}" if values else "no node has that one"
        yield _Condition(
            f"of a node with the label {key}={value}",
            lambda _, slot, key=key, value=value: slot.labels.get(key) == value,  # type: ignore[misc]
            there,
        )


def _driver(version: Capability) -> str:
    return dotted(version) if version > (0, 0) else "unknown ones"


def _list(names: Iterable[str]) -> str:
    found = sorted(set(names))
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
