"""The GPUs of a pool, arranged so that the best one is found without looking at all.

GPUs of one kind (model, capability, memory) are on one shelf: a row for each
number of thousandths that are free, sorted by free memory. A row's entry is
``(free memory, unused GPUs on its node if it is unused itself, node, index, slot)``,
so that a walk along the rows is a walk in the order of a policy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpupool_common.sizes import format_part, format_size
from gpupool_manager.placement_request import Capability, PlacementRequest, Slot, wrong_kind

Entry = tuple[int, int, str, int, Slot]
Row = list[Entry]
Kind = tuple[str, Capability, int]


@dataclass(slots=True)
class Stock:
    """How many GPUs of one kind a node has."""

    all: int = 0
    open: int = 0


class Shelf:
    """All GPUs of one kind that may be given out."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.total_bytes = kind[2]
        #: By free thousandths; no row is empty.
        self.rows: dict[int, Row] = {}


class Index:
    """What is free where. Nothing here knows of leases, tenants or time."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self.slots: dict[str, Slot] = {}
        self.nodes: dict[str, dict[str, Slot]] = {}
        #: Of all GPUs, closed ones too.
        self.total_bytes = 0
        #: Counts whatever changes which GPUs there are, and which may be given out.
        self.changes = 0
        self._shelves: dict[Kind, Shelf] = {}
        self._wholes: dict[str, int] = {}
        #: How many GPUs of a kind each node has: all, and those that are given out.
        self._stock: dict[Kind, dict[str, Stock]] = {}
        for slot in slots:
            self.add(slot)

    def wholes(self, node: str) -> int:
        """How many GPUs of a node are unused and may be given out."""
        return self._wholes.get(node, 0)

    def shelves(self, request: PlacementRequest) -> list[Shelf]:
        """The kinds that will do."""
        return [shelf for kind, shelf in self._shelves.items() if not wrong_kind(request, *kind)]

    def kinds(self, request: PlacementRequest) -> frozenset[Kind]:
        """The kinds that will do, without what is on their shelves."""
        if request.uuids:
            there = [self.slots[uuid] for uuid in request.uuids if uuid in self.slots]
            return frozenset(map(kind_of, there)) | one_of_a_kind(request.uuids)
        return frozenset(shelf.kind for shelf in self.shelves(request))

    def least_bytes(self, request: PlacementRequest) -> int:
        """The least memory of the whole GPUs that will do; 0: there are none."""
        if request.uuids:
            return sum(self.slots[uuid].total_bytes for uuid in request.uuids if uuid in self.slots)
        return request.gpus * min((total for _, _, total in self.kinds(request)), default=0)

    def stock(self, request: PlacementRequest) -> Iterator[tuple[str, Stock]]:
        """Nodes with GPUs of the kinds that will do, kind by kind."""
        for kind, nodes in self._stock.items():
            if not wrong_kind(request, *kind):
                yield from nodes.items()

    def stocked(self) -> Iterator[tuple[Kind, str]]:
        """Every kind of GPU, with each node that has some."""
        for kind, nodes in self._stock.items():
            for node in nodes:
                yield kind, node

    def count_of(self, kind: Kind, node: str) -> int:
        """How many GPUs of a kind a node has, closed ones too."""
        return self._stock[kind][node].all

    def example(self, node: str) -> Slot:
        """Some GPU of a node that has GPUs: what it says of its node holds for all of them."""
        return next(iter(self.nodes[node].values()))

    def add(self, slot: Slot) -> None:
        """A GPU appears; its use so far counts."""
        if slot.uuid in self.slots:
            raise ValueError(f"the GPU {slot.uuid} is there already")
        self.changes += 1
        self.slots[slot.uuid] = slot
        self.nodes.setdefault(slot.node, {})[slot.uuid] = slot
        self.total_bytes += slot.total_bytes
        self._put(slot)
        self._count_stock(slot, 1)

    def remove(self, uuid: str) -> Slot:
        """A GPU goes away."""
        self.changes += 1
        slot = self.slots.pop(uuid)
        self.total_bytes -= slot.total_bytes
        self._pull(slot)
        self._count_stock(slot, -1)
        on_node = self.nodes[slot.node]
        del on_node[uuid]
        if not on_node:
            del self.nodes[slot.node]
        return slot

    def take(self, uuid: str, memory: int, share: int) -> None:
        """Count a grant; ValueError if there is no room, and then nothing has changed."""
        slot = self.slots[uuid]
        if memory > slot.free_bytes or share > slot.free_permille:
            raise ValueError(f"the GPU {uuid} has no room for {_part(memory, share)}")
        self._change(slot, memory, share, 1)

    def give(self, uuid: str, memory: int, share: int) -> None:
        """Count a grant no more."""
        slot = self.slots[uuid]
        if memory > slot.used_bytes or share > slot.used_permille or slot.holders < 1:
            raise ValueError(f"the GPU {uuid} has not given {_part(memory, share)}")
        self._change(slot, -memory, -share, -1)

    def resize(self, uuid: str, memory: int, share: int) -> None:
        """A grant is so much larger, or smaller; ValueError if there is no room."""
        slot = self.slots[uuid]
        if memory > slot.free_bytes or share > slot.free_permille:
            raise ValueError(f"the GPU {uuid} has no room for {_part(memory, share)} more")
        if -memory > slot.used_bytes or -share > slot.used_permille:
            raise ValueError(f"the GPU {uuid} has not given {_part(-memory, -share)}")
        self._change(slot, memory, share, 0)

    def close(self, uuid: str, reason: str | None) -> None:
        """Say why a GPU is given to nobody any more; None: it is given again."""
        slot = self.slots[uuid]
        if slot.closed != reason:
            self.changes += 1
            self._pull(slot)
            self._count_stock(slot, -1)
            slot.closed = reason
            self._count_stock(slot, 1)
            self._put(slot)

    def limit(self, uuid: str, most: int) -> None:
        """Change how many grants a GPU may have."""
        slot = self.slots[uuid]
        self.changes += 1
        self._pull(slot)
        slot.most = most
        self._put(slot)

    def _change(self, slot: Slot, memory: int, share: int, holders: int) -> None:
        self._pull(slot)
        slot.used_bytes += memory
        slot.used_permille += share
        slot.holders += holders
        self._put(slot)

    def _entry(self, slot: Slot) -> Entry:
        wholes = self._wholes.get(slot.node, 0) if slot.whole else 0
        return (slot.free_bytes, wholes, slot.node, slot.index, slot)

    def _count_stock(self, slot: Slot, step: int) -> None:
        nodes = self._stock.setdefault(kind_of(slot), {})
        stock = nodes.setdefault(slot.node, Stock())
        stock.all += step
        stock.open += step * (slot.closed is None)
        if not stock.all:
            del nodes[slot.node]

    def _row(self, slot: Slot) -> Row:
        kind = kind_of(slot)
        shelf = self._shelves.get(kind)
        if shelf is None:
            shelf = self._shelves[kind] = Shelf(kind)
        return shelf.rows.setdefault(slot.free_permille, [])

    def _put(self, slot: Slot) -> None:
        if slot.usable:
            if slot.whole:
                self._count_wholes(slot, 1)
            insort(self._row(slot), self._entry(slot))

    def _pull(self, slot: Slot) -> None:
        if slot.usable:
            self._drop(slot)
            if slot.whole:
                self._count_wholes(slot, -1)

    def _drop(self, slot: Slot) -> None:
        row = self._row(slot)
        at = bisect_left(row, self._entry(slot))
        if at == len(row) or row[at][4] is not slot:
            raise RuntimeError(f"the GPU {slot.uuid} is not in its place")
        del row[at]
        if not row:
            del self._shelves[kind_of(slot)].rows[slot.free_permille]

    def _count_wholes(self, slot: Slot, step: int) -> None:
        """Change a node's number of unused GPUs, which is in the entries of them all."""
        others = [
            other
            for other in self.nodes[slot.node].values()
            if other is not slot and other.whole and other.usable
        ]
        for other in others:
            self._drop(other)
        self._wholes[slot.node] = self._wholes.get(slot.node, 0) + step
        for other in others:
            insort(self._row(other), self._entry(other))

    def __iter__(self) -> Iterator[Slot]:
        """All GPUs, by node and index."""
        for node in sorted(self.nodes):
            yield from sorted(self.nodes[node].values(), key=lambda slot: slot.index)


def one_of_a_kind(uuids: Iterable[str]) -> frozenset[Kind]:
    """Named GPUs as kinds of their own: requests for the same one compete, others do not."""
    return frozenset((uuid, (0, 0), 0) for uuid in uuids)


def _part(memory: int, share: int) -> str:
    return f"{format_size(memory)} and {format_part(share)}"


def kind_of(slot: Slot) -> Kind:
    """What GPUs that will do for the same requests have in common."""
    return (slot.model, slot.capability, slot.total_bytes)
