"""The owner's end of a relay: a small process that talks to untrusted clients for us.

It is restarted whenever it ends; the listening socket stays ours, so connections wait in it
meanwhile. What it sends is checked like what clients send.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpupool_common import logs, streams
from gpupool_common.ask import split_tcp
from gpupool_common.closer import take_no_descriptors
from gpupool_common.errors import GpupoolError
from gpupool_common.helper_process import start_helper
from gpupool_common.relay_process import Config
from gpupool_common.relay_wire import Kind, RecordError, Unpacker, pack

#: Connections that wait in the listening socket while nobody takes them.
BACKLOG = 1024

#: A process that ends within so many seconds is not started again at once.
SHORT_LIFE = 1.0

#: How long one that was told to end may take.
END_SECONDS = 2.0

#: connection, address, user, frames.
OnMessage = Callable[[bytes, str, str, list[bytes]], None]


def listen_at(url: str) -> tuple[socket.socket, str]:
    """A socket that listens at ``tcp://ADDRESS:PORT`` or ``ipc:///PATH``, and its address.

    The port may be ``*``. OSError if that cannot be.
    """
    if url.startswith("ipc://"):
        return _listen_at_path(url.removeprefix("ipc://")), url
    text = url.removesuffix("*") + "1" if url.endswith(":*") else url
    host, port = split_tcp(text)
    if host == "*":
        host = "0.0.0.0"
    try:
        found = socket.getaddrinfo(
            host,
            0 if url.endswith(":*") else port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except socket.gaierror as error:
        raise OSError(error.errno, error.strerror) from None
    family, kind, number, _, address = found[0]
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _bind(listener, address)
        name = listener.getsockname()
    except BaseException:
        listener.close()
        raise
    shown = f"[{name[0]}]" if family == socket.AF_INET6 else name[0]
    return listener, f"tcp://{shown}:{name[1]}"


def _bind(listener: socket.socket, address: tuple[object, ...]) -> None:
    """The process of an owner that was killed has the address for a moment longer."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _listen_at_path(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    take_no_descriptors(listener)
    try:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class Relay:
    """A listening socket and the process at it."""

    def __init__(
        self,
        config: Config,
        on_message: OnMessage,
        on_gone: Callable[[bytes], None] = lambda connection: None,
        on_restart: Callable[[], None] = lambda: None,
        room: asyncio.Semaphore | None = None,
    ) -> None:
        """Listen; OSError. Messages come from now on.

        Each takes one of ``room``, which its taker gives back; without any left, the process
        and the clients behind it wait.
        """
        self._listener, self.url = listen_at(config.listen)
        self._config = replace(config, listen=self.url)
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_restart = on_restart
        self._room = room
        self._log = logs.get("relay")
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._running = asyncio.create_task(self._run(), name="relay")

    @property
    def pid(self) -> int:
        """The process that talks to clients now; 0: none does."""
        return self._process.pid if self._process is not None else 0

    def send(self, connection: bytes, *frames: bytes) -> None:
        """Send a message, if the connection is still there."""
        self._say(pack(Kind.SEND, connection, *frames))

    def wrong(self, address: str, connection: bytes) -> None:
        """What came from there had a wrong token: it is as strange as any again."""
        if address:
            self._say(pack(Kind.WRONG, address.encode(), connection))

    def known(self, connection: bytes) -> None:
        """It has shown a right token: wrong ones of its neighbours do not hold it up."""
        self._say(pack(Kind.KNOWN, connection))

    def _say(self, record: bytes) -> None:
        """What is said to a process that has ended is lost with its connections."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionResetError):
                streams.write(self._writer, record)

    def set_secret(self, secret: str) -> None:
        """Another key from now on: all connections are closed, and new ones have that."""
        self._config = replace(self._config, secret=secret)
        if self._process is not None:
            self._process.kill()  # it has nothing to lose, and the next one is started at once

    async def close(self) -> None:
        """Send what is to be sent, and stop listening."""
        if self._writer is not None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await _written(self._writer)
        self._running.cancel()  # it closes the connection, which ends the process
        await asyncio.gather(self._running, return_exceptions=True)
        await self._end()
        self._listener.close()
        if self.url.startswith("ipc://"):
            Path(self.url.removeprefix("ipc://")).unlink(missing_ok=True)

    async def _end(self) -> None:
        """It ends when its connection closes; else it is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                reason = await self._live()
            except Exception:  # a fault of ours must not close the port
                self._log.exception("a message from the relay could not be handled")
                reason = "its owner failed"
            self._writer = None
            await self._end()
            self._on_restart()
            self._log.warning("the relay process ended; starting another", reason=reason)
            if time.monotonic() - began < SHORT_LIFE:
                await asyncio.sleep(SHORT_LIFE)

    async def _live(self) -> str:
        """One process from its start to its end; the reason of that."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = start_helper(
                    "gpupool_common.relay_process", theirs.fileno(), self._listener.fileno()
                )
            except OSError as error:
                ours.close()
                return f"it cannot be started: {error.strerror}"
        reader, writer = await asyncio.open_connection(sock=ours)
        self._writer = writer
        try:
            writer.write(pack(Kind.CONFIG, self._config.encode()))
            return await self._hear(reader)
        except OSError as error:
            return str(error)
        finally:
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> str:
        unpacker = Unpacker()
        while data := await reader.read(1 << 16):
            try:
                for kind, parts in unpacker.feed(data):
                    if kind is Kind.MESSAGE and self._room is not None:
                        await self._room.acquire()
                    self._take(kind, parts)
            except (RecordError, UnicodeDecodeError) as error:
                return f"it said what it must not: {error}"
        return "it ended"

    def _take(self, kind: Kind, parts: list[bytes]) -> None:
        if kind is Kind.MESSAGE and len(parts) >= 3:
            connection, address, user, *frames = parts
            self._on_message(connection, address.decode(), user.decode(), frames)
        elif kind is Kind.GONE and len(parts) == 1:
            self._on_gone(parts[0])
        elif kind is Kind.REFUSED and len(parts) == 2:
            where, reason = (part.decode()[:200] for part in parts)
            at = {"address": where} if where else {}
            self._log.warning("a connection was refused", reason=reason, **at)
        elif kind is not Kind.READY:
            raise RecordError(f"{kind.name} with {len(parts)} parts")


async def _written(writer: asyncio.StreamWriter) -> None:
    """Once the kernel has all of it."""
    while writer.transport.get_write_buffer_size() > 0:
        await asyncio.sleep(0.005)


def open_relay(
    config: Config,
    on_message: OnMessage,
    option: str,
    on_gone: Callable[[bytes], None] = lambda connection: None,
    on_restart: Callable[[], None] = lambda: None,
    room: asyncio.Semaphore | None = None,
) -> Relay:
    """A relay; GpupoolError names the option with which to choose another address."""
    try:
        return Relay(config, on_message, on_gone, on_restart, room)
    except OSError as error:
        raise GpupoolError(
            f"cannot listen at {config.listen}: {error.strerror}; choose another address: {option}"
        ) from None
