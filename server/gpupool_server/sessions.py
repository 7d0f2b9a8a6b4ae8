"""The sessions of this host: admit, watch, adopt after a restart, reap."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool_common import logs
from gpupool_common.node_protocol import SessionState
from gpupool_common.sizes import format_size
from gpupool_common.space import explain
from gpupool_server import worker
from gpupool_server.claims import LimitsRequest, Refusal
from gpupool_server.config import DEFAULT_TENANT, Settings
from gpupool_server.gpus import Allocation, Gpus, board_name
from gpupool_server.inventory import Inventory, driver_environment
from gpupool_server.peers import Peers
from gpupool_server.pending import Pending
from gpupool_server.process import Process, start_time
from gpupool_server.rundir import Meta, RunDir, SessionDir, lasting_dir
from gpupool_server.tenants import Tenant
from gpupool_server.worker import Control, LineReader, Ready, WorkerError

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

#: What users are told when a GPU's board is damaged again and again.
RUINED = (
    "a program on GPU {} keeps damaging what its programs share, so all of them are ended;"
    " start the program again"
)

#: So many workers in a row that do not start are the host's fault. It then tries by itself,
#: at first after so many seconds, and ever more rarely.
FAILURES = 3
PROBE_SECONDS, MOST_PROBE_SECONDS = 5.0, 300.0

#: How long a worker may be there after it has said that its client is gone: the driver may
#: never come back from the call that it is in.
GONE_SECONDS = 2.0

#: What a worker says of itself.
COUNTERS = (
    *("memory_bytes", "calls", "peer_bytes_sent", "peer_bytes_received", "connected"),
    *("host_bytes", "host_limit", "host_refused"),
)

#: With less of the host's memory a session is not begun.
LEAST_HOST_MEMORY = 16 << 20

#: How often the boards are looked at.
LOOK_SECONDS = 1.0


def _no_descriptors(sessions: int) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the server has no file descriptors left for another session (limit {limit}, {sessions}"
        " sessions); raise its limit (ulimit -n, LimitNOFILE=) or wait for sessions to end"
    )


@dataclass(frozen=True)
class SessionRequest:
    """What a client that may have a session asks for."""

    pid: int
    program: str
    host: str
    devices: tuple[int, ...] | None = None
    gpus: int | None = None
    tenant: Tenant = Tenant(DEFAULT_TENANT)
    group: str | None = None
    limits: LimitsRequest = LimitsRequest()


@dataclass(frozen=True)
class Opened:
    """A new session: what its client must know to reach the worker."""

    session: str
    secret: str
    ready: Ready
    devices: tuple[int, ...]


@dataclass
class Session:
    """One running worker."""

    meta: Meta
    folder: SessionDir
    process: Process
    control: Control
    allocation: Allocation
    readers: list[LineReader] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)
    watcher: asyncio.Task[None] | None = None
    #: Whether it was told to end.
    ending: bool = False

    def let_go(self) -> None:
        """Release what this process holds of it."""
        for reader in self.readers:
            reader.close()
        self.control.close()


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
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._run_dir = run_dir
        self._program = program
        self._plugins = plugins
        self._gpus = gpus
        self._peers = Peers(settings, lasting_dir(settings, run_dir.path)[0])
        self._sessions: dict[str, Session] = {}
        # Chosen but not yet in the table: they count, or two at once could overfill it.
        self._opening: list[tuple[str, tuple[int, ...]]] = []
        #: How many clients of each tenant wait for others to end.
        self._patient: Counter[str] = Counter()
        self._pending = Pending(settings.max_sessions)
        self._clock: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        self._leaving: set[str] = set()
        #: Called after a session began or ended.
        self.on_change: Callable[[], None] = lambda: None
        #: Why sessions do not start; empty: they do, as far as is known.
        self.trouble = ""
        self._failures = 0
        self._prober: asyncio.Task[None] | None = None
        self._log = logs.get("sessions")

    def __len__(self) -> int:
        return len(self._sessions) + len(self._opening)

    # Admission -----------------------------------------------------------------

    async def open(self, request: SessionRequest) -> Opened:
        """Start a worker for a client; Refusal says why not."""
        deadline = time.monotonic() + LEAVING_SECONDS
        tenant = request.tenant.name
        while True:
            try:
                return await self._open(request)
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

    async def _open(self, request: SessionRequest) -> Opened:
        limit = self._settings.max_sessions
        if len(self) >= limit:
            raise Refusal(
                "full",
                f"the server is full: {len(self)} of {limit} sessions are in use; wait for one to"
                " end, use another server, or raise max_sessions",
            )
        self._check_tenant(request.tenant)
        self._pending.check(request.tenant.name)
        devices = self._choose(request)
        opening = (request.tenant.name, devices)
        self._opening.append(opening)
        try:
            return await self._start(request, devices)
        except WorkerError as error:
            self._log.error("a worker did not start", reason=str(error), client_pid=request.pid)
            self._failed(str(error))
            raise Refusal(
                "no-worker", f"no worker could be started: {error}; see the server's log"
            ) from None
        except OSError as error:
            why = explain(error, self._run_dir.path)
            self._log.error("a worker did not start", reason=why, client_pid=request.pid)
            self._failed(why)
            if error.errno in worker.NO_DESCRIPTORS:
                raise Refusal("full", _no_descriptors(len(self))) from None
            raise Refusal(
                "no-worker", f"no worker could be started: {why}; see the server's log"
            ) from None
        finally:
            self._opening.remove(opening)

    def _failed(self, reason: str) -> None:
        """A worker did not start. After a few in a row it is the host, not the program."""
        self._failures += 1
        if self._failures < FAILURES or self.trouble:
            return
        self.trouble = f"sessions do not start: {reason}"
        self._log.error("sessions do not start; trying by ourselves from now on", reason=reason)
        self._prober = asyncio.create_task(self._probe_until_well(), name="probe")
        self.on_change()

    def _worked(self) -> None:
        self._failures = 0
        if self.trouble:
            self._log.info("sessions start again")
            self.trouble = ""
            self.on_change()

    async def _probe_until_well(self) -> None:
        """Open sessions of our own until one starts."""
        pause = PROBE_SECONDS
        while self.trouble:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PROBE_SECONDS)
            if not self.trouble:
                return
            request = SessionRequest(os.getpid(), "gpupool probe", "the server itself")
            try:
                opened = await self._start(request, self._inventory.indexes[:1])
            except (Refusal, WorkerError, OSError) as error:
                self._log.warning("sessions still do not start", reason=str(error))
                continue
            probe = self._sessions.get(opened.session)
            if probe is not None:
                await self._end(probe, "it was only tried whether sessions start")

    def _check_tenant(self, tenant: Tenant) -> None:
        if tenant.sessions is None:
            return
        running = sum(s.meta.tenant == tenant.name for s in self._sessions.values())
        running += sum(name == tenant.name for name, _ in self._opening)
        if running >= tenant.sessions:
            raise Refusal(
                "over-quota",
                f"tenant '{tenant.name}' has {running} of {tenant.sessions} sessions; wait for one"
                " to end",
            )

    def _host_memory(self, tenant: Tenant) -> int:
        """What a new session of the tenant may have of this host's memory."""
        most = self._settings.session_host_memory
        if tenant.host_memory is None:
            return most
        own = [s.meta for s in self._sessions.values() if s.meta.tenant == tenant.name]
        taken = sum(meta.host_memory for meta in own)
        # Its own is among those that are being opened.
        taken += most * (sum(name == tenant.name for name, _ in self._opening) - 1)
        left = tenant.host_memory - taken
        if left < LEAST_HOST_MEMORY:
            raise Refusal(
                "over-quota",
                f"the sessions of tenant '{tenant.name}' may have {format_size(tenant.host_memory)}"
                f" of this host's memory and have been given {format_size(taken)}; wait for one"
                " to end",
            )
        return min(most, left)

    def _choose(self, request: SessionRequest) -> tuple[int, ...]:
        served = self._inventory.indexes
        if request.devices is not None:
            return self._named(request, request.devices)
        allowed = tuple(index for index in served if request.tenant.may_use(index))
        own = (
            self._gpus.devices_of(board_name(request.tenant.name, request.group))
            if request.group
            else ()
        )
        if request.gpus is None:
            return own or allowed
        if request.gpus > len(allowed):
            fewer = len(allowed) < len(served)
            of = f", of which its tenant may use {len(allowed)}" if fewer else ""
            raise Refusal(
                "bad-request",
                f"{request.gpus} GPUs are asked for and the server has {len(served)}{of};"
                " ask for fewer",
            )
        if request.gpus <= len(own):
            return own[: request.gpus]
        return self._freest(request, allowed, own)

    def _named(self, request: SessionRequest, devices: tuple[int, ...]) -> tuple[int, ...]:
        served = self._inventory.indexes
        unknown = [index for index in devices if index not in served]
        if unknown:
            raise Refusal(
                "bad-request",
                f"device {unknown[0]} is not served here; the server has"
                f" {', '.join(map(str, served))}",
            )
        foreign = [index for index in devices if not request.tenant.may_use(index)]
        if foreign:
            allowed = sorted(request.tenant.gpus or ())
            raise Refusal(
                "over-quota",
                f"tenant '{request.tenant.name}' may not use GPU {foreign[0]}; it may use"
                f" {', '.join(map(str, allowed))}",
            )
        if request.gpus is not None and request.gpus != len(devices):
            raise Refusal(
                "bad-request",
                f"{len(devices)} devices are named but {request.gpus} GPUs asked for;"
                " ask for one or the other",
            )
        return devices

    def _freest(
        self, request: SessionRequest, allowed: tuple[int, ...], own: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The least used of the allowed devices: first those of the group, then where it fits."""
        load = Counter(
            index for session in self._sessions.values() for index in session.meta.devices
        )
        load.update(index for _, devices in self._opening for index in devices)

        def rank(index: int) -> tuple[bool, bool, int, int]:
            fits = self._gpus.fits(request.tenant, request.limits, index)
            return (index not in own, not fits, load[index], index)

        return tuple(sorted(sorted(allowed, key=rank)[: request.gpus]))

    async def _start(self, request: SessionRequest, devices: tuple[int, ...]) -> Opened:
        host_memory = self._host_memory(request.tenant)
        folder = self._run_dir.new_session()
        secret = secrets.token_hex(16)
        session: Session | None = None
        allocation: Allocation | None = None
        self._pending.begin(folder.session, request.tenant.name)
        try:
            allocation = self._gpus.allocate(
                folder.session, request.tenant, request.group, request.limits, devices
            )
            answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            session = self._launch(folder, request, allocation, secret, answer, host_memory)
            ready = await self._await_ready(session, answer)
        except BaseException as error:
            if session is not None:
                session.process.kill()
                with contextlib.suppress(asyncio.CancelledError):
                    await session.process.wait()
                session.let_go()
            if allocation is not None:
                self._gpus.release(allocation, session.process.pid if session else 0)
            self._pending.end(folder.session)
            folder.remove()
            if isinstance(error, WorkerError) and session is not None and session.last_words:
                raise WorkerError(f"{error}: {session.last_words[-1][:300]}") from None
            raise
        self._keep(session)
        self._worked()
        self._log.info(
            "session opened",
            session=folder.session,
            worker_pid=session.process.pid,
            client_pid=request.pid,
            client_host=request.host,
            program=request.program,
            devices=list(devices),
            tenant=allocation.name,
            **_pool_fields(session.meta),
        )
        return Opened(folder.session, secret, ready, devices)

    def _launch(
        self,
        folder: SessionDir,
        request: SessionRequest,
        allocation: Allocation,
        secret: str,
        answer: asyncio.Future[str],
        host_memory: int,
    ) -> Session:
        pool = request.tenant.lease
        request_id = pool.request_id if pool is not None else ""
        stdout = worker.open_fifo(folder.stdout)
        stderr = -1
        readers: list[LineReader] = []
        last_words: list[str] = []
        try:
            stderr = worker.open_fifo(folder.stderr)
            readers.append(LineReader(folder.stdout, self._stdout_hearer(folder.session, answer)))
            hear = self._stderr_hearer(folder.session, last_words, request_id)
            readers.append(LineReader(folder.stderr, hear))
            env = {
                **driver_environment(self._settings),
                "GPUPOOL_SILENCE": str(self._settings.silence_seconds),
                "GPUPOOL_PLUGINS": str(self._plugins),
            }
            command = self._command(folder, allocation, host_memory)
            secrets_ = secret + self._peers.key_for(request.tenant)
            process = worker.launch(command, env, secrets_, stdout, stderr)
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        finally:
            os.close(stdout)
            if stderr >= 0:
                os.close(stderr)
        meta = Meta(
            session=folder.session,
            pid=process.pid,
            start_time=start_time(process.pid) or 0,
            devices=allocation.devices,
            created=time.time(),
            client_pid=request.pid,
            client_host=request.host,
            program=request.program,
            tenant=allocation.tenant,
            group=allocation.group,
            grant=allocation.record(),
            lease=pool.lease if pool is not None else None,
            request_id=request_id,
            host_memory=host_memory,
        )
        control = Control(folder.control)
        session = Session(meta, folder, process, control, allocation, readers, last_words)
        try:
            meta.write(folder.meta)
        except BaseException:
            process.kill()
            session.let_go()
            raise
        return session

    def _command(self, folder: SessionDir, allocation: Allocation, host_memory: int) -> list[str]:
        command = [str(self._program), "--session", folder.session]
        command += ["--driver", str(self._inventory.driver)]
        command += ["--listen", f"shm://{folder.data}"]
        if self._settings.data_url is not None:
            command += ["--listen", self._settings.data_url]
        command += ["--control", str(folder.control)]
        command += ["--devices", ",".join(map(str, allocation.devices))]
        command += allocation.worker_options
        if allocation.boards:  # a worker of this release
            command += ["--host-memory", str(host_memory)]
            command += ["--peer-host", self._peers.host] if self._peers.host else []
        command += ["--log-level", self._settings.log_level]
        return command

    async def _await_ready(self, session: Session, answer: asyncio.Future[str]) -> Ready:
        """The worker's ready line, unless it ends or dawdles first."""
        ended = asyncio.ensure_future(session.process.wait())
        seconds = self._settings.worker_start_seconds
        try:
            await asyncio.wait(
                (answer, ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done() and not answer.done():
                raise WorkerError(f"the worker ended before it was ready ({ended.result()})")
            if not answer.done():
                raise WorkerError(f"the worker was not ready within {seconds:g} s")
        finally:
            ended.cancel()
            if not answer.done():
                answer.cancel()
        return worker.parse_ready(answer.result())

    def _stdout_hearer(
        self, session: str, answer: asyncio.Future[str] | None
    ) -> Callable[[str], None]:
        log = logs.get("worker").bind(session=session)

        def hear(line: str) -> None:
            if answer is not None and not answer.done():
                answer.set_result(line)
            elif line == "joined":
                if self._pending.end(session):
                    self.on_change()
            elif line == "leaving":
                self._expect_end(session)
            else:
                log.warning("unexpected output of a worker", line=line)

        return hear

    def _expect_end(self, session: str) -> None:
        """Its worker says that the session is over: it has a moment to end by itself."""
        if session in self._leaving:
            return
        self._leaving.add(session)
        task = asyncio.create_task(self._reap(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _reap(self, session: str) -> None:
        await asyncio.sleep(GONE_SECONDS)
        self._leaving.discard(session)
        left = self._sessions.get(session)
        if left is not None:
            self._log.warning("a worker outlives its session; killing it", session=session)
            left.process.kill()

    def _stderr_hearer(
        self, session: str, last_words: list[str], request: str
    ) -> Callable[[str], None]:
        log = logs.get("worker").bind(session=session, **({"request": request} if request else {}))

        meter = logs.Meter()

        def hear(line: str) -> None:
            left_out = meter.left_out()
            if left_out:
                log.warning("the worker says too much: lines were left out", count=left_out)
            if meter.admit():
                last_words[:] = [logs.forward_line(log, line)]

        return hear

    # Watching ------------------------------------------------------------------

    def _keep(self, session: Session) -> None:
        self._sessions[session.meta.session] = session
        session.watcher = asyncio.create_task(self._watch(session))
        self.on_change()

    async def _watch(self, session: Session) -> None:
        reason = await session.process.wait()
        session.let_go()
        self._gpus.release(session.allocation, session.meta.pid)
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
            **_pool_fields(session.meta),
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
            for gpu in self._gpus:
                if gpu.ruined:
                    self._end_on(gpu.index)
                    gpu.forgive()

    def _find(self, folder: SessionDir) -> Session | None:
        try:
            meta = Meta.parse(folder.meta.read_text(encoding="utf-8"))
            if meta.session != folder.session:
                raise ValueError(f"it is about session {meta.session}")
        except (OSError, ValueError) as error:
            self._log.warning(
                "removed a session that cannot be read", session=folder.session, reason=str(error)
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
        session = Session(meta, folder, process, Control(folder.control), allocation)
        hearers = (
            (folder.stdout, self._stdout_hearer(folder.session, None)),
            (
                folder.stderr,
                self._stderr_hearer(folder.session, session.last_words, meta.request_id),
            ),
        )
        for path, hear in hearers:
            # Without its FIFOs a session goes on; only its log is lost.
            with contextlib.suppress(OSError):
                session.readers.append(LineReader(path, hear))
        return session

    # Looking -------------------------------------------------------------------

    async def describe(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """A tenant's sessions, or all, with their workers' own accounts, oldest first."""
        chosen = [s for s in self._sessions.values() if tenant in (None, s.meta.tenant)]
        sessions = sorted(chosen, key=lambda session: session.meta.created)
        return list(await asyncio.gather(*map(self._describe, sessions)))

    async def _describe(self, session: Session) -> dict[str, Any]:
        meta = session.meta
        known: dict[str, Any] = {
            "session": meta.session,
            "pid": meta.pid,
            "client_pid": meta.client_pid,
            "client_host": meta.client_host,
            "program": meta.program,
            "devices": list(meta.devices),
            "created": meta.created,
            "tenant": meta.tenant,
            "group": meta.group,
            "lease": meta.lease,
            "state": self.state_of(meta.session),
        }
        try:
            status = await session.control.status()
        except WorkerError as error:
            return {**known, "trouble": str(error)}
        for key in COUNTERS:
            if isinstance(status.get(key), str | int | None):
                known[key] = status.get(key)
        if isinstance(kinds := status.get("host"), dict):
            known["host"] = {str(k): v for k, v in kinds.items() if isinstance(v, int)}
        return known

    def state_of(self, session: str) -> SessionState:
        """Whether its client has come to it."""
        return "waiting" if session in self._pending else "running"

    def of_leases(self) -> list[Meta]:
        """The sessions that are of leases of the pool."""
        return [s.meta for s in self._sessions.values() if s.meta.lease is not None]

    # Ending --------------------------------------------------------------------

    def end_lease(self, lease: str, reason: str) -> int:
        """Tell all sessions of a lease to end; returns how many there are."""
        return self._end_all(lambda meta: meta.lease == lease, reason)

    def _end_on(self, index: int) -> None:
        self._end_all(lambda meta: index in meta.devices, RUINED.format(index))

    def _end_all(self, chosen: Callable[[Meta], bool], reason: str) -> int:
        found = [s for s in self._sessions.values() if chosen(s.meta) and not s.ending]
        for session in found:
            session.ending = True
            self._log.info(
                "ending a session",
                session=session.meta.session,
                reason=reason,
                **_pool_fields(session.meta),
            )
            task = asyncio.create_task(self._end(session, reason))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return len(found)

    async def close(self) -> None:
        """Leave the workers running or end them, as ``on_stop`` says."""
        if self._clock is not None:
            self._clock.cancel()
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
        if self._settings.on_stop == "end":
            await asyncio.gather(*(self._end(s, STOPPING) for s in list(self._sessions.values())))
        for task in set(self._ending):
            task.cancel()
        for session in list(self._sessions.values()):
            if session.watcher is not None:
                session.watcher.cancel()
            session.process.forget()
            session.let_go()
        left = len(self._sessions)
        self._sessions.clear()
        self._gpus.close()
        if left:
            self._log.info("sessions go on without the server", count=left)

    def say(self, chosen: Callable[[Meta], bool], text: str) -> None:
        """Have the users of some sessions told something, as far as they can be reached."""
        for session in self._sessions.values():
            if chosen(session.meta):
                task = asyncio.create_task(self._say(session, text))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def _say(self, session: Session, text: str) -> None:
        try:
            await session.control.say(text)
        except WorkerError as error:
            self._log.debug("a client cannot be told", text=text, reason=str(error))

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


def _pool_fields(meta: Meta) -> dict[str, str]:
    """What a log line says of a session that is of a lease."""
    return {} if meta.lease is None else {"lease": meta.lease, "request": meta.request_id}
