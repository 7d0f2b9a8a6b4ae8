"""What would be free if leases ended: tried on the index itself, and undone."""

from __future__ import annotations

from types import TracebackType

from gpupool_manager.index import Index
from gpupool_manager.placement_request import PlacementRequest, Slot
from gpupool_manager.records import Lease


class Trial:
    """Gives and takes of an index; at its end all is as it was."""

    def __init__(self, index: Index) -> None:
        self._index = index
        #: Whether it was taken, and what.
        self._done: list[tuple[bool, str, int, int]] = []

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for taken, gpu, memory, share in reversed(self._done):
            (self._index.give if taken else self._index.take)(gpu, memory, share)
        self._done.clear()

    def end(self, lease: Lease) -> None:
        """As if this active lease had ended."""
        for grant in lease.grants:
            self._change(False, grant.gpu, grant.memory_bytes, grant.share_permille)

    def restore(self, lease: Lease) -> None:
        """It has not ended after all."""
        for grant in lease.grants:
            self._change(True, grant.gpu, grant.memory_bytes, grant.share_permille)

    def grant(self, request: PlacementRequest, slots: tuple[Slot, ...]) -> None:
        """As if the request were granted there."""
        for slot in slots:
            memory = request.takes(slot.total_bytes)
            self._change(True, slot.uuid, memory, request.share_permille)

    def revoke(self, request: PlacementRequest, slots: tuple[Slot, ...]) -> None:
        """As if what was granted there had ended."""
        for slot in slots:
            memory = request.takes(slot.total_bytes)
            self._change(False, slot.uuid, memory, request.share_permille)

    def hold(self, gpu: str, memory: int, share: int) -> None:
        """As if so much of a GPU were taken."""
        self._change(True, gpu, memory, share)

    def _change(self, take: bool, gpu: str, memory: int, share: int) -> None:
        (self._index.take if take else self._index.give)(gpu, memory, share)
        self._done.append((take, gpu, memory, share))
