"""Where scrapers connect: so many at once, so many of one address, and none for long.

A connection counts before its TLS handshake, so who never ends one takes a place for some seconds
and nothing else of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable

from gpupool_common import logs

#: For each step: the handshake, and the question with its answer.
ASK_SECONDS = 5.0
MAX_HEAD = 16384

#: Scrapers are few; more than this are none.
MOST_CONNECTIONS, MOST_EACH = 64, 8

#: After the system had no descriptor for a connection.
PAUSE_SECONDS = 1.0

Respond = Callable[[bytes], Awaitable[bytes]]


class MetricsListener:
    """Gives the head of each request to ``respond``, and sends what that gives."""

    def __init__(self, respond: Respond, context: ssl.SSLContext | None) -> None:
        self._respond = respond
        self._context = context
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._of: Counter[str] = Counter()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen at every address of ``host``; OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, protocol, _, address in found:
                listener = socket.socket(family, kind, protocol)
                self._listeners.append(listener)
                _listen(listener, address)
        except OSError:
            await self.close()
            raise
        self.port = int(self._listeners[0].getsockname()[1])
        for listener in self._listeners:
            self._begin(self._accept(listener))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                logs.get("metrics").warning("no scraper can connect", reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            host = str(address[0])
            if self._of.total() >= MOST_CONNECTIONS or self._of[host] >= MOST_EACH:
                connection.close()
                continue
            self._of[host] += 1
            self._begin(self._serve(connection, host))

    async def _serve(self, connection: socket.socket, host: str) -> None:
        # Whatever a scraper does wrong, it is the one that gets no answer.
        bad = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        writer = None
        try:
            with contextlib.suppress(*bad):
                async with asyncio.timeout(ASK_SECONDS):
                    reader, writer = await self._streams(connection)
                async with asyncio.timeout(ASK_SECONDS):
                    writer.write(await self._respond(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        finally:
            if writer is None:
                connection.close()
            else:
                writer.close()
            self._of[host] -= 1
            if not self._of[host]:
                del self._of[host]

    async def _streams(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._context
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _listen(listener: socket.socket, address: object) -> None:
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(16)
