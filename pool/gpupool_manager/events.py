"""Events for those who watch: the last ones in memory, new ones as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakSet

from gpupool_manager.transaction import Event

#: How many events a late watcher can still have.
KEPT = 4096

#: How far a slow watcher may fall behind.
MOST_BEHIND = 1024


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event with its place in the order."""

    number: int
    event: Event


class Watcher:
    """One who watches; ``None`` from :meth:`next` means: too slow, events are missing."""

    def __init__(self, tenant: str | None = None) -> None:
        #: Whose it is; None: an operator's.
        self.tenant = tenant
        self._queue: asyncio.Queue[Numbered | None] = asyncio.Queue()
        self._lost = False

    def tell(self, event: Numbered) -> None:
        if self._lost:
            return  # whoever reads nothing makes nothing grow
        self._lost = self._queue.qsize() >= MOST_BEHIND
        self._queue.put_nowait(None if self._lost else event)

    async def next(self, seconds: float | None = None) -> Numbered | None:
        """The next event; TimeoutError if none comes in time."""
        return await asyncio.wait_for(self._queue.get(), seconds)

    def end(self) -> None:
        self._queue.put_nowait(None)


class Bus:
    """Passes events on. Numbers start again with every start of the manager (``epoch``)."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._kept: deque[Numbered] = deque(maxlen=KEPT)
        #: One whose answer was never begun is nobody's, and goes.
        self._watchers: WeakSet[Watcher] = WeakSet()
        self._number = 0

    def publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self._number += 1
            numbered = Numbered(self._number, event)
            self._kept.append(numbered)
            for watcher in self._watchers:
                watcher.tell(numbered)

    def watch(self, tenant: str | None = None) -> Watcher:
        watcher = Watcher(tenant)
        self._watchers.add(watcher)
        return watcher

    def watching(self, tenant: str) -> int:
        """How many watch for a tenant."""
        return sum(watcher.tenant == tenant for watcher in self._watchers)

    def forget(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def since(self, last: str) -> list[Numbered] | None:
        """What came after the event with this id; None if that cannot be known any more."""
        epoch, _, number = last.rpartition("-")
        if epoch != self.epoch or not number.isdecimal() or len(number) > 18:
            return None
        after = int(number)
        if self._kept and after < self._kept[0].number - 1 or after > self._number:
            return None
        return [event for event in self._kept if event.number > after]

    def kept(self) -> list[Numbered]:
        """All that is known, the oldest first."""
        return list(self._kept)

    def id_of(self, event: Numbered) -> str:
        return f"{self.epoch}-{event.number}"

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.end()
