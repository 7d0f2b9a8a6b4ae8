"""Where scrapers connect: so many at once, so many of one address, and none for long.

A connection counts before its TLS handshake, so who never ends one takes a place for some seconds
and nothing else of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gpupool_common import logs, streams
from gpupool_common.accepting import accept_each
from gpupool_common.hosts import limited_as

#: For each step: the handshake, and the question with its answer.
ASK_SECONDS = 5.0
MAX_HEAD = 16384

#: Scrapers are few; more than this are none.
MOST_CONNECTIONS, MOST_EACH = 64, 8

Respond = Callable[[bytes], Awaitable[bytes]]


class MetricsListener:
    """Gives the head of each request to ``respond``, and sends what that gives."""

    def __init__(self, respond: Respond, context: ssl.SSLContext | None) -> None:
        self._respond = respond
        self._context = context
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those that are served, by address, the oldest first.
        self._of: defaultdict[str, list[asyncio.Task[None]]] = defaultdict(list)
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
            self._begin(accept_each(listener, self._take, logs.get("metrics")))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _take(self, connection: socket.socket, address: tuple[Any, ...]) -> None:
        host = limited_as(str(address[0]))
        if len(self._of[host]) >= MOST_EACH or not self._make_room(host):
            connection.close()
            return
        task = self._begin(self._serve(connection))
        self._of[host].append(task)
        task.add_done_callback(self._of[host].remove)

    def _make_room(self, host: str) -> bool:
        """Where all places are taken, the oldest of who has most ends for one who has fewer."""
        self._of = defaultdict(list, {each: tasks for each, tasks in self._of.items() if tasks})
        if sum(map(len, self._of.values())) < MOST_CONNECTIONS:
            return True
        most = max(self._of.values(), key=len)
        if len(self._of[host]) + 1 >= len(most):
            return False
        most[0].cancel()
        return True

    async def _serve(self, connection: socket.socket) -> None:
        # Whatever a scraper does wrong, it is the one that gets no answer.
        bad = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        writer = None
        try:
            with contextlib.suppress(*bad):
                async with asyncio.timeout(ASK_SECONDS):
                    reader, writer = await streams.of_accepted(connection, MAX_HEAD, self._context)
                async with asyncio.timeout(ASK_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    streams.write(writer, await self._respond(head))
                    await writer.drain()
        finally:
            if writer is not None:
                writer.close()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _listen(listener: socket.socket, address: object) -> None:
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(16)
