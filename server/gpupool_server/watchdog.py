"""The watchdog: compares what the driver says of each worker with its grant, and ends liars.

A worker that was taken over has the driver, and need not ask the arbiter for anything. What it
does there is seen by the driver alone (usage.py); watch.py has the rules.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from gpupool_common import logs
from gpupool_server.board import Account, Board, Snapshot
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus
from gpupool_server.process_tree import attributed, hold_started, kill_held, owners_of
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.usage import Usage, UsageReader
from gpupool_server.watch import HURRY_SECONDS, History
from gpupool_server.watch_look import Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_time import APART_MS, Times
from gpupool_server.watch_turns import Moments, OutsideTurns

#: Policies that know no turns.
OPEN = ("weak", "native")

#: A worker with so much memory is in the driver's list, unless that is not ours to see. So many
#: looks in a row must miss it: it may be about to begin, or to end.
LEAST_SEEN = 16 << 20
MISSED = 20

#: What GPUs say of themselves where nothing is seen.
HIDDEN = (
    "the driver does not list the processes of workers: the server is in a pid namespace of its"
    " own, or the GPU is divided"
)

#: Why time is not seen where the driver looks at moments.
UNTOLD = "the GPU's arbiter is of an earlier release, which does not say whose turn it was"

SELDOM = f"watch.interval_ms is above {APART_MS}: a long kernel would look like a stolen turn"


@dataclass
class _Watched:
    """One GPU under watch."""

    gpu: Gpu
    history: History
    #: What can be seen: ``on``, or ``off: REASON``.
    sees: dict[str, str] = field(default_factory=lambda: {"memory": "on", "time": "on"})
    looks: int = 0
    era: int = 0
    board: Board | None = None
    #: In how many looks in a row no worker was listed, by the pids of those with memory.
    missed: Counter[int] = field(default_factory=Counter)
    #: Whether the list is of others alone.
    hidden: bool = False
    outside: OutsideTurns = field(default_factory=OutsideTurns)
    #: Who is in the log, and for what.
    named: set[tuple[int, str]] = field(default_factory=set)

    def name(self, pid: int, cause: str) -> bool:
        """Whether it is new."""
        known = (pid, cause) in self.named
        self.named.add((pid, cause))
        return not known

    def forget_but(self, workers: Collection[int]) -> None:
        """Their numbers may be others' later."""
        self.named = {(pid, cause) for pid, cause in self.named if pid in workers}


class Watchdog:
    """Looks at every GPU that has workers. Methods are for the event loop's thread only."""

    def __init__(
        self,
        settings: WatchSettings,
        gpus: Gpus,
        supervisor: SessionSupervisor,
        reader: UsageReader,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._reader = reader
        own = reader.own(settings)
        self._watched = [_Watched(gpu, History(settings, own, gpu.index)) for gpu in gpus]
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logs.get("watchdog")

    async def start(self) -> None:
        """Look once, to say what can be seen; then for as long as the server runs."""
        if self._settings.mode == "off":
            for watched in self._watched:
                self._note(watched, "watch.mode is off", "watch.mode is off")
            return
        for watched in self._watched:
            usage = await asyncio.to_thread(self._reader.read, watched.gpu.device)
            self._note(watched, usage.memory_off, usage.time_off)
            self._tasks.append(asyncio.create_task(self._watch(watched), name="watchdog"))
        seen = {
            what: [each.gpu.index for each in self._watched if each.sees[what] == "on"]
            for what in ("memory", "time")
        }
        self._log.info("workers are watched", mode=self._settings.mode, **seen)

    def describe(self, gpu: int) -> dict[str, Any]:
        """What is watched on a GPU, each ``on`` or ``off: REASON``, how often it was, and what was
        found of tenants' time at the last look."""
        for watched in self._watched:
            if watched.gpu.index == gpu:
                history = watched.history
                times = {
                    name: {**_found(*found), "owed": round(history.owed.get(name, 0))}
                    for name, found in history.times.items()
                }
                return {**watched.sees, "looks": watched.looks, "tenants": times}
        return {}

    async def close(self) -> None:
        """Watch no more; workers go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _watch(self, watched: _Watched) -> None:
        while True:
            pause = self._settings.interval_ms / 1000
            await asyncio.sleep(min(pause, HURRY_SECONDS) if watched.history.hurried else pause)
            try:
                await self.look(watched)
            except Exception:  # one look is missing then
                self._log.exception("a GPU cannot be watched", gpu=watched.gpu.index)

    async def look(self, watched: _Watched) -> None:
        """One look at a GPU, and what follows from it."""
        before = watched.gpu.snapshot()
        if before is None:
            return
        workers = [member.pid for member in before.processes]
        watched.forget_but(workers)
        if not workers:
            watched.history.look(_look(watched, before, Usage()))
            return
        usage, theirs, moments = await asyncio.to_thread(self._read, watched.gpu, workers)
        after = watched.gpu.snapshot()  # what is charged by now is more than what was held
        if after is None:
            return
        self._look_for_hidden(watched, after, theirs)
        if usage.late or watched.board is not watched.gpu.board:
            watched.outside.forget(after.now_ns, renumbered=watched.board is not watched.gpu.board)
            watched.era, watched.board = watched.era + 1, watched.gpu.board
        untold = "" if not usage.sample_ns or self._compare(watched, after, moments) else UNTOLD
        theirs = dataclasses.replace(theirs, time_off=theirs.time_off or untold)
        hidden = HIDDEN if watched.hidden else ""
        self._note(watched, usage.memory_off or hidden, theirs.time_off or hidden)
        watched.looks += 1
        for verdict in watched.history.look(_look(watched, after, theirs)):
            await self._act(watched, verdict, [*usage.memory, *usage.time_ns])

    def _read(self, gpu: Gpu, workers: list[int]) -> tuple[Usage, Usage, Moments]:
        """What the driver says, of all and of our workers with what they have started."""
        usage = self._reader.read(gpu.device)
        found = {moment.pid for moment in usage.moments}
        owners = owners_of([*workers, *usage.memory, *usage.time_ns, *found], workers)
        theirs = Usage(
            attributed(usage.memory, owners),
            attributed(usage.time_ns, owners),
            usage.memory_off,
            usage.time_off,
            sample_ns=usage.sample_ns,
        )
        return usage, theirs, Moments(usage.moments, owners)

    @staticmethod
    def _compare(watched: _Watched, now: Snapshot, moments: Moments) -> bool:
        """Whose turn it was when the driver looked; False: nobody says."""
        if now.gpu.policy in OPEN:
            watched.outside.forget(now.now_ns)
            return True
        log = watched.gpu.turns(watched.outside.next)
        if log is not None:
            watched.outside.add(log, moments, now.processes, now.tenants)
            for left in watched.outside.unpaid:
                watched.gpu.charge(left.account, left.ns, left.whose)
        return log is not None

    def _look_for_hidden(self, watched: _Watched, now: Snapshot, theirs: Usage) -> None:
        """Workers have memory, and none is listed: none of them can be seen then."""
        if theirs.memory_off:
            return
        if theirs.memory:
            watched.missed.clear()
            watched.hidden = False
            return
        having = [member.pid for member in now.processes if member.memory_used >= LEAST_SEEN]
        watched.missed = Counter({pid: watched.missed[pid] + 1 for pid in having})
        watched.hidden = watched.hidden or MISSED in watched.missed.values()

    def _note(self, watched: _Watched, memory_off: str, time_off: str) -> None:
        """Say what cannot be seen, once."""
        if not time_off and self._settings.interval_ms > APART_MS:
            time_off = SELDOM
        for name, off in (("memory", memory_off), ("time", time_off)):
            before = watched.sees[name]
            watched.sees[name] = f"off: {off}" if off else "on"
            if off and before == "on":
                self._log.warning(
                    "what workers have of a GPU cannot be seen; a liar there is not found by it",
                    gpu=watched.gpu.index,
                    what=name,
                    reason=off,
                )

    def _name(self, watched: _Watched, verdict: Verdict) -> None:
        """In the log, once."""
        if watched.name(verdict.pid, verdict.cause):
            self._log.warning(
                "a worker takes more of a GPU than it may; it is not ended (watch.mode)",
                gpu=watched.gpu.index,
                worker_pid=verdict.pid,
                cause=verdict.cause,
                reason=verdict.reason,
            )

    async def _act(self, watched: _Watched, verdict: Verdict, seen: list[int]) -> None:
        if self._settings.mode == "log":
            self._name(watched, verdict)
            return
        if not verdict.liar:
            self._supervisor.ask_to_end(verdict.pid, verdict.reason)
            return
        started = await asyncio.to_thread(hold_started, seen, verdict.pid)
        gpu = watched.gpu.index
        self._supervisor.end_liar(gpu, verdict.pid, verdict.tenant, verdict.cause, verdict.reason)
        kill_held(started)


def _look(watched: _Watched, now: Snapshot, theirs: Usage) -> Look:
    """What is compared, at one moment."""
    turns = now.gpu.policy not in OPEN
    return Look(
        now_ns=now.now_ns,
        workers=tuple(
            SeenWorker(
                pid=member.pid,
                tenant=member.tenant,
                held=None if theirs.memory_off else theirs.memory.get(member.pid),
                charged=member.memory_used,
                used_ns=None if theirs.time_off else theirs.time_ns.get(member.pid),
                busy_ns=member.busy_ns,
                late=member.late,
                overdue=member.overdue,
                unseen=member.unseen,
                slice_us=member.slice_us,
                outside_ns=watched.outside.of_worker[member.pid],
                left_ns=watched.outside.left_of_worker[member.pid],
            )
            for member in now.processes
        ),
        tenants={account.name: _tenant(account, watched) for account in now.tenants},
        turns=turns,
        era=watched.era,
        sample_ns=theirs.sample_ns,
        outside_ns=dict(watched.outside.of_tenant),
        left_ns=dict(watched.outside.left_of_tenant),
    )


def _found(times: Times | None, held_back: str) -> dict[str, Any]:
    """The times of a tenant in nanoseconds, and why they are held against nobody."""
    return {**(dataclasses.asdict(times) if times else {}), "held_back": held_back}


def _tenant(account: Account, watched: _Watched) -> SeenTenant:
    claim = watched.gpu.claims.get(account.name)
    return SeenTenant(
        limit=account.memory_limit,
        held_ns=account.held_ns,
        busy_ns=account.busy_ns,
        waited_ns=account.waited_ns,
        beside=account.high_priority,
        due=account.due,
        most=account.entitled,
        forced=claim is not None and claim.forced,
        before=claim.before if claim is not None else 0,
    )
