"""Where programs of this machine come for shared memory, whichever users they run as.

A connection begins with the word of a session, which only its client was told, in a datagram
of its own. The connection is then handed over to that session's worker, which hears all that
follows: the memory that they are to share among it. So a worker has no socket that others could
connect to, and no descriptor that a stranger sends is ever opened here. Nor closed: that could take
as long as the stranger likes (closer.py).

The socket also takes a question to the front end, for programs that have no network to the
server, such as those in containers: one datagram, and one with the answer.

Who connects and has a word is the kernel's answer and the tenant's; neither is this server's
user, and none needs its rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from gpupool_common import logs, protocol
from gpupool_common.closer import Closer, brings
from gpupool_common.relay_limits import Budgets
from gpupool_server import shm_socket
from gpupool_server.local_users import Admitted, LocalUser
from gpupool_server.worker import Control, WorkerError

#: What a connection begins with (proto/transport/shm_channel.h, struct shm_knock).
KNOCK = struct.Struct("=16s16s")
MAGIC = b"gpupool-door/1\0\0"

#: Connections that have said nothing yet, in all and of one user; more push out the oldest,
#: which no client of ours minds: it speaks at once.
MOST, MOST_OF_ONE = 256, 64
SILENCE = 2.0

#: Connections accepted before others are heard again, and the pause without descriptors.
AT_ONCE = 16
PAUSE = 0.1

#: Lines a second about one user in the log, and at once.
LINE_RATE, LINE_BURST = 1.0, 20.0

#: How a question begins, how many a second one user may ask, and at once.
QUESTION = b"GPUPOOL/"
QUESTION_RATE, QUESTION_BURST = 500.0, 2000.0

#: The worker that a word leads to; None: it is nobody's.
Find = Callable[[str], Control | None]
#: The answer to a question of somebody.
Answer = Callable[[bytes, str], Awaitable[bytes]]


def digest_of(word: bytes) -> str:
    """What is kept of a word: who reads it cannot knock with it."""
    return hashlib.sha256(word).hexdigest()


@dataclass(frozen=True)
class Guest:
    """A connection that has not said yet what it wants."""

    connection: socket.socket
    user: LocalUser
    expiry: asyncio.TimerHandle


class ShmDoor:
    """The socket, and those that wait at it."""

    def __init__(self, path: Path, admitted: Admitted, find: Find, answer: Answer) -> None:
        """Listen; ConfigError or GpupoolError say why not."""
        self._path = path
        self._admitted = admitted
        self._find = find
        self._answer = answer
        self._questions = Budgets(QUESTION_RATE, QUESTION_BURST)
        self._log = logs.get("shm")
        self._lines = Budgets(LINE_RATE, LINE_BURST)
        self._closer = Closer()
        self._loop = asyncio.get_running_loop()
        #: Oldest first.
        self._guests: dict[int, Guest] = {}
        self._busy: set[asyncio.Task[None]] = set()
        self._listener = shm_socket.listen(path)
        self._inode = path.stat().st_ino
        self._paused: asyncio.TimerHandle | None = None
        self._closer.start()
        self._loop.add_reader(self._listener, self._accept)

    # Coming ----------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            self._admit(connection)

    def _pause(self, error: OSError) -> None:
        """Without descriptors the socket would be ready again at once, and for ever."""
        if self._lines.spend(b""):
            self._log.warning("connections wait", reason=error.strerror)
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(
            PAUSE, self._loop.add_reader, self._listener, self._accept
        )

    def _admit(self, connection: socket.socket) -> None:
        try:
            user = LocalUser.of(connection)
        except OSError:
            self._close(connection)
            return
        if user not in self._admitted:
            self._refuse(connection, user, "shm_allow does not name this user")
            return
        self._make_room(user)
        fd = connection.fileno()
        expiry = self._loop.call_later(SILENCE, self._drop, fd)
        self._guests[fd] = Guest(connection, user, expiry)
        self._loop.add_reader(fd, self._hear, fd)
        self._hear(fd)  # mostly it has spoken already

    def _make_room(self, user: LocalUser) -> None:
        own = [fd for fd, guest in self._guests.items() if guest.user.uid == user.uid]
        if len(own) >= MOST_OF_ONE:
            self._drop(own[0])
        elif len(self._guests) >= MOST:
            self._drop(next(iter(self._guests)))

    def _leave(self, fd: int) -> Guest:
        guest = self._guests.pop(fd)
        guest.expiry.cancel()
        self._loop.remove_reader(fd)
        return guest

    def _drop(self, fd: int) -> None:
        self._close(self._leave(fd).connection)

    def _close(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:
            self._closer.close(connection.detach())

    def _refuse(self, connection: socket.socket, user: LocalUser, reason: str) -> None:
        self._close(connection)
        if self._lines.spend(str(user).encode()):
            self._log.warning("a connection was refused", uid=user.uid, reason=reason)

    # Knocking --------------------------------------------------------------------------

    def _hear(self, fd: int) -> None:
        connection = self._guests[fd].connection
        try:
            sends_descriptors = brings(connection)
            if not sends_descriptors:
                said, _, flags, _ = connection.recvmsg(protocol.MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(fd)
            return
        guest = self._leave(fd)
        if sends_descriptors:
            self._refuse(guest.connection, guest.user, "it sends descriptors")
        elif not said:
            self._close(guest.connection)  # it has gone
        elif flags & socket.MSG_TRUNC:
            self._refuse(guest.connection, guest.user, "it sends too much")
        elif said.startswith(QUESTION):
            self._start(self._serve(guest, said))
        elif (control := self._worker_of(said)) is not None:
            self._start(self._hand_over(guest, control))
        else:
            self._refuse(guest.connection, guest.user, "it knows no session that waits")

    def _worker_of(self, said: bytes) -> Control | None:
        if len(said) != KNOCK.size:
            return None
        magic, word = KNOCK.unpack(said)
        return self._find(digest_of(word)) if magic == MAGIC else None

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _serve(self, guest: Guest, question: bytes) -> None:
        try:
            if self._questions.spend(str(guest.user).encode()):
                answer = await self._answer(question, str(guest.user))
            else:
                answer = protocol.refusal("busy", "this user asks too much; try again in a second")
            with contextlib.suppress(OSError):  # it has gone
                guest.connection.send(answer)
        finally:
            self._close(guest.connection)

    async def _hand_over(self, guest: Guest, control: Control) -> None:
        """The worker has copies of the descriptors then; ours are closed at once."""
        process = -1
        try:
            if guest.user.pid > 0:
                with contextlib.suppress(ProcessLookupError):  # the end of the socket tells it
                    process = os.pidfd_open(guest.user.pid)
            await control.hand_over(guest.connection.fileno(), process)
        except (WorkerError, OSError) as error:
            self._refuse(guest.connection, guest.user, str(error))
        finally:
            self._close(guest.connection)
            if process >= 0:
                os.close(process)

    async def close(self) -> None:
        """Listen no more; what is being handed over is."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listener)
        self._close(self._listener)
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        for fd in list(self._guests):
            self._drop(fd)
        await asyncio.gather(*self._busy, return_exceptions=True)
        self._closer.end()
