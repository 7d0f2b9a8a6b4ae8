"""Where workers listen for clients of other machines, and which of them need the host's network.

A worker gets the socket that it listens at by TCP from the server, so it serves from a network
of its own, in which nothing is. ZeroMQ makes its sockets itself, and so needs the host's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool_common.errors import InstallError
from gpupool_server import ucx, worker
from gpupool_server.config import Settings
from gpupool_server.data_ports import Ports, data_place, to_try
from gpupool_server.worker import NO_DESCRIPTORS, WorkerError

#: Who connects while the worker starts waits in the kernel.
BACKLOG = 1024

OVER_ZMQ = (
    "its client has no tcp, or sessions on several servers, and is served over ZeroMQ;"
    " --no-zmq serves tcp alone"
)
OVER_UCX = "its client comes over UCX, which makes its connections itself"
MAYBE_UCX = "clients may come over UCX, which makes its connections itself (--no-ucx)"


@dataclass(frozen=True)
class Ways:
    """Where one worker listens."""

    urls: tuple[str, ...] = ()
    #: Descriptors that it is handed for that.
    sockets: tuple[int, ...] = ()
    #: Why it is in the host's network; empty: it needs none.
    host: str = ""
    #: Whether its client may come by RDMA.
    rdma: bool = False


class Network:
    """How this server's workers are reached over a network."""

    def __init__(self, settings: Settings, program: Path, plugins: Path) -> None:
        """InstallError if nothing is left of what the settings allow."""
        self._settings = settings
        self._zmq = settings.data_url
        self._tcp = worker.stream_url(settings.data_url) if settings.tcp else None
        ranged = settings.data_listen.startswith("tcp://")
        self._ports = data_place(settings.data_listen)[1] if ranged else None
        #: Why workers do not listen by tcp although they should; empty: they do.
        self.missing = ""
        if self._tcp is not None:
            found, self.missing = worker.ask_transports(program, plugins)
            if "tcp" in found:
                self.missing = ""  # what else is missing is not tcp's
            else:
                self._tcp = None
        self._ucx = self._find_ucx(program, plugins) if settings.ucx else None
        if self._zmq is not None and self._tcp is None and not settings.zmq:
            raise InstallError(f"zmq is off, and the worker {program} has no tcp: {self.missing}")

    def _find_ucx(self, program: Path, plugins: Path) -> str | None:
        """Where workers listen for clients that take it; InstallError says what is missing."""
        library = ucx.find(self._settings.ucx_library)
        found, why = worker.ask_transports(program, plugins, library)
        if library is None or "ucx" not in found:
            lacks = "" if library is None else f" ({why or library})"
            raise InstallError(
                f"ucx is on, and there is no UCX of 1.20 or later{lacks}; pip install libucx-cu12,"
                " or name its libucp.so.0 as ucx_library"
            )
        address = (self._settings.data_url or "").partition("?")[0]
        return f"ucx://{address.removeprefix('tcp://').rpartition(':')[0]}:*"

    @property
    def host_always(self) -> str:
        """Why every worker is in the host's network; empty: not every one."""
        if self._zmq is None or self._tcp is not None:
            return ""
        return (
            "workers listen for clients of other machines, and connect to workers of others, over"
            " ZeroMQ; --data-listen none serves this machine's clients alone"
        )

    @property
    def host_maybe(self) -> str:
        """Why a worker may be in the host's network; empty: none is."""
        if self._zmq is None or not self._settings.zmq:
            return MAYBE_UCX if self._ucx else ""
        return self.host_always or (
            "clients without tcp, and those of several servers, are served over ZeroMQ from the"
            " host's network; --no-zmq serves none of them, --data-listen none serves this"
            " machine's clients alone"
        )

    @contextlib.contextmanager
    def listen(self, needs_zmq: bool, wants_ucx: bool = False) -> Iterator[Ways]:
        """For a worker that is about to start. WorkerError, or OSError without descriptors."""
        with contextlib.ExitStack() as stack:
            ways = stack.enter_context(self._listen(needs_zmq))
            if self._ucx is None or not wants_ucx:
                yield ways
                return
            handed = stack.enter_context(_listener(self._ucx, self._ports)).fileno()
            urls = (*ways.urls, f"{self._ucx}?fd={handed}")
            yield Ways(urls, (*ways.sockets, handed), ways.host or OVER_UCX, rdma=True)

    @contextlib.contextmanager
    def _listen(self, needs_zmq: bool) -> Iterator[Ways]:
        zmq = self._zmq is not None and (self._tcp is None or (needs_zmq and self._settings.zmq))
        urls = (self._zmq,) if zmq and self._zmq is not None else ()
        host = (self.host_always or OVER_ZMQ) if zmq else ""
        if self._tcp is None:
            yield Ways(urls, host=host)
            return
        with _listener(self._tcp, self._ports) as listener:
            handed = listener.fileno()
            yield Ways((*urls, f"{self._tcp}?fd={handed}"), (handed,), host)


def _listener(url: str, ports: Ports) -> socket.socket:
    """At SCHEME://HOST:*, at one of the ports."""
    host = url.partition("://")[2].rpartition(":")[0].strip("[]")
    host = "" if host == "*" else host
    try:
        family = socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return _listen(host, family, both, ports)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        raise WorkerError(
            f"cannot listen at {url}: {error.strerror}; --data-listen names an address of this host"
            + ("" if ports is None else ", and ports of which some must be free")
        ) from None


def _listen(host: str, family: int, both: bool, ports: Ports) -> socket.socket:
    taken = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    for port in to_try(ports):
        try:
            return socket.create_server(
                (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise taken
