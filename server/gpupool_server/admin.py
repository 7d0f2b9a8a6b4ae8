"""The admin socket: one line of JSON asked, one answered. Only the server's user may ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpupool_common import __version__, json_text, logs, streams
from gpupool_common.accepting import accept_each
from gpupool_common.errors import GpupoolError
from gpupool_server import changes
from gpupool_server.changes import InUse
from gpupool_server.claims import Refusal
from gpupool_server.gpus import Gpus, Group
from gpupool_server.health import GpuHealth
from gpupool_server.rundir import Meta
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.status import describe_gpu
from gpupool_server.tenants import Tenant
from gpupool_server.watchdog import Watchdog

NAME = "admin.sock"
MAX_LINE = 65536
MAX_WAIT = 86400.0

#: How long to wait before trying again what did not fit.
RETRY_SECONDS = 0.1


class AdminHandler:
    """Answers questions; knows nothing of sockets."""

    def __init__(
        self,
        supervisor: SessionSupervisor,
        gpus: Gpus,
        watchdog: Watchdog | None = None,
        health: GpuHealth | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._gpus = gpus
        self._watchdog = watchdog
        self._health = health or GpuHealth((), gpus, supervisor)
        self._log = logs.get("admin")

    async def answer(self, line: bytes) -> bytes:
        """The answer to one line; never an exception, whatever was asked."""
        try:
            question = _parse(line)
            answer = {"ok": True, **await self._do(question)}
        except Refusal as error:
            self._log.warning("refused", code=error.code, reason=str(error))
            answer = {"error": str(error), "code": error.code}
        except Exception:
            self._log.exception("an operator's question could not be answered")
            answer = {"error": "the server failed; its log says why", "code": "bad-request"}
        return json.dumps(answer).encode() + b"\n"

    async def _do(self, question: dict[str, Any]) -> dict[str, Any]:
        what = question.pop("do", None)
        if what == "status":
            return await self._status()
        if what == "gpu-set":
            index = _number(question, "gpu")
            if index is None:
                raise Refusal("bad-request", "'gpu' must name the GPU's index")
            done = changes.set_gpu(self._gpus, index, question)
            self._log.info("settings of a GPU changed", **done)
            return done
        if what == "tenant-set":
            return await self._set_limits(question)
        if what == "gpu-open":
            return self._health.change(_number(question, "gpu"), None)
        if what == "gpu-aside":
            return self._health.change(_number(question, "gpu"), _reason(question))
        raise Refusal(
            "bad-request",
            "'do' must be one of status, gpu-set, gpu-open, gpu-aside, tenant-set",
        )

    async def _status(self) -> dict[str, Any]:
        sessions = await self._supervisor.describe()
        return {
            "version": __version__,
            "host": platform.node(),
            "gpus": [
                describe_gpu(gpu, self._gpus, sessions, self._sees(gpu.index)) for gpu in self._gpus
            ],
            "sessions": sessions,
            "budgets": self._supervisor.budgets(sessions),
            "liars": self._supervisor.liars.describe(),
            "confinement": self._supervisor.confinement,
        }

    def _sees(self, index: int) -> dict[str, Any]:
        return self._watchdog.describe(index) if self._watchdog is not None else {}

    async def _set_limits(self, question: dict[str, Any]) -> dict[str, Any]:
        index = _number(question, "gpu")
        until = time.monotonic() + _seconds(question)
        whom: dict[str, Any] = {
            key: question.pop(key) for key in ("tenant", "session") if key in question
        }
        while True:
            # Looked up again each time: it may have ended while it was waited for.
            found = self._find(whom)
            try:
                done = changes.set_limits(self._gpus, found, index, question)
            except InUse:
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._log.info("limits changed", **done, **question)
            self._supervisor.say(
                partial(_is_of, whose=found),
                f"an operator changed the limits of '{done['tenant']}' on"
                f" GPU {', '.join(map(str, done['gpus']))}: {changes.in_words(question)};"
                " the program continues under them",
            )
            return done

    def _find(self, whom: dict[str, Any]) -> Group | Tenant:
        if len(whom) != 1 or not all(isinstance(value, str) for value in whom.values()):
            raise Refusal("bad-request", "name one of 'tenant' and 'session', as a text")
        if "session" in whom:
            group = self._gpus.group_of_session(whom["session"])
            if group is None:
                raise Refusal("not-found", f"there is no session '{whom['session']}' with limits")
            return group
        name = whom["tenant"]
        found = self._gpus.group(name) if "/" in name else self._gpus.tenants.named(name)
        if found is None:
            raise Refusal(
                "not-found",
                f"there is no tenant or group '{name}'; gpupool session list has those that run",
            )
        return found


def _is_of(meta: Meta, whose: Group | Tenant) -> bool:
    """Whether a session is under these limits."""
    if isinstance(whose, Tenant):
        return meta.tenant == whose.name
    return (meta.tenant, meta.group) == (whose.tenant.name, whose.group)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        question = json_text.parse(line)
    except ValueError:
        question = None
    if not isinstance(question, dict):
        raise Refusal("bad-request", "a question is one line with a JSON object")
    return question


def _number(question: dict[str, Any], key: str) -> int | None:
    value = question.pop(key, None)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise Refusal("bad-request", f"'{key}' must be a whole number")
    return value


def _reason(question: dict[str, Any]) -> str:
    value = question.pop("reason", None)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise Refusal("bad-request", "'reason' must be one line of text")
    return value


def _seconds(question: dict[str, Any]) -> float:
    value = question.pop("wait", None) or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT:
        raise Refusal("bad-request", f"'wait' must be a number of seconds 0..{MAX_WAIT:g}")
    return float(value)


class AdminServer:
    """The socket before an admin handler."""

    def __init__(self, handler: AdminHandler, path: Path) -> None:
        self._handler = handler
        self._path = path
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen; GpupoolError if that cannot be."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()  # of a server that was killed: ours is the run directory's lock
        listener = socket.socket(socket.AF_UNIX)
        try:
            # The run directory keeps others away already while the mode is not yet set.
            listener.bind(str(self._path))
            os.chmod(self._path, 0o600)
            listener.listen()
        except OSError as error:
            listener.close()
            raise GpupoolError(f"cannot listen at {self._path}: {error.strerror}") from None
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(
            accept_each(listener, self._take, logs.get("admin")), name="admin"
        )

    def _take(self, connection: socket.socket, _: object) -> None:
        task = asyncio.create_task(self._talk(connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _talk(self, connection: socket.socket) -> None:
        try:
            reader, writer = await streams.of_accepted(connection, MAX_LINE)
            with contextlib.closing(writer):
                await self._serve(reader, writer)
        except OSError:
            pass  # the client went away
        except asyncio.CancelledError:
            pass  # the server is stopping

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                streams.write(writer, await self._handler.answer(line))
                await writer.drain()
        except ValueError:  # a line longer than the limit
            error = b'{"error": "the question is too long", "code": "bad-request"}\n'
            streams.write(writer, error)

    async def close(self) -> None:
        if self._listener is None or self._accepting is None:
            return
        self._accepting.cancel()
        for task in set(self._serving):
            task.cancel()
        await asyncio.gather(self._accepting, *self._serving, return_exceptions=True)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._listener = None
