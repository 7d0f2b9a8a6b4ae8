"""Placement: a pure function of what is free and what is wanted.

``place`` changes nothing and depends on nothing but its arguments: the same index
and the same request always give the same GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gpupool_common.sizes import format_part, format_size
from gpupool_manager.index import Index
from gpupool_manager.placement_request import (
    PlacementRequest,
    Slot,
    no_room,
    not_named,
    wrong_kind,
    wrong_node,
)
from gpupool_manager.unmet import unmet
from gpupool_manager.walks import RULES, cost, count, walk


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen GPUs; virtual GPU 0 is on the first."""

    slots: tuple[Slot, ...]
    rule: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why there is none."""

    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One GPU's part in an explanation. ``reason`` is None where the request fits."""

    slot: Slot
    reason: str | None
    rank: int | None = None


def place(index: Index, request: PlacementRequest) -> Placement | NoRoom:
    """Where the request goes, or why nowhere."""
    if request.uuids:
        return _as_named(index, request)
    fitting = count(index, request)
    if fitting < request.gpus:
        return NoRoom(_all_closed(index, request) or _too_few(request, fitting))
    candidates = walk(index, request)
    if request.gpus == 1:
        first = next(candidates, None)
        return NoRoom(_too_few(request, 0)) if first is None else _chosen(request, [first])
    if request.hosts == "spread":
        return _spread_out(request, candidates)
    return _together(request, candidates)


def _as_named(index: Index, request: PlacementRequest) -> Placement | NoRoom:
    """The GPUs that somebody else chose, if all of them have room."""
    slots: list[Slot] = []
    for uuid in request.uuids:
        slot = index.slots.get(uuid)
        if slot is None:
            return NoRoom(f"the pool has no GPU '{uuid}'")
        if (reason := judge(request, slot)) is not None:
            return NoRoom(f"{_what(request)} does not fit on {uuid}: {_without_numbers(reason)}")
        slots.append(slot)
    return Placement(tuple(slots), "the request named the GPUs")


#: What a tenant is told of a GPU that it names: how much others have there it may not know.
_LACKS = {
    "memory": "not enough of its memory is free",
    "compute": "not enough of its compute is free",
    "grants": "it has as many grants as it may",
}


def _without_numbers(reason: str) -> str:
    kind, _, rest = reason.partition(": ")
    return _LACKS.get(kind) or f"{kind}: {rest.partition(':')[0]}"


def _spread_out(request: PlacementRequest, candidates: Iterator[Slot]) -> Placement | NoRoom:
    """The best GPU of each node, best nodes first."""
    by_node: dict[str, Slot] = {}
    for slot in candidates:
        by_node.setdefault(slot.node, slot)
        if len(by_node) == request.gpus:
            return _chosen(request, list(by_node.values()))
    nodes = _count(len(by_node), "node")
    return NoRoom(f"{_what(request)} fits on {nodes}, and {request.gpus} must be different")


def _together(request: PlacementRequest, candidates: Iterator[Slot]) -> Placement | NoRoom:
    """The first node that has enough; with hosts "any", else as few nodes as will do."""
    by_node: dict[str, list[Slot]] = {}
    for slot in candidates:
        found = by_node.setdefault(slot.node, [])
        found.append(slot)
        if len(found) == request.gpus:
            return _chosen(request, found)
    fitting = sum(map(len, by_node.values()))
    if fitting < request.gpus:
        return NoRoom(_too_few(request, fitting))
    if request.hosts == "same":
        most = _count(max(map(len, by_node.values())), "GPU")
        return NoRoom(f"{_what(request)} fits on at most {most} of one node, asked {request.gpus}")
    # Sorting is stable: nodes with equally many stay in the policy's order.
    nodes = sorted(by_node.values(), key=len, reverse=True)
    chosen = [slot for found in nodes for slot in found][: request.gpus]
    return _chosen(request, chosen)


def _chosen(request: PlacementRequest, slots: list[Slot]) -> Placement:
    rule = RULES[request.policy]
    if request.gpus > 1 and request.hosts == "spread":
        rule = f"a different node for each; on each {rule}"
    elif request.gpus > 1:
        nodes = len({slot.node for slot in slots})
        where = "one node" if nodes == 1 else f"{nodes} nodes, the fewest that were enough"
        rule = f"{where}; there {rule}"
    return Placement(tuple(slots), rule)


def _what(request: PlacementRequest) -> str:
    if request.memory_bytes is None:
        return "a whole GPU"
    return (
        f"{format_size(request.memory_bytes)} with {format_part(request.share_permille)} of a GPU"
    )


def _too_few(request: PlacementRequest, fitting: int) -> str:
    return f"{_what(request)} fits on {_count(fitting, 'GPU')}, asked {request.gpus}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _all_closed(index: Index, request: PlacementRequest) -> str | None:
    """What to wait for where it is not room that lacks: no node takes anything new."""
    nodes: dict[str, bool] = {}
    for node, stock in index.stock(request):
        nodes[node] = nodes.get(node, False) or stock.open > 0
    if not nodes or any(nodes.values()):
        return None
    closed = [(index.example(node).closed or "").removeprefix("node: it is ") for node in nodes]
    reasons = Counter(reason.partition(":")[0] for reason in closed)
    said = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    every = "the only node" if len(nodes) == 1 else f"all {len(nodes)} nodes"
    take = "takes" if len(nodes) == 1 else "take"
    return f"{every} with such GPUs {take} no new leases ({said}); asked {request.gpus}"


def judge(request: PlacementRequest, slot: Slot) -> str | None:
    """Why this GPU will not do; None: it will."""
    return (
        not_named(request, slot)
        or wrong_kind(request, slot.model, slot.capability, slot.total_bytes)
        or wrong_node(request, slot)
        or no_room(request, slot)
    )


def explain(index: Index, request: PlacementRequest) -> list[Verdict]:
    """A verdict on every GPU: those that fit first, best first, then the others by node."""
    fit: list[Slot] = []
    unfit: list[Verdict] = []
    for slot in index:
        reason = judge(request, slot)
        if reason is None:
            fit.append(slot)
        else:
            unfit.append(Verdict(slot, reason))
    fit.sort(key=lambda slot: cost(index, request, slot))
    return [Verdict(slot, None, rank) for rank, slot in enumerate(fit, 1)] + unfit


def summarise(verdicts: list[Verdict]) -> dict[str, int]:
    """How many GPUs fit, and how many fail for which kind of reason."""
    kinds = Counter(
        "fits" if verdict.reason is None else verdict.reason.partition(":")[0]
        for verdict in verdicts
    )
    return dict(sorted(kinds.items()))


def summarise_own(request: PlacementRequest, verdicts: list[Verdict]) -> dict[str, int]:
    """As :func:`summarise`, for who must not see what others have: that is only not free."""
    kinds = Counter[str]()
    for verdict in verdicts:
        slot = verdict.slot
        own = not_named(request, slot)
        own = own or wrong_kind(request, slot.model, slot.capability, slot.total_bytes)
        own = own or wrong_node(request, slot)
        free = "fits" if verdict.reason is None else "not free"
        kinds[own.partition(":")[0] if own else free] += 1
    return dict(sorted(kinds.items()))


def could_ever(index: Index, request: PlacementRequest, open_only: bool = False) -> str | None:
    """Why the request fits not even an empty pool; None: one day it may.

    Unless ``open_only``, a GPU that is closed counts: its node may come back.
    """
    if request.uuids:
        return _never_named(index, request, open_only)
    nodes = Counter[str]()
    for node, stock in index.stock(request):
        if request.any_node or not wrong_node(request, index.example(node)):
            nodes[node] += stock.open if open_only else stock.all
    nodes = +nodes
    if nodes.total() < request.gpus:
        return "" if open_only else unmet(index, request)
    if request.hosts == "same" and max(nodes.values()) < request.gpus:
        return f"no node has {request.gpus} such GPUs"
    if request.hosts == "spread" and len(nodes) < request.gpus:
        return f"{len(nodes)} nodes have such GPUs, and {request.gpus} must be different"
    return None


def _never_named(index: Index, request: PlacementRequest, open_only: bool) -> str | None:
    for uuid in request.uuids:
        slot = index.slots.get(uuid)
        if slot is None:
            return f"the pool has no GPU '{uuid}'"
        wrong = wrong_kind(request, slot.model, slot.capability, slot.total_bytes)
        wrong = wrong or wrong_node(request, slot)
        if wrong is not None:
            return f"{uuid}: {wrong}"
        if open_only and slot.closed is not None:
            return ""
    return None
