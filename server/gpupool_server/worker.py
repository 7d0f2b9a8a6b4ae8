"""One worker process as the server sees it: start it, hear it, ask it, end it.

A worker must outlive the server. So it runs in a process session of its own, and
what it writes goes into FIFOs that the worker itself keeps open both ways: with
no server there its log lines are lost when the FIFO is full, but it never blocks
and never gets SIGPIPE, and the next server reads on where the last one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool_common import json_text
from gpupool_common.closer import MOST_SENT, Closer, take_no_descriptors
from gpupool_common.errors import GpupoolError, InstallError
from gpupool_common.protocol import one_line
from gpupool_server import ucx
from gpupool_server.process import Process

FIFO_BYTES = 256 * 1024
CONTROL_SECONDS = 2.0

#: The process, or the machine, has no descriptor left: nothing is wrong with the worker.
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

#: Bytes of a command, as server/worker/session/control.c has it, without the end of the line.
MAX_COMMAND = 510

#: Of a worker's answer to 'share': bytes and descriptors (server/worker/ipc/shareable.h).
MOST_SHARED = 192
SHARED_DESCRIPTORS = 2

_NETWORK_URL = re.compile(
    r"tcp://[^\s,?]{1,200}\?(key=[0-9a-f]{64}&)?door=[0-9a-f]{32}"
    r"|ipc://[^\s,?]{1,200}(,[^\s,?]{1,200})?"
)
_UCX_URL = re.compile(r"ucx://[^\s,?]{1,200}\?door=[0-9a-f]{32}")
_STREAM_URL = re.compile(r"(tls|plain)://[^\s,?]{1,200}\?door=[0-9a-f]{32}")


class WorkerError(GpupoolError):
    """A worker did not start, or does not answer as the contract says."""


def open_fifo(path: Path) -> int:
    """The worker's end: both ways, so that it never lacks a reader; never blocking."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a limit of the system; the default size does too
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, FIFO_BYTES)
    return fd


def secret_pipe(secret: str) -> int:
    """A descriptor from which a worker reads its secret.

    /proc shows commands and environments to everything that runs as the same user, for as
    long as the process lives.
    """
    read, write = os.pipe()
    try:
        os.write(write, secret.encode("ascii"))  # a pipe holds more than that
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    return read


def launch(
    command: Sequence[str],
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    descriptors: Sequence[int] = (),
) -> Process:
    """Start a worker; WorkerError if the program cannot be run, OSError without descriptors.

    ``streams`` are its standard ones; ``descriptors`` keep their numbers in it.
    """
    try:
        child = subprocess.Popen(
            command,
            env=dict(env),
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=descriptors,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        raise WorkerError(f"{command[0]} cannot be run: {error.strerror}") from None
    return Process.of_child(child)


#: What a worker listens at for clients that are handed over to it.
HANDED = "shm://handed"


def stream_url(data_url: str | None) -> str | None:
    """Where a worker listens by TCP of our own that listens at ``data_url`` by ZeroMQ."""
    if data_url is None or not data_url.startswith("tcp://"):
        return None
    address, _, key = data_url.partition("?")
    host = address.removeprefix("tcp://").rpartition(":")[0]
    return f"{'tls' if key else 'plain'}://{host}:*"


@dataclass(frozen=True)
class Ready:
    """How a worker is reached; None: not so."""

    shm: bool
    zmq: str | None
    tcp: str | None = None
    ucx: str | None = None


def parse_ready(line: str) -> Ready:
    """The worker's one line; WorkerError if it is anything else."""
    word, _, rest = line.partition(" ")
    try:
        urls: Any = json_text.parse(rest) if word == "ready" else None
    except ValueError:
        urls = None
    if not isinstance(urls, dict):
        raise WorkerError(f"the worker's first line is not 'ready {{…}}' but {line[:80]!r}")
    shm = urls.get("shm")
    if shm not in (None, HANDED):
        raise WorkerError(f"the worker's ready line has another shm address than {HANDED}")
    return Ready(
        shm is not None,
        _address(urls, "zmq", _NETWORK_URL),
        _address(urls, "tcp", _STREAM_URL),
        _address(urls, "ucx", _UCX_URL),
    )


def _address(urls: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str | None:
    url = urls.get(name)
    if url is None or url == "":
        return None
    if not isinstance(url, str) or form.fullmatch(url) is None:
        # the address holds the secret of the worker's endpoint
        raise WorkerError(f"the worker's ready line has a bad {name} address")
    return url


class Control:
    """The worker's control socket: one question at a time over one lasting connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()

    async def status(self) -> dict[str, Any]:
        """The worker's account of itself; WorkerError if it gives none in time."""
        line = await self._ask(b"status\n")
        try:
            answer: Any = json_text.parse(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise WorkerError(f"the worker answered 'status' with {line[:80]!r}, not with JSON")
        return answer

    async def stop(self, reason: str) -> None:
        """Ask the worker to tell its client the reason and to end; WorkerError if it cannot be
        told."""
        await self._tell(f"stop {reason}")

    async def say(self, text: str) -> None:
        """Send the client a message; WorkerError if the worker cannot be reached."""
        await self._tell(f"say {text}")

    async def hand_over(self, connection: int, process: int) -> None:
        """Give the worker a client's connection, and a pidfd of the client (-1: none).

        WorkerError if it cannot be reached. On a connection of its own: descriptors and lines
        must not mix.
        """
        fds = [connection] if process < 0 else [connection, process]
        await self._give(b"client\n", fds, "takes no client")

    async def listen_to(self, questions: int) -> None:
        """Give the worker the socket on which it may ask; WorkerError if it cannot be reached."""
        await self._give(b"questions\n", [questions], "has nowhere to ask")

    async def share(self, token: str, closer: Closer) -> tuple[bytes, list[int]]:
        """What is behind a token, as the worker says it, and the descriptors, which are the
        caller's; WorkerError if it does not answer.

        Whatever it says is handed on as it is: who asked for it checks it. What it sends beyond
        that is closed by ``closer``.
        """
        return await self._fetch(f"share {token}", SHARED_DESCRIPTORS, closer)

    async def image(self, name: str, closer: Closer) -> tuple[bytes, list[int]]:
        """An image that the worker has offered: its line, and the file, as :meth:`share`."""
        return await self._fetch(f"image {name}", 1, closer)

    async def _fetch(self, command: str, most: int, closer: Closer) -> tuple[bytes, list[int]]:
        loop = asyncio.get_running_loop()
        try:
            own = socket.socket(socket.AF_UNIX)
            try:
                own.setblocking(False)
                async with asyncio.timeout(CONTROL_SECONDS):
                    await loop.sock_connect(own, str(self._path))
                    await loop.sock_sendall(own, f"{command}\n".encode())
                    await readable(own)
                line, fds, _, _ = socket.recv_fds(
                    own, MOST_SHARED, MOST_SENT, socket.MSG_CMSG_CLOEXEC
                )
            finally:
                closer.close(own.detach())
        except (OSError, TimeoutError) as error:
            raise WorkerError(f"{self._path}: the worker shares nothing: {error}") from None
        closer.close(*fds[most:])
        return line, fds[:most]

    async def _give(self, command: bytes, fds: Sequence[int], failure: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            with _one_way() as own:
                async with asyncio.timeout(CONTROL_SECONDS):
                    await loop.sock_connect(own, str(self._path))
                socket.send_fds(own, [command], fds)
        except (OSError, TimeoutError) as error:
            raise WorkerError(f"{self._path}: the worker {failure}: {error}") from None

    async def _tell(self, command: str) -> None:
        line = one_line(command).encode()[:MAX_COMMAND] + b"\n"
        try:
            async with asyncio.timeout(CONTROL_SECONDS), self._lock:
                _, writer = await self._connected()
                writer.write(line)
                await writer.drain()
        except (OSError, TimeoutError) as error:
            self.close()
            word = command.partition(" ")[0]
            raise WorkerError(
                f"{self._path}: the worker cannot be sent '{word}': {error}"
            ) from None

    async def _ask(self, question: bytes) -> bytes:
        try:
            async with asyncio.timeout(CONTROL_SECONDS), self._lock:
                reader, writer = await self._connected()
                writer.write(question)
                await writer.drain()
                line = await reader.readline()
        except TimeoutError:
            # Its late answer would be taken for that of the next question.
            self.close()
            raise WorkerError(
                f"{self._path}: no answer from the worker within {CONTROL_SECONDS:g} s"
            ) from None
        except (OSError, ValueError) as error:
            self.close()
            raise WorkerError(f"{self._path}: {error}") from None
        if not line.endswith(b"\n"):
            self.close()
            raise WorkerError(f"{self._path}: the worker closed the connection")
        return line

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # a worker that ended before it had read all: uvloop's closed transports raise RuntimeError
        if self._streams is not None and self._streams[1].is_closing():
            self.close()
        if self._streams is None:
            own = _one_way()
            try:
                await asyncio.get_running_loop().sock_connect(own, str(self._path))
                self._streams = await asyncio.open_unix_connection(sock=own, limit=65536)
            except BaseException:
                own.close()
                raise
        return self._streams

    def close(self) -> None:
        """Close the connection; the worker keeps running."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _one_way() -> socket.socket:
    """For a control socket, by which a worker is not to send descriptors."""
    own = socket.socket(socket.AF_UNIX)
    own.setblocking(False)
    take_no_descriptors(own)
    return own


async def readable(connection: socket.socket) -> None:
    """Until there is something to read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


@dataclass(frozen=True)
class Build:
    """The protocols that a worker program speaks."""

    wire: int
    oldest: int


_BUILD = re.compile(r"gpupool-worker \S+ wire (\d{1,9}) spec [0-9a-f]{16}(?: oldest (\d{1,9}))?\n?")


def ask_build(program: Path) -> Build | None:
    """What ``gpupool-worker --version`` says; None if it does not speak of it.

    InstallError if the program cannot be run at all.
    """
    try:
        done = subprocess.run(
            [str(program), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30.0,
            check=False,
        )
    except OSError as error:
        raise InstallError(f"the worker {program} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"the worker {program} does not answer --version") from None
    match = _BUILD.fullmatch(done.stdout)
    if match is None or done.returncode != 0:
        return None
    return Build(wire=int(match[1]), oldest=int(match[2] or match[1]))


def ask_transports(
    program: Path, plugins: Path, ucx_library: Path | None = None
) -> tuple[list[str], str]:
    """Over what a worker can listen here, and why not over more: a line.

    ``ucx_library``: what to look at for that transport; None: it is not asked for.
    """
    env = {name: value for name, value in os.environ.items() if name != ucx.VARIABLE}
    env |= {"GPUPOOL_PLUGINS": str(plugins)}
    env |= {ucx.VARIABLE: str(ucx_library)} if ucx_library else {}
    try:
        done = subprocess.run(
            [str(program), "--transports"],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{program}: {error}"
    if done.returncode != 0:
        return [], "the worker is of an earlier release"
    return done.stdout.split(), one_line(done.stderr)


def knows(program: Path, option: str) -> bool:
    """Whether a worker has an option, such as --seat: an earlier release's may not."""
    try:
        done = subprocess.run(
            [str(program), "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return option.encode() in done.stdout
