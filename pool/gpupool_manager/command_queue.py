"""The one place where state changes: operations in a row, committed in batches.

An operation is a function that changes the ledger and says in a transaction what has to be
written. It never waits, so no other operation can come in between its check and its
deed. Those that have queued up are committed as one transaction, and only then does
anybody learn of their outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpupool_common import logs
from gpupool_manager.problems import Problem, unavailable
from gpupool_manager.store import Store, StoreError
from gpupool_manager.transaction import MANAGER, Actor, Event, Transaction

T = TypeVar("T")

_STOPPING = "the manager is stopping"
_DOWN = "the database cannot be read; nothing was changed"

#: The most operations in one transaction.
BATCH = 256

#: After a commit has taken so long, nobody is let in behind it.
STUCK_SECONDS = 2.0


@dataclass(slots=True)
class _Job:
    operation: Callable[[Transaction], Any]
    actor: Actor
    done: asyncio.Future[Any]


class CommandQueue:
    """Runs operations; to be started once."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        publish: Callable[[list[Event]], None],
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._publish = publish
        self._reload = reload
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._runner: asyncio.Task[None] | None = None
        self._log = logs.get("commands")
        self.commits = 0
        #: Whether the database cannot be read.
        self._down = False
        self._stopping = False
        #: Since when a commit has been going on, or the attempt to make one good.
        self._since: float | None = None

    def start(self) -> None:
        self._runner = asyncio.create_task(self._run(), name="commands")

    @property
    def running(self) -> bool:
        return self._runner is not None and not self._runner.done()

    async def close(self) -> None:
        """Finish what was asked for, then refuse the rest."""
        if self._runner is not None:
            self._stopping = True
            self._jobs.put_nowait(None)
            await self._runner
            self._runner = None

    async def do(self, operation: Callable[[Transaction], T], actor: Actor = MANAGER) -> T:
        """The operation's result, once it is in the database; what it raised otherwise."""
        if not self.running or self._stopping:
            raise unavailable(_STOPPING)
        if self._down or self._is_stuck():
            raise unavailable(_DOWN)
        job = _Job(operation, actor, asyncio.get_running_loop().create_future())
        self._jobs.put_nowait(job)
        result: T = await asyncio.shield(job.done)
        return result

    def _is_stuck(self) -> bool:
        """Whether the database has said nothing for so long that nobody is to wait behind it."""
        return self._since is not None and time.monotonic() - self._since > STUCK_SECONDS

    async def settle(self) -> None:
        """Wait until everything asked for so far is in the database."""
        await self.do(lambda transaction: None)

    async def _run(self) -> None:
        stopping = False
        while not stopping:
            batch = [await self._jobs.get()]
            while len(batch) < BATCH and not self._jobs.empty():
                batch.append(self._jobs.get_nowait())
            stopping = None in batch
            todo = [job for job in batch if job is not None]
            while todo:
                todo = await self._run_batch(todo)
                self._since = None
        _refuse(self._waiting(), _STOPPING)

    def _waiting(self) -> list[_Job]:
        """Take out all that are in the queue."""
        jobs: list[_Job] = []
        while not self._jobs.empty():
            job = self._jobs.get_nowait()
            if job is not None:
                jobs.append(job)
        return jobs

    async def _run_batch(self, jobs: list[_Job]) -> list[_Job]:
        """Run and commit; what is left to do if one of them failed badly."""
        transaction = Transaction(self._clock())
        finished: list[tuple[_Job, Any]] = []
        left: list[_Job] = []
        broken = False
        for number, job in enumerate(jobs):
            part = Transaction(self._clock(), job.actor)
            try:
                finished.append((job, job.operation(part)))
            except Problem as problem:
                _fail(job, problem)
                broken = not part.empty
            except Exception as error:
                self._log.exception("an operation failed")
                _fail(job, error)
                broken = True
            else:
                transaction.merge(part)
            if broken:
                # The ledger may be half changed: what comes after starts from the database.
                left = jobs[number + 1 :]
                break
        self._since = time.monotonic()
        try:
            await self._store.commit(transaction)
        except StoreError as error:
            self._log.error("the transaction was not written", reason=str(error))
            return await self._recover([job for job, _ in finished], left)
        self.commits += not transaction.empty
        self._publish(transaction.events)
        for job, result in finished:
            if not job.done.done():
                job.done.set_result(result)
        return await self._recover([], left) if broken else left

    async def _recover(self, lost: list[_Job], left: list[_Job]) -> list[_Job]:
        """Take the state from the database again; what is left to do then.

        No failure is reported before the ledger agrees that nothing was done. While the
        database cannot be read, everything is refused.
        """
        delay = 0.1
        while not await self._reloaded(delay):
            _refuse(lost + left, "the database cannot be read; ask again what was done")
            lost, left = [], []
            if self._stopping:
                return []
            _refuse(self._waiting(), _DOWN)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 5.0)
        _refuse(lost, "the database cannot be written; nothing was changed")
        return left

    async def _reloaded(self, delay: float) -> bool:
        try:
            await self._reload()
        except StoreError as error:
            self._down = True
            self._log.error("the database cannot be read", reason=str(error), again_in=delay)
            return False
        self._down = False
        return True


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
        # Who asked may have gone away: then nobody looks at it, and that is no fault.
        job.done.exception()


def _refuse(jobs: list[_Job], reason: str) -> None:
    for job in jobs:
        _fail(job, unavailable(reason))
