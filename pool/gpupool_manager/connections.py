"""Connections to the REST API: how many, from whom, and for how long without a request.

uvicorn has no end for a connection that says nothing or half a request, and its listener none for
a lack of descriptors. So we accept by ourselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from gpupool_common import logs
from gpupool_common.accepting import accept_each
from gpupool_common.hosts import limited_as

#: Descriptors for everything but connections: the database, the link, files.
RESERVED = 64
MOST = 8192

#: Where uvicorn logs.
COMPLAINS = "uvicorn.error"
#: Of what any client can cause as often as it likes, at most one line in so many seconds.
QUIET_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What connections may have."""

    #: From one address.
    each: int = 256
    #: How long a request may be on its way here: its head, then its body; and an answer that is
    #: not read. A connection that says nothing has as long.
    seconds: float = 20.0

    @property
    def most(self) -> int:
        """Of all addresses together: what descriptors there are for them."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, min(MOST, soft - RESERVED))


def raise_file_limit() -> None:
    """Each connection takes a descriptor; the soft limit is often only 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + RESERVED if hard == resource.RLIM_INFINITY else min(hard, MOST + RESERVED)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Places:
    """Whose connections there are, by address, the oldest first."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._taken: dict[str, list[Ticket]] = {}
        self._count = 0

    def of(self, address: str) -> int:
        return len(self._taken.get(address, ()))

    def take(self, address: str) -> Ticket | None:
        """Where all are taken, the oldest of who has most ends for one who has fewer."""
        if self.of(address) >= self._each:
            return None
        if self._count >= self._most:
            most = max(self._taken.values(), key=len)
            if self.of(address) + 1 >= len(most):
                return None
            most[0].end()
            most[0].give_back()
        ticket = Ticket(self, address)
        self._taken.setdefault(address, []).append(ticket)
        self._count += 1
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        mine = self._taken.get(ticket.address, [])
        if ticket in mine:
            mine.remove(ticket)
            self._count -= 1
        if not mine:
            self._taken.pop(ticket.address, None)


@dataclass(slots=True, eq=False)
class Ticket:
    """One place among the connections of an address."""

    places: Places
    address: str
    #: What ends the connection.
    end: Callable[[], object] = lambda: None

    def give_back(self) -> None:
        self.places.give_back(self)


class ImpatientProtocol(H11Protocol):
    """uvicorn's, for those who send what they have begun."""

    seconds = Limits().seconds

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ticket: Ticket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase: object = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        self.resume_writing()
        if self.ticket is not None:
            self.ticket.give_back()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.seconds, self.give_up)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self.flow is not None:
            super().resume_writing()

    def _look(self) -> None:
        """What is waited for now, if it is the client's to send."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._wait_for((cycle, "body") if cycle.more_body else None)
        elif self.timeout_keep_alive_task is None:
            self._wait_for((cycle, "head"))
        else:
            self._wait_for(None)  # uvicorn waits for the next request

    def _wait_for(self, phase: object) -> None:
        """The time counts from when this began, not from the last byte."""
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if phase is not None:
            self._timer = self.loop.call_later(self.seconds, self.give_up)

    def give_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Complaints(logging.Filter):
    """Of requests that are none uvicorn says a line each; whoever sends them fills no disk."""

    def __init__(self, say: Callable[..., None]) -> None:
        super().__init__()
        self._say = say

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            self._say("a request was refused", reason=record.getMessage())
        return record.levelno != logging.WARNING


class Acceptor:
    """Takes connections from a listener until :meth:`close`; a server for uvicorn."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], ImpatientProtocol],
        tls: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._make = make
        self._tls = tls
        self._limits = limits
        self._places = Places(limits.most, limits.each)
        self._log = logs.get("rest")
        self._said: dict[str, float] = {}
        self._complaints = Complaints(self._say)
        logging.getLogger(COMPLAINS).addFilter(self._complaints)
        self._handing: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        listener.listen(512)
        self._task = asyncio.create_task(
            accept_each(listener, self._take, self._log), name="accept"
        )

    def close(self) -> None:
        logging.getLogger(COMPLAINS).removeFilter(self._complaints)
        self._task.cancel()
        for task in self._handing:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._task, *self._handing, return_exceptions=True)

    def _take(self, sock: socket.socket, peer: tuple[Any, ...]) -> None:
        address = limited_as(str(peer[0]))
        ticket = self._places.take(address)
        if ticket is None:
            self._say("too many connections", address=address, there=self._places.of(address))
            sock.close()
            return
        task = asyncio.create_task(self._hand_over(sock, ticket))
        ticket.end = task.cancel  # until it is handed over
        self._handing.add(task)
        task.add_done_callback(self._handing.discard)

    async def _hand_over(self, sock: socket.socket, ticket: Ticket) -> None:
        protocol = self._make()
        protocol.ticket = ticket
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.seconds if self._tls else None,
            )
            ticket.end = protocol.give_up
        except BaseException as error:  # most often a handshake that is none
            ticket.give_back()
            sock.close()
            if not isinstance(error, OSError | ssl.SSLError | TimeoutError):
                raise

    def _say(self, event: str, **what: Any) -> None:
        now = time.monotonic()
        if now - self._said.get(event, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._said[event] = now
            self._log.warning(event, **what)
