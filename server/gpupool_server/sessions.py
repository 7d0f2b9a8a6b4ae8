"""The sessions of this host: admit, watch, adopt after a restart, reap."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool.errors import GpupoolError
from gpupool_server import logs, worker
from gpupool_server.config import Settings
from gpupool_server.inventory import Inventory, driver_environment
from gpupool_server.process import Process, start_time
from gpupool_server.rundir import Meta, RunDir, SessionDir
from gpupool_server.worker import Control, LineReader, Ready, WorkerError

#: How long a worker that was told to stop may take before it is killed.
STOP_SECONDS = 5.0


class Refusal(GpupoolError):
    """A session that is not opened; ``code`` travels to the client with the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Wish:
    """What a client that may have a session asks for."""

    pid: int
    program: str
    host: str
    devices: tuple[int, ...] | None = None
    gpus: int | None = None


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
    readers: list[LineReader] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)
    watcher: asyncio.Task[None] | None = None

    def let_go(self) -> None:
        """Release what this process holds of it."""
        for reader in self.readers:
            reader.close()
        self.control.close()


class SessionKeeper:
    """All sessions of a server. Methods are for the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        run_dir: RunDir,
        program: Path,
        plugins: Path,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._run_dir = run_dir
        self._program = program
        self._plugins = plugins
        self._sessions: dict[str, Session] = {}
        # Chosen but not yet in the table: they count, or two at once could overfill it.
        self._opening: list[tuple[int, ...]] = []
        self._log = logs.get("sessions")

    def __len__(self) -> int:
        return len(self._sessions) + len(self._opening)

    # Admission -----------------------------------------------------------------

    async def open(self, wish: Wish) -> Opened:
        """Start a worker for a client; Refusal says why not."""
        limit = self._settings.max_sessions
        if len(self) >= limit:
            raise Refusal(
                "full",
                f"the server is full: {len(self)} of {limit} sessions are in use; wait for one to"
                " end, use another server, or raise max_sessions",
            )
        devices = self._choose(wish)
        self._opening.append(devices)
        try:
            return await self._start(wish, devices)
        except WorkerError as error:
            self._log.error("a worker did not start", reason=str(error), client_pid=wish.pid)
            raise Refusal(
                "no-worker", f"no worker could be started: {error}; see the server's log"
            ) from None
        except OSError as error:
            self._log.error("a worker did not start", reason=str(error), client_pid=wish.pid)
            raise Refusal(
                "no-worker", f"no worker could be started: {error.strerror}; see the server's log"
            ) from None
        finally:
            self._opening.remove(devices)

    def _choose(self, wish: Wish) -> tuple[int, ...]:
        served = self._inventory.indexes
        if wish.devices is not None:
            unknown = [index for index in wish.devices if index not in served]
            if unknown:
                raise Refusal(
                    "bad-request",
                    f"device {unknown[0]} is not served here; the server has"
                    f" {', '.join(map(str, served))}",
                )
            if wish.gpus is not None and wish.gpus != len(wish.devices):
                raise Refusal(
                    "bad-request",
                    f"{len(wish.devices)} devices are named but {wish.gpus} GPUs asked for;"
                    " ask for one or the other",
                )
            return wish.devices
        if wish.gpus is None:
            return served
        if wish.gpus > len(served):
            raise Refusal(
                "bad-request",
                f"{wish.gpus} GPUs are asked for and the server has {len(served)}; ask for fewer",
            )
        load = Counter(
            index for session in self._sessions.values() for index in session.meta.devices
        )
        load.update(index for devices in self._opening for index in devices)
        freest = sorted(served, key=lambda index: (load[index], index))
        return tuple(sorted(freest[: wish.gpus]))

    async def _start(self, wish: Wish, devices: tuple[int, ...]) -> Opened:
        folder = self._run_dir.new_session()
        secret = secrets.token_hex(16)
        session: Session | None = None
        try:
            answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            session = self._launch(folder, wish, devices, secret, answer)
            ready = await self._await_ready(session, answer)
        except BaseException as error:
            if session is not None:
                session.process.kill()
                with contextlib.suppress(asyncio.CancelledError):
                    await session.process.wait()
                session.let_go()
            folder.remove()
            if isinstance(error, WorkerError) and session is not None and session.last_words:
                raise WorkerError(f"{error}: {session.last_words[-1][:300]}") from None
            raise
        self._keep(session)
        self._log.info(
            "session opened",
            session=folder.session,
            worker_pid=session.process.pid,
            client_pid=wish.pid,
            client_host=wish.host,
            program=wish.program,
            devices=list(devices),
        )
        return Opened(folder.session, secret, ready, devices)

    def _launch(
        self,
        folder: SessionDir,
        wish: Wish,
        devices: tuple[int, ...],
        secret: str,
        answer: asyncio.Future[str],
    ) -> Session:
        stdout = worker.open_fifo(folder.stdout)
        stderr = -1
        readers: list[LineReader] = []
        last_words: list[str] = []
        try:
            stderr = worker.open_fifo(folder.stderr)
            readers.append(LineReader(folder.stdout, self._stdout_hearer(folder.session, answer)))
            hear = self._stderr_hearer(folder.session, last_words)
            readers.append(LineReader(folder.stderr, hear))
            env = {
                **driver_environment(self._settings),
                "GPUPOOL_SECRET": secret,
                "GPUPOOL_PLUGINS": str(self._plugins),
            }
            process = worker.launch(self._command(folder, devices), env, stdout, stderr)
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
            devices=devices,
            created=time.time(),
            client_pid=wish.pid,
            client_host=wish.host,
            program=wish.program,
        )
        session = Session(meta, folder, process, Control(folder.control), readers, last_words)
        try:
            meta.write(folder.meta)
        except BaseException:
            process.kill()
            session.let_go()
            raise
        return session

    def _command(self, folder: SessionDir, devices: tuple[int, ...]) -> list[str]:
        command = [str(self._program), "--session", folder.session]
        command += ["--driver", str(self._inventory.driver)]
        command += ["--listen", f"shm://{folder.data}"]
        if self._settings.data_url is not None:
            command += ["--listen", self._settings.data_url]
        command += ["--control", str(folder.control)]
        command += ["--devices", ",".join(map(str, devices))]
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
            else:
                log.warning("unexpected output of a worker", line=line)

        return hear

    def _stderr_hearer(self, session: str, last_words: list[str]) -> Callable[[str], None]:
        log = logs.get("worker").bind(session=session)

        def hear(line: str) -> None:
            last_words[:] = [logs.forward_line(log, line)]

        return hear

    # Watching ------------------------------------------------------------------

    def _keep(self, session: Session) -> None:
        self._sessions[session.meta.session] = session
        session.watcher = asyncio.create_task(self._watch(session))

    async def _watch(self, session: Session) -> None:
        reason = await session.process.wait()
        session.let_go()
        session.folder.remove()
        del self._sessions[session.meta.session]
        level = "info" if reason == "exit code 0" or reason.startswith("ended") else "warning"
        self._log.log(
            logs.LEVELS[level],
            "session ended",
            session=session.meta.session,
            reason=reason,
            worker_pid=session.meta.pid,
            client_pid=session.meta.client_pid,
        )

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
        session = Session(meta, folder, process, Control(folder.control))
        hearers = (
            (folder.stdout, self._stdout_hearer(folder.session, None)),
            (folder.stderr, self._stderr_hearer(folder.session, session.last_words)),
        )
        for path, hear in hearers:
            # Without its FIFOs a session goes on; only its log is lost.
            with contextlib.suppress(OSError):
                session.readers.append(LineReader(path, hear))
        return session

    # Looking -------------------------------------------------------------------

    async def describe(self) -> list[dict[str, Any]]:
        """Every session with its worker's own account, oldest first."""
        sessions = sorted(self._sessions.values(), key=lambda session: session.meta.created)
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
        }
        try:
            status = await session.control.status()
        except WorkerError as error:
            return {**known, "trouble": str(error)}
        for key in ("tenant", "memory_bytes", "calls", "connected"):
            if isinstance(status.get(key), str | int | None):
                known[key] = status.get(key)
        return known

    # Ending --------------------------------------------------------------------

    async def close(self) -> None:
        """Leave the workers running or end them, as ``on_stop`` says."""
        if self._settings.on_stop == "end":
            await asyncio.gather(*(self._end(s) for s in list(self._sessions.values())))
        for session in list(self._sessions.values()):
            if session.watcher is not None:
                session.watcher.cancel()
            session.process.forget()
            session.let_go()
        left = len(self._sessions)
        self._sessions.clear()
        if left:
            self._log.info("sessions go on without the server", count=left)

    async def _end(self, session: Session) -> None:
        watcher = session.watcher
        if watcher is None:
            return
        try:
            await session.control.stop()
        except WorkerError as error:
            self._log.debug("asking a worker to stop failed", reason=str(error))
            session.process.kill(signal.SIGTERM)
        done, _ = await asyncio.wait((watcher,), timeout=STOP_SECONDS)
        if not done:
            self._log.warning("a worker did not stop; killing it", session=session.meta.session)
            session.process.kill()
            await asyncio.wait((watcher,), timeout=STOP_SECONDS)
