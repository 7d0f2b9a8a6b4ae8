"""The sessions of this host: admit, watch, adopt after a restart, reap."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Any, TypeVar

from gpupool_common import logs
from gpupool_common.node_protocol import Cause, SessionState
from gpupool_common.space import explain
from gpupool_server import budgets, leaving, worker
from gpupool_server.budgets import State
from gpupool_server.claims import Refusal
from gpupool_server.config import Settings
from gpupool_server.device_choice import choose
from gpupool_server.gpus import Gpus
from gpupool_server.inventory import Inventory
from gpupool_server.jail import Jail
from gpupool_server.launcher import Launcher
from gpupool_server.liars import Liars
from gpupool_server.pending import Pending
from gpupool_server.process import Process
from gpupool_server.refusals import Refusals, TooManySessions, no_descriptors
from gpupool_server.rundir import Meta, RunDir, SessionDir
from gpupool_server.session import Opened, Session, log_fields
from gpupool_server.session_request import SessionRequest
from gpupool_server.start_health import StartHealth
from gpupool_server.tenants import Tenant
from gpupool_server.worker import Control, WorkerError

T = TypeVar("T")

#: How long a worker that was told to stop may take before it is killed.
STOP_SECONDS = 5.0

#: How long a client without room waits for others to end: programs that run one after
#: the other must not meet what the last one is just giving back.
LEAVING_SECONDS = 1.0

#: So many of one tenant may: each is one of the questions that are answered at once.
MOST_PATIENT = 16

#: What users are told when an operator stops a server that ends its sessions.
STOPPING = (
    "the server is being stopped by its operator; start the program again when it is back, or on"
    " another server"
)

#: What users are told when a GPU's arbiter ends again and again.
RUINED = (
    "what decides whose turn it is on GPU {} keeps failing, so all programs there are ended;"
    " start the program again"
)

#: How long a worker may be there after it has said that its client is gone: the driver may
#: never come back from the call that it is in.
GONE_SECONDS = 2.0

#: How often the boards are looked at.
LOOK_SECONDS = 1.0


class SessionSupervisor:
    """All sessions of a server. Methods are for the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        run_dir: RunDir,
        program: Path,
        plugins: Path,
        gpus: Gpus,
        jail: Jail,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._run_dir = run_dir
        self._gpus = gpus
        self._jail = jail
        #: How many clients of each tenant wait for others to end.
        self._patient: Counter[str] = Counter()
        #: Sessions that tenants were refused for their number, and what ended ones were refused.
        self._refused = Refusals()
        self._pending = Pending(settings.max_sessions)
        self.launcher = Launcher(
            settings, inventory, run_dir, program, plugins, gpus, self._pending, jail, self._hear
        )
        self._sessions: dict[str, Session] = {}
        # Chosen but not yet in the table: they count, or two at once could overfill it.
        self._opening: list[tuple[str, str | None, tuple[int, ...]]] = []  # tenant, lease, GPUs
        self._clock: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        self._leaving: set[str] = set()
        #: Called after a session began or ended.
        self.on_change: Callable[[], None] = lambda: None
        #: Sessions that were ended because their workers lied.
        self.liars = Liars()
        self.health = StartHealth(self._probe, lambda: self.on_change())
        self._log = logs.get("sessions")

    def __len__(self) -> int:
        return len(self._sessions) + len(self._opening)

    # Admission -----------------------------------------------------------------

    async def open(self, request: SessionRequest) -> Opened:
        """Start a worker for a client; Refusal says why not."""
        try:
            return await self._patiently(request.tenant.name, lambda: self._open(request))
        except TooManySessions:  # once, however often it was tried
            self._refused.add(request.tenant.name, {"sessions": 1})
            raise

    async def check(self, request: SessionRequest) -> None:
        """Refusal if :meth:`open` would refuse what is asked for; nothing is changed."""

        async def check() -> None:
            devices = self._choose(request)
            self._gpus.check(request.tenant, request.group, request.limits, devices)

        await self._patiently(request.tenant.name, check)

    async def _patiently(self, tenant: str, do: Callable[[], Awaitable[T]]) -> T:
        """Sessions that are just ending make room in a moment."""
        deadline = time.monotonic() + LEAVING_SECONDS
        while True:
            try:
                return await do()
            except Refusal as refusal:
                if refusal.code not in ("full", "over-quota") or not self._sessions:
                    raise
                if self._patient[tenant] >= MOST_PATIENT:
                    raise
                self._patient[tenant] += 1
                try:
                    async with asyncio.timeout(deadline - time.monotonic()):
                        await self._left.wait()
                except TimeoutError:
                    raise refusal from None
                finally:
                    self._patient[tenant] -= 1

    def _choose(self, request: SessionRequest) -> tuple[int, ...]:
        """The devices of a new session; Refusal if there may be none."""
        limit = self._settings.max_sessions
        if len(self) >= limit:
            raise Refusal(
                "full",
                f"the server is full: {len(self)} of {limit} sessions are in use; wait for one to"
                " end, use another server, or raise max_sessions",
            )
        self._check_tenant(request.tenant)
        return choose(request, self._inventory.indexes, self._gpus, self._load())

    async def _open(self, request: SessionRequest) -> Opened:
        devices = self._choose(request)
        self._pending.check(request.tenant)
        leaving.check(request.tenant, devices, self._gpus, self._sessions.values())
        self._opening.append(opening := (request.tenant.name, request.tenant.lease_name, devices))
        try:
            return await self._start(request, devices)
        except WorkerError as error:
            self._log.error("a worker did not start", reason=str(error), client_pid=request.pid)
            self.health.failed(str(error))
            raise Refusal(
                "no-worker", f"no worker could be started: {error}; see the server's log"
            ) from None
        except OSError as error:
            why = explain(error, self._run_dir.path)
            self._log.error("a worker did not start", reason=why, client_pid=request.pid)
            self.health.failed(why)
            if error.errno in worker.NO_DESCRIPTORS:
                raise Refusal("full", no_descriptors(len(self))) from None
            raise Refusal(
                "no-worker", f"no worker could be started: {why}; see the server's log"
            ) from None
        finally:
            self._opening.remove(opening)

    async def _probe(self) -> None:
        """Open a session of our own and end it."""
        request = SessionRequest(os.getpid(), "gpupool probe", "the server itself")
        opened = await self._start(request, self._inventory.indexes[:1])
        probe = self._sessions.get(opened.session)
        if probe is not None:
            await self._end(probe, "this was a probe whether sessions start")

    def _load(self) -> Counter[int]:
        """How many sessions there are on each device."""
        chosen = [session.meta.devices for session in self._sessions.values()]
        chosen += [devices for _, _, devices in self._opening]
        return Counter(index for devices in chosen for index in devices)

    def _check_tenant(self, tenant: Tenant) -> None:
        leases = [s.meta.lease for s in self._sessions.values()]
        budgets.check_lease(tenant, leases + [lease for _, lease, _ in self._opening])
        most = self._most_of(tenant)
        running = self._running(tenant.name)
        if running >= most:
            raise TooManySessions(tenant.name, running, most)

    def _most_of(self, tenant: Tenant) -> int:
        several = self._settings.pool is not None or len(self._gpus.tenants) > 1
        return budgets.sessions_of(self._settings, tenant, several)

    def _running(self, tenant: str) -> int:
        running = sum(s.meta.tenant == tenant for s in self._sessions.values())
        return running + sum(name == tenant for name, _, _ in self._opening)

    def _allot(self, tenant: Tenant) -> dict[str, int]:
        """What a new session of the tenant gets of this host."""
        given = [s.meta.budgets for s in self._sessions.values() if s.meta.tenant == tenant.name]
        # Its own is among those that are being opened.
        opening = sum(name == tenant.name for name, _, _ in self._opening) - 1
        return budgets.allot(self._settings, tenant, given, max(0, opening))

    async def _start(self, request: SessionRequest, devices: tuple[int, ...]) -> Opened:
        allotted = self._allot(request.tenant)
        session, opened = await self.launcher.start(request, devices, allotted)
        self._keep(session)
        self.health.worked()
        self._log.info(
            "session opened",
            session=opened.session,
            worker_pid=session.process.pid,
            client_pid=request.pid,
            client_host=request.host,
            program=request.program,
            devices=list(devices),
            tenant=session.allocation.name,
            **log_fields(session.meta),
        )
        return opened

    def _hear(self, session: str, line: str) -> bool:
        """What a worker says of its session; False if that is nothing that we know."""
        if line == "joined":
            self._pending.end(session)  # the next heartbeat says so: nothing depends on it
        elif line == "leaving":
            self._expect_end(session)
        return line in ("joined", "leaving")

    def _expect_end(self, session: str) -> None:
        """Its worker says that the session is over: it has a moment to end by itself."""
        if session in self._leaving:
            return
        self._leaving.add(session)
        self._begin(self._reap(session))

    async def _reap(self, session: str) -> None:
        await asyncio.sleep(GONE_SECONDS)
        self._leaving.discard(session)
        if (left := self._sessions.get(session)) is not None:
            self._log.warning("a worker outlives its session; killing it", session=session)
            left.process.kill()

    # Watching ------------------------------------------------------------------

    def _keep(self, session: Session) -> None:
        self._sessions[session.meta.session] = session
        session.watcher = asyncio.create_task(self._watch(session))
        self.on_change()

    async def _watch(self, session: Session) -> None:
        reason = await session.process.wait()
        session.let_go()
        self._refused.add(session.meta.tenant, session.refused)
        if reason == "killed by SIGSYS":  # the worker said which call, just before
            said = session.log.last or "it did not say which"
            reason = f"a system call was refused: {said}"
        self._gpus.release(session.allocation, session.meta.pid)
        self._jail.ended(session.meta.session, session.confined)
        self._pending.end(session.meta.session)
        session.folder.remove()
        del self._sessions[session.meta.session]
        # Whoever waits now tries again; who comes later waits for the next to leave.
        self._left.set()
        self._left = asyncio.Event()
        level = "info" if reason == "exit code 0" or reason.startswith("ended") else "warning"
        self._log.log(
            logs.LEVELS[level],
            "session ended",
            session=session.meta.session,
            reason=reason,
            worker_pid=session.meta.pid,
            client_pid=session.meta.client_pid,
            **log_fields(session.meta),
        )
        self.on_change()

    def adopt(self) -> None:
        """Take over the workers that an earlier server started; remove what is dead."""
        for folder in self._run_dir.old_sessions():
            session = self._find(folder)
            if session is None:
                folder.remove()
                continue
            self._keep(session)
            self._log.info(
                "session adopted",
                session=folder.session,
                worker_pid=session.meta.pid,
                client_pid=session.meta.client_pid,
                devices=list(session.meta.devices),
            )
        self._gpus.look()
        self._clock = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        """Look at all boards, for whoever died without a word and for the accounts."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._gpus.look()
            self._jail.tidy()
            for index, member in self._gpus.faults():
                self.end_liar(index, member.pid, member.tenant, "page", member.fault)
            for gpu in self._gpus:
                if gpu.ruined:
                    self.end_on(gpu.index, RUINED.format(gpu.index))
                    gpu.forgive()

    def end_liar(self, index: int, pid: int, tenant: str, cause: Cause, reason: str) -> None:
        """Somebody else's code is in a worker: nothing is asked of it any more."""
        gpu = self._gpus.get(index)
        for session in (*self._sessions.values(), *self.launcher.starting):
            if session.meta.pid == pid and not session.ending and gpu is not None:
                session.ending = True
                self.liars.add(session.meta, gpu.device, tenant, cause, reason)
                session.process.kill()
                self.on_change()

    def ask_to_end(self, pid: int, reason: str) -> None:
        """A worker has more than it may, perhaps by no fault of its own: its client is told."""
        for s in [s for s in self._sessions.values() if s.meta.pid == pid and not s.ending]:
            self._log.warning("asking a session to end", session=s.meta.session, reason=reason)
            self._begin(self._tell(s, lambda control: control.stop(reason)))

    def _find(self, folder: SessionDir) -> Session | None:
        try:
            meta = Meta.parse(folder.meta.read_text(encoding="utf-8"))
            if meta.session != folder.session:
                raise ValueError(f"it is about session {meta.session}")
        except (OSError, ValueError) as error:
            self._log.warning(
                "removed a session whose record cannot be read",
                session=folder.session,
                reason=str(error),
            )
            return None
        process = Process.find(meta.pid, meta.start_time)
        if process is None:
            self._log.info(
                "removed a session that ended meanwhile",
                session=folder.session,
                worker_pid=meta.pid,
            )
            return None
        allocation = self._gpus.adopt(
            meta.session, meta.tenant, meta.group, meta.devices, meta.grant
        )
        log = self.launcher.log_of(meta)
        session = Session(meta, folder, process, Control(folder.control), allocation, log)
        self.launcher.adopt(session)
        self._jail.adopt(meta.session, meta.confined)
        return session

    # Looking -------------------------------------------------------------------

    @property
    def confinement(self) -> dict[str, str]:
        """The layers of a worker's jail on this host: each ``on``, or ``off: REASON``."""
        return dict(self._jail.layers)

    async def describe(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """A tenant's sessions, or all, with their workers' own accounts, oldest first."""
        chosen = [s for s in self._sessions.values() if tenant in (None, s.meta.tenant)]
        sessions = sorted(chosen, key=lambda session: session.meta.created)
        described = (each.describe(self.state_of(each.meta.session)) for each in sessions)
        return list(await asyncio.gather(*described))

    def budgets(self, described: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, State]]:
        """How the tenants' budgets stand whose sessions :meth:`describe` has described."""
        found = {}
        for name in sorted({str(session["tenant"]) for session in described}):
            tenant = self._gpus.tenants.known(name)
            running, most = self._running(name), self._most_of(tenant)
            refused = self._refused.of(name)
            found[name] = {
                "sessions": budgets.state(running, most, refused.get("sessions", 0)),
                "pending": self._pending.state(tenant),
                **budgets.total([s for s in described if s["tenant"] == name], tenant, refused),
            }
        return found

    def state_of(self, session: str) -> SessionState:
        """Whether its client has come to it."""
        return "waiting" if session in self._pending else "running"

    def by_door(self, digest: str) -> Control | None:
        """The worker that a word leads to; one whose client is in takes no other."""
        for session in self._sessions.values():
            if compare_digest(session.meta.door, digest):
                return session.control
        return None

    def of_leases(self) -> list[Meta]:
        """The sessions that are of leases of the pool."""
        return [s.meta for s in self._sessions.values() if s.meta.lease is not None]

    def users(self, lease: str, index: int) -> int:
        """How many sessions of a lease have a GPU, or are just being opened on it."""
        chosen = [(s.meta.lease, s.meta.devices) for s in self._sessions.values()]
        chosen += [each[1:] for each in self._opening]
        return sum(name == lease and index in devices for name, devices in chosen)

    # Ending --------------------------------------------------------------------

    def end_on(self, index: int, reason: str, lease: str | None = None) -> None:
        """Tell the sessions to end that have a GPU; those of a lease, or all."""
        self._end_all(lambda m: index in m.devices and lease in (None, m.lease), reason)

    def end_lease(self, lease: str, reason: str) -> int:
        """Tell all sessions of a lease to end; returns how many there are."""
        return self._end_all(lambda meta: meta.lease == lease, reason)

    def _end_all(self, chosen: Callable[[Meta], bool], reason: str) -> int:
        found = [s for s in self._sessions.values() if chosen(s.meta) and not s.ending]
        for session in found:
            session.ending = True
            meta, more = session.meta, log_fields(session.meta)
            self._log.info("ending a session", session=meta.session, reason=reason, **more)
            self._begin(self._end(session, reason))
        return len(found)

    async def close(self) -> None:
        """Leave the workers running or end them, as ``on_stop`` says."""
        if self._clock is not None:
            self._clock.cancel()
        await self.health.close()
        if self._settings.on_stop == "end":
            await asyncio.gather(*(self._end(s, STOPPING) for s in list(self._sessions.values())))
        left = len(self._sessions)
        for session in list(self._sessions.values()):
            if session.watcher is not None:
                session.watcher.cancel()
            session.let_go()  # which hears its last words
            if session.meta.session in self._leaving:
                session.process.kill()  # the next server will not hear that it is over
                left -= 1
            session.process.forget()
        for task in set(self._ending):
            task.cancel()
        self._sessions.clear()
        self.launcher.close()
        self._gpus.close()
        if left:
            self._log.info("sessions continue without the server", count=left)

    def say(self, chosen: Callable[[Meta], bool], text: str) -> None:
        """Send the users of some sessions a message, as far as they can be reached."""
        for session in (s for s in self._sessions.values() if chosen(s.meta)):
            self._begin(self._tell(session, lambda control: control.say(text)))

    async def _tell(self, session: Session, tell: Callable[[Control], Awaitable[None]]) -> None:
        # Asked for here: a server that stops may end this before it has begun.
        try:
            await tell(session.control)
        except WorkerError as error:
            self._log.debug("a worker cannot be told", reason=str(error))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with it; :meth:`close` does not wait for it."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, session: Session, reason: str) -> None:
        watcher = session.watcher
        if watcher is None:
            return
        try:
            await session.control.stop(reason)
        except WorkerError as error:
            self._log.debug("asking a worker to stop failed", reason=str(error))
            session.process.kill(signal.SIGTERM)
        done, _ = await asyncio.wait((watcher,), timeout=STOP_SECONDS)
        if not done:
            self._log.warning("a worker did not stop; killing it", session=session.meta.session)
            session.process.kill()
            await asyncio.wait((watcher,), timeout=STOP_SECONDS)
