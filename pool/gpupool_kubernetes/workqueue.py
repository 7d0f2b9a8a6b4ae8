"""Objects that are to be looked at: each once at a time, when it is due, later after failures."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable

from gpupool_common import logs
from gpupool_common.errors import GpupoolError

#: The pause after a first failure, and the longest; in between it doubles.
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0

_log = logs.get("queue")

#: Looks at what a key names; says in how many seconds it wants to again, None: when it changes.
Look = Callable[[str], Awaitable[float | None]]


class WorkQueue:
    """Keys, and when each is due."""

    def __init__(self, look: Look, pause: float = FIRST_SECONDS) -> None:
        self._look = look
        self._pause = pause
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._woken = asyncio.Event()

    def add(self, key: str, delay: float = 0.0) -> None:
        """Look at it, at the latest after ``delay``. What is being looked at is so once more."""
        if key in self._busy:
            if delay <= 0:
                self._again.add(key)
            return
        due = asyncio.get_running_loop().time() + delay
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._woken.set()

    def forget(self, key: str) -> None:
        """It is not there any more."""
        self._due.pop(key, None)
        self._again.discard(key)
        self._failures.pop(key, None)

    async def run(self, workers: int = 8) -> None:
        """Look, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            self._busy.add(key)
            try:
                wait = await self._look_once(key)
            finally:
                self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                wait = 0.0 if key not in self._failures else wait
            if wait is not None:
                self.add(key, wait)

    async def _look_once(self, key: str) -> float | None:
        try:
            wait = await self._look(key)
        except GpupoolError as error:
            pause = self._back_off(key)
            _log.warning("to be done again", object=key, seconds=round(pause, 1), reason=str(error))
            return pause
        except Exception:  # one object that nobody foresaw must not stop the others
            _log.exception("to be done again", object=key)
            return self._back_off(key)
        self._failures.pop(key, None)
        return wait

    def _back_off(self, key: str) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause: float = min(self._pause * 2.0 ** min(failures - 1, 16), LONGEST_SECONDS)
        return pause * random.uniform(0.8, 1.2)

    async def _next(self) -> str:
        """The key that is due first, once it is."""
        loop = asyncio.get_running_loop()
        while True:
            while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)  # it was forgotten, or made due earlier
            if self._heap and self._heap[0][0] <= loop.time():
                _, key = heapq.heappop(self._heap)
                del self._due[key]
                return key
            self._woken.clear()
            wait = self._heap[0][0] - loop.time() if self._heap else None
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                continue
