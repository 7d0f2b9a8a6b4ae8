"""Starts the worker of a session, and reads what workers write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpupool_common import logs, tracing
from gpupool_server import ucx, worker, worker_libraries
from gpupool_server.board import BoardError, Seat
from gpupool_server.budgets import of_worker
from gpupool_server.config import Settings
from gpupool_server.exchange import Exchange
from gpupool_server.gpus import Allocation, Gpus
from gpupool_server.image_store import FOLDER, ImageStore
from gpupool_server.inventory import Inventory, driver_environment
from gpupool_server.jail import Jail, Place, listen_control
from gpupool_server.jail_status import Confined
from gpupool_server.network import Network, Ways
from gpupool_server.peers import Peers
from gpupool_server.pending import Pending
from gpupool_server.process import Process, start_time
from gpupool_server.rundir import Meta, RunDir, SessionDir, lasting_dir
from gpupool_server.session import Opened, Session
from gpupool_server.session_request import SessionRequest
from gpupool_server.shm_door import digest_of
from gpupool_server.shm_socket import socket_path
from gpupool_server.worker import Control, Ready, WorkerError
from gpupool_server.worker_log import LineReader, WorkerLog, WorkerLogs


class Launcher:
    """Starts workers; what they say of themselves goes into the log."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        run_dir: RunDir,
        program: Path,
        plugins: Path,
        gpus: Gpus,
        pending: Pending,
        jail: Jail,
        on_line: Callable[[str, str], bool],
    ) -> None:
        """``on_line`` gets a session and what its worker says; whether that is known."""
        self._settings = settings
        self._inventory = inventory
        self._run_dir = run_dir
        self._program = program
        self._plugins = plugins
        self._gpus = gpus
        self._pending = pending
        self._jail = jail
        self._on_line = on_line
        self._network = Network(settings, program, plugins)
        if self._network.missing:
            logs.get("server").warning(
                "workers do not listen by tcp; clients take zmq", reason=self._network.missing
            )
        self._ucx = ucx.find(settings.ucx_library) if settings.ucx else None
        self._shm = socket_path(settings)
        self._logs = WorkerLogs(settings)
        #: Whose workers have been started and are not ready.
        self.starting: list[Session] = []
        state, _ = lasting_dir(settings, run_dir.path)
        self.images = ImageStore(state / FOLDER, settings.image_cache)
        try:
            self.images.tidy()
        except OSError as error:
            logs.get("images").warning("the folder of images is not tidied", reason=str(error))
        self._exchange = Exchange(self.images, settings.image_cache)
        self._peers = Peers(settings, state)

    async def start(
        self, request: SessionRequest, devices: tuple[int, ...], budgets: Mapping[str, int]
    ) -> tuple[Session, Opened]:
        """A session whose worker is ready; Refusal, WorkerError or OSError leave nothing behind."""
        folder = self._run_dir.new_session()
        secret, word = secrets.token_hex(16), secrets.token_bytes(16)
        session: Session | None = None
        allocation: Allocation | None = None
        self._pending.begin(folder.session, request.tenant.name)
        try:
            allocation = self._gpus.allocate(
                folder.session, request.tenant, request.group, request.limits, devices
            )
            answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            meta = _record(folder.session, request, allocation, budgets)
            if self._shm is not None:
                meta = replace(meta, door=digest_of(word))
            with tracing.span("start a worker", gpupool__session=folder.session) as span:
                session = await self._launch(folder, request, meta, allocation, secret, answer)
                self.starting.append(session)
                ready = await self._await_ready(session, answer)
                span.set(process__pid=session.process.pid)
            self._exchange.admit(session, self._images_of(session.meta))
        except BaseException as error:
            await self._undo(folder, session, allocation)
            if isinstance(error, WorkerError) and session is not None and session.log.last:
                raise WorkerError(f"{error}: {session.log.last[:300]}") from None
            raise
        finally:
            self.starting = [each for each in self.starting if each is not session]
        shm = f"shm://{self._shm}?door={word.hex()}" if ready.shm else ""
        return session, Opened(folder.session, secret, ready, shm, devices, request.is_narrow)

    async def _undo(
        self, folder: SessionDir, session: Session | None, allocation: Allocation | None
    ) -> None:
        if session is not None:
            session.process.kill()
            with contextlib.suppress(asyncio.CancelledError):
                await session.process.wait()
            session.let_go()
            self._jail.ended(folder.session, session.confined)
        if allocation is not None:
            self._gpus.release(allocation, session.process.pid if session else 0)
        self._pending.end(folder.session)
        folder.remove()

    async def _launch(
        self,
        folder: SessionDir,
        request: SessionRequest,
        meta: Meta,
        allocation: Allocation,
        secret: str,
        answer: asyncio.Future[str],
    ) -> Session:
        log = self.log_of(meta)
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as ends:
            stdout = worker.open_fifo(folder.stdout)
            ends.callback(os.close, stdout)
            stderr = worker.open_fifo(folder.stderr)
            ends.callback(os.close, stderr)
            on_stdout = self._stdout_handler(folder.session, answer, log)
            readers = [LineReader(folder.stdout, on_stdout, logs.Meter().admit)]
            undo.callback(readers[0].close)
            readers.append(LineReader(folder.stderr, log.pass_on, log.admit, log.note_last))
            undo.callback(readers[1].close)
            stdin = worker.secret_pipe(secret + self._peers.key_for(request.tenant))
            ends.callback(os.close, stdin)
            seats = self._seats(allocation)
            undo.callback(self._gpus.unseat, allocation, seats)
            ways = ends.enter_context(self._network.listen(request.needs_zmq, request.wants_ucx))
            process, confined = await self._start_process(
                folder, request, allocation, seats, meta, ways, (stdin, stdout, stderr)
            )
            try:
                self._gpus.started(allocation, seats, process.pid)
            except BoardError as error:  # there is another board meanwhile
                process.kill()
                self._jail.ended(folder.session, confined)
                raise WorkerError(str(error)) from None
            undo.pop_all()
        started = start_time(process.pid) or 0
        meta = replace(meta, pid=process.pid, start_time=started, confined=confined)
        control = Control(folder.control)
        session = Session(meta, folder, process, control, allocation, log, readers)
        try:
            meta.write(folder.meta)
        except BaseException:
            process.kill()
            session.let_go()
            self._jail.ended(folder.session, confined)
            raise
        return session

    async def _start_process(
        self,
        folder: SessionDir,
        request: SessionRequest,
        allocation: Allocation,
        seats: Sequence[Seat],
        meta: Meta,
        ways: Ways,
        streams: tuple[int, int, int],
    ) -> tuple[Process, Confined]:
        """The worker's process, in a jail if there is one here."""
        budgets = meta.budgets
        command = self._command(folder, request, allocation, seats, budgets, ways.urls)
        images = self._images_of(meta) if allocation.seated else None
        command += ["--images", str(images)] if images is not None else []
        env = self._environment(allocation.devices)
        if allocation.seated and not ways.host and not _has_ranks(request, allocation):
            command += ["--alone"]
        keep = [descriptor for seat in seats for descriptor in (seat.page, seat.bell)]
        keep += ways.sockets
        if not self._jail.on:
            process = worker.launch(command, env, streams, keep)
            return process, Confined(layers=self._jail.layers)
        with listen_control(folder.control) as control:
            command += ["--control-fd", str(control.fileno())]
            place = Place(
                folder.session,
                allocation.name,
                self._near(request, allocation),
                memory=budgets["host_memory"] + budgets["pinned_memory"] + budgets["disk"],
                disk=budgets["disk"],
                open_files=budgets["open_files"],
                keep=(control.fileno(), *keep),
                part=request.tenant.lease,
                read=(images,) if images is not None else (),
                off={"net": ways.host} if ways.host else {},
                rdma=ways.rdma,
            )
            return await self._jail.start(place, command, env, streams)

    def _images_of(self, meta: Meta) -> Path | None:
        """Where the images of a session's tenant are kept, if they are."""
        if not self._settings.image_cache:
            return None
        pool = self._settings.pool if meta.lease is not None else None
        try:
            return self.images.folder_of(pool, meta.tenant)
        except OSError as error:
            logs.get("images").warning("images are not kept", reason=str(error))
            return None

    def _environment(self, devices: Sequence[int]) -> dict[str, str]:
        return {
            **driver_environment(self._settings),
            **self._inventory.visible(devices),
            "GPUPOOL_SILENCE": str(self._settings.silence_seconds),
            "GPUPOOL_LANES": str(self._settings.tcp_lanes),
            "GPUPOOL_PLUGINS": str(self._plugins),
            **(ucx.environment(self._ucx) if self._ucx else {}),
        }

    def _seats(self, allocation: Allocation) -> list[Seat]:
        try:
            return self._gpus.seats(allocation)
        except BoardError as error:
            raise WorkerError(str(error)) from None

    def _command(
        self,
        folder: SessionDir,
        request: SessionRequest,
        allocation: Allocation,
        seats: Sequence[Seat],
        budgets: Mapping[str, int],
        urls: Sequence[str],
    ) -> list[str]:
        command = [str(self._program), "--session", folder.session]
        command += ["--driver", str(self._inventory.driver)]
        command += ["--listen", worker.HANDED] if self._shm is not None else []
        for url in urls:
            command += ["--listen", url]
        command += ["--control", str(folder.control)]
        devices = self._jail.ordinals(allocation.devices, self._near(request, allocation))
        command += ["--devices", ",".join(map(str, devices))]
        for seat in seats:
            command += ["--seat", f"{seat.page},{seat.bell}"]
        if allocation.seated:  # a worker of this release
            for name, limit in of_worker(budgets).items():
                command += ["--budget", f"{name}={limit}"]
            command += ["--peer-host", self._peers.host] if self._peers.host else []
            for option, library in worker_libraries.opened(
                self._settings, self._inventory.kind
            ).items():
                command += [option, str(library)]
        command += ["--log-level", self._settings.log_level]
        return command

    def _near(self, request: SessionRequest, allocation: Allocation) -> tuple[int, ...]:
        """Its GPUs, and those of its lease that it does not see: NCCL reaches other ranks there."""
        lease, own = request.tenant.lease, allocation.devices
        if lease is None or not request.is_narrow:
            return own
        others = (index for index in lease.devices if index not in own)
        return (*own, *(i for i in others if not self._gpus.has_given(lease.lease, i)))

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

    def close(self) -> None:
        """Answer no worker any more, and start none."""
        self._exchange.close()
        self._jail.close()

    def adopt(self, session: Session) -> None:
        """Read on what the worker of an earlier server's session writes, and let it ask."""
        self._exchange.admit(session, self._images_of(session.meta))
        folder, log = session.folder, session.log
        on_stdout = self._stdout_handler(folder.session, None, log)
        # Without its FIFOs a session continues; only its log is lost.
        with contextlib.suppress(OSError):
            session.readers.append(LineReader(folder.stdout, on_stdout, logs.Meter().admit))
        with contextlib.suppress(OSError):
            session.readers.append(LineReader(folder.stderr, log.pass_on, log.admit, log.note_last))

    def log_of(self, meta: Meta) -> WorkerLog:
        """For the lines of a worker, also of one that an earlier server has started."""
        lines = meta.budgets.get("log_lines")
        return self._logs.of(meta.tenant, meta.session, meta.request_id, lines)

    def _stdout_handler(
        self, session: str, answer: asyncio.Future[str] | None, log: WorkerLog
    ) -> Callable[[str], None]:
        def handle(line: str) -> None:
            if answer is not None and not answer.done():
                answer.set_result(line)
            elif not self._on_line(session, line):
                log.unexpected(line)

        return handle


def _has_ranks(request: SessionRequest, allocation: Allocation) -> bool:
    """Whether collectives may be made with other workers of its lease, here or on other hosts."""
    lease = request.tenant.lease
    if lease is None:
        return len(allocation.devices) > 1
    return len(lease.devices) > 1 or len(lease.nodes) > 1


def _record(
    session: str, request: SessionRequest, allocation: Allocation, budgets: Mapping[str, int]
) -> Meta:
    """What the next server must know of a worker, but for its process."""
    pool = request.tenant.lease
    return Meta(
        session=session,
        pid=0,
        start_time=0,
        devices=allocation.devices,
        created=time.time(),
        client_pid=request.pid,
        client_host=request.host,
        program=request.program,
        tenant=allocation.tenant,
        group=allocation.group,
        grant=allocation.record(),
        lease=pool.lease if pool is not None else None,
        request_id=pool.request_id if pool is not None else "",
        budgets=budgets,
    )
