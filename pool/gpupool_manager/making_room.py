"""Which leases must end so that there is room for a request: as few as will do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from gpupool_manager.index import kind_of
from gpupool_manager.ledger import Ledger
from gpupool_manager.placement_request import PlacementRequest, Slot
from gpupool_manager.records import Lease
from gpupool_manager.scheduler import NoRoom, Placement, judge, place
from gpupool_manager.trial import Trial


@dataclass(frozen=True, slots=True)
class Room:
    """Where a request goes once these leases have ended."""

    ended: list[Lease]
    slots: tuple[Slot, ...]


def make_room(
    trial: Trial, ledger: Ledger, leases: Iterable[Lease], request: PlacementRequest
) -> Room | None:
    """Grant the request on trial; None: not even all of these leases together are enough."""
    ended: list[Lease] = []
    result = place(ledger.index, request)
    useful = _useful(ledger, leases, request)
    # Twice as many each time: the request is tried a few times, however many there are.
    while isinstance(result, NoRoom) and (more := list(islice(useful, len(ended) or 1))):
        for lease in more:
            trial.end(lease)
        ended += more
        result = place(ledger.index, request)
    chosen: list[Lease] = []
    for lease in reversed(ended):
        trial.restore(lease)
        if isinstance(result, Placement) and any(judge(request, slot) for slot in result.slots):
            trial.end(lease)
            chosen.append(lease)
    if isinstance(result, NoRoom):
        return None
    trial.grant(request, result.slots)
    return Room(chosen, result.slots)


def _useful(ledger: Ledger, leases: Iterable[Lease], request: PlacementRequest) -> Iterator[Lease]:
    """Those that have a GPU that the request could take if it had room."""
    kinds = ledger.index.kinds(request)
    for lease in leases:
        slots = (ledger.index.slots[grant.gpu] for grant in lease.present)
        if any(kind_of(slot) in kinds and slot.closed is None for slot in slots):
            yield lease
