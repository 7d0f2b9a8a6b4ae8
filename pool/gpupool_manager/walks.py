"""The orders in which the policies prefer GPUs: as a key, and as a lazy walk over an index.

``cost`` is the definition; a walk yields the fitting GPUs by rising cost without
looking at those that it need not. The tests compare the two.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator

from gpupool_manager.index import Entry, Index, Row, Shelf
from gpupool_manager.placement_request import WHOLE, PlacementRequest, Policy, Slot, wrong_node

Cost = tuple[float, float, float, str, int]

#: One sentence a policy: what was preferred.
RULES: dict[Policy, str] = {
    "binpack": "the least compute left, then the least memory, then a node with few unused GPUs",
    "spread": "the most compute free, then the most memory, then a node with many unused GPUs",
    "fragmentation": "a GPU in use before an unused one, then compute and memory left in the most"
    " equal parts, then the least left, then a node with few unused GPUs",
}


def cost(index: Index, request: PlacementRequest, slot: Slot) -> Cost:
    """Lower is better. No two GPUs cost the same: node and index decide in the end."""
    wholes = index.wholes(slot.node) if slot.whole else 0
    return _cost(
        request, (slot.free_bytes, wholes, slot.node, slot.index, slot), slot.free_permille
    )


def _cost(request: PlacementRequest, entry: Entry, free_permille: int) -> Cost:
    free_bytes, wholes, node, number, slot = entry
    if request.policy == "binpack":
        return (free_permille, free_bytes, wholes, node, number)
    if request.policy == "spread":
        return (-free_permille, -free_bytes, -wholes, node, number)
    # An unused GPU comes after every other, and those by how many its node has.
    uneven = wholes * 4.0 + _uneven(request, free_permille, free_bytes, slot.total_bytes)
    return (uneven, free_permille, free_bytes, node, number)


def _uneven(
    request: PlacementRequest, free_permille: int, free_bytes: int, total_bytes: int
) -> float:
    """How differently the parts of compute and memory that would be left differ, 0..1."""
    share = (free_permille - request.share_permille) * total_bytes
    memory = (free_bytes - request.takes(total_bytes)) * WHOLE
    return abs(share - memory) / (WHOLE * total_bytes)


def walk(index: Index, request: PlacementRequest) -> Iterator[Slot]:
    """Every GPU that fits, cheapest first."""
    shelves = index.shelves(request)
    entries = _WALKS[request.policy](shelves, request)
    if request.any_node:
        return (entry[4] for entry in entries)
    return (entry[4] for entry in entries if wrong_node(request, entry[4]) is None)


def count(index: Index, request: PlacementRequest) -> int:
    """How many GPUs fit, not counting what nodes are labelled with."""
    return sum(
        len(row) - start
        for shelf in index.shelves(request)
        for _, row, start in _fitting(shelf, request)
    )


def _fitting(shelf: Shelf, request: PlacementRequest) -> Iterator[tuple[int, Row, int]]:
    """The rows with room: their free thousandths, and from where on memory suffices."""
    memory = request.takes(shelf.total_bytes)
    lowest = WHOLE if request.memory_bytes is None else request.share_permille
    for share in sorted(free for free in shelf.rows if free >= lowest):
        row = shelf.rows[share]
        if row[-1][0] >= memory:
            yield share, row, bisect_left(row, (memory,))


def _by_row(shelves: list[Shelf], request: PlacementRequest) -> dict[int, list[tuple[Row, int]]]:
    rows: dict[int, list[tuple[Row, int]]] = {}
    for shelf in shelves:
        for share, row, start in _fitting(shelf, request):
            rows.setdefault(share, []).append((row, start))
    return rows


def _upwards(row: Row, start: int) -> Iterator[Entry]:
    for at in range(start, len(row)):
        yield row[at]


def _downwards(row: Row, start: int, end: int) -> Iterator[Entry]:
    """From the most memory down; what is equal in memory and unused GPUs, in its own order."""
    while end > start:
        last = row[end - 1]
        first = max(start, bisect_left(row, (last[0], last[1])))
        for at in range(first, end):
            yield row[at]
        end = first


def _binpack(shelves: list[Shelf], request: PlacementRequest) -> Iterator[Entry]:
    rows = _by_row(shelves, request)
    for share in sorted(rows):
        yield from heapq.merge(*(_upwards(row, start) for row, start in rows[share]))


def _spread(shelves: list[Shelf], request: PlacementRequest) -> Iterator[Entry]:
    rows = _by_row(shelves, request)
    for share in sorted(rows, reverse=True):
        walks = [_downwards(row, start, len(row)) for row, start in rows[share]]
        if len(walks) == 1:
            yield from walks[0]
        else:
            yield from heapq.merge(*walks, key=lambda e: (-e[0], -e[1], e[2], e[3]))


def _fragmentation(shelves: list[Shelf], request: PlacementRequest) -> Iterator[Entry]:
    costed: list[Iterator[tuple[Cost, Entry]]] = []
    unused: list[Iterator[tuple[Cost, Entry]]] = []

    def with_cost(walk: Iterator[Entry], share: int) -> Iterator[tuple[Cost, Entry]]:
        return ((_cost(request, entry, share), entry) for entry in walk)

    for shelf in shelves:
        for share, row, start in _fitting(shelf, request):
            if share == WHOLE:
                unused.append(with_cost(_upwards(row, start), share))
                continue
            # What would be left is even at this much free memory, and less so on both sides.
            even = (
                request.takes(shelf.total_bytes)
                + (share - request.share_permille) * shelf.total_bytes / WHOLE
            )
            middle = max(start, bisect_left(row, (even,)))
            if middle < len(row):
                costed.append(with_cost(_upwards(row, middle), share))
            if start < middle:
                costed.append(with_cost(_downwards(row, start, middle), share))
    for _, entry in heapq.merge(*costed):
        yield entry
    for _, entry in heapq.merge(*unused):
        yield entry


_WALKS: dict[Policy, Callable[[list[Shelf], PlacementRequest], Iterator[Entry]]] = {
    "binpack": _binpack,
    "spread": _spread,
    "fragmentation": _fragmentation,
}
