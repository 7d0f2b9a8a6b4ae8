"""The arbiter of one GPU (server/arbiter): a process that owns the board, and its commands.

One arbiter for each GPU. It is started here, listens at a socket in the run directory that
only the server's user can reach, and lives on when the server stops: the next server finds
it there. Commands and answers are single messages (server/arbiter/command.c).
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import signal
import socket
import subprocess
from pathlib import Path

from gpupool_common import logs
from gpupool_common.paths import Home
from gpupool_common.space import FULL, no_space
from gpupool_server.board import (
    POLICIES,
    Board,
    BoardError,
    BoardGpu,
    Grant,
    OpenBoard,
    Seat,
    Snapshot,
    TurnLog,
    read_snapshot,
    read_turns,
)

PROGRAM = "libexec/gpupool-arbiter"

#: Of its commands and of the pages of workers (GP_PAGE_VERSION).
PROTOCOL = 2

#: How long it may take to answer: it answers at once, unless it is stopped or the machine is full.
ANSWER_SECONDS = 2.0

#: The longest answer, and the number before it.
_ANSWER = 1 << 18
_NUMBER = 16


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


class ArbitratedBoard:
    """The board of an arbiter that this server reaches."""

    def __init__(self, path: Path, connection: socket.socket) -> None:
        self._path = path
        self._connection: socket.socket | None = connection
        self._pidfd = -1
        #: The seats of workers by pid: another arbiter would need them.
        self._seats: dict[int, Seat] = {}
        self._orphans: dict[int, Seat] = {}
        connection.settimeout(ANSWER_SECONDS)
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        pid = int(self._perform(f"hello {PROTOCOL}", "speak to it")[0])
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
        for member in self.snapshot().processes:
            with contextlib.suppress(BoardError):  # it has just ended
                _, got = self._perform(f"seat {member.pid}", "find a seat")
                if len(got) != 2:
                    _close(*got)
                    continue
                self._seats[member.pid] = Seat(-1, member.tenant, *got)

    # Commands ---------------------------------------------------------------------

    def _ask(self, line: str, descriptors: tuple[int, ...] = ()) -> tuple[int, bytes, list[int]]:
        if self._connection is None:
            raise BoardError(errno.EBADF, f"the board {self._path} is closed")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._connection.sendmsg([line.encode()], rights if descriptors else [])
            text, got, flags, _ = socket.recv_fds(self._connection, _ANSWER, 2)
        except TimeoutError:
            self.end()
            raise BoardError(errno.ETIMEDOUT, f"the board {self._path}") from None
        except OSError:
            text, got, flags = b"", [], 0
        try:
            if flags & socket.MSG_TRUNC:
                raise ValueError
            return int(text[:_NUMBER]), text[_NUMBER:], got
        except ValueError:
            _close(*got)
            raise BoardError(errno.EPIPE, f"the board {self._path}") from None

    def end(self) -> None:
        """What does not answer holds everybody up; the next one takes its workers over."""
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _perform(
        self, line: str, what: str, descriptors: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        number, rest, got = self._ask(line, descriptors)
        if number < 0:
            _close(*got)
            raise BoardError(-number, f"the board {self._path}: cannot {what}")
        return (rest or str(number).encode(), got)

    # The board --------------------------------------------------------------------

    def set_gpu(self, gpu: BoardGpu) -> None:
        policy, hardware = POLICIES.index(gpu.policy), int(gpu.hardware)
        self._perform(
            f"gpu {policy} {gpu.max_inst} {gpu.prio_ratio} {hardware} {gpu.memory_total}",
            f"set policy {gpu.policy}, max_inst {gpu.max_inst}",
        )

    def put(self, name: str, grant: Grant) -> None:
        self._perform(
            f"tenant {name} {grant.memory} {grant.weight} {grant.share} {grant.ceiling}"
            f" {int(grant.high_priority)} {int(grant.forced)} {int(grant.gang)}",
            f"set the limits of {name}",
        )
        for pid, seat in list(self._orphans.items()):
            if seat.tenant == name:
                self._take_over(pid, self._orphans.pop(pid))

    def remove(self, name: str) -> None:
        self._perform(f"remove {name}", f"remove {name}")

    def seat(self, name: str) -> Seat:
        number, got = self._perform(f"join {name}", f"give {name} a seat")
        if len(got) != 2:  # no room for them among our descriptors
            self.leave(Seat(int(number), name, *(*got, -1, -1)[:2]))
            raise BoardError(errno.EMFILE, f"the board {self._path}: no descriptors for {name}")
        return Seat(int(number), name, *got)

    def started(self, seat: Seat, pid: int) -> None:
        self._perform(f"started {seat.index} {pid}", f"seat the worker {pid}")
        self._seats[pid] = seat

    def leave(self, seat: Seat) -> None:
        _close(seat.page, seat.bell)
        with contextlib.suppress(BoardError):
            self._perform(f"leave {seat.index}", "give back a seat")

    def reap(self, pid: int) -> int:
        seat = self._seats.pop(pid, None)
        if seat is not None:
            _close(seat.page, seat.bell)
        number, _, _ = self._ask(f"reap {pid}")
        return max(0, number)

    def _take_over(self, pid: int, seat: Seat) -> None:
        try:
            self._perform(f"adopt {seat.tenant} {pid}", f"seat {pid}", (seat.page, seat.bell))
        except BoardError as error:
            _close(seat.page, seat.bell)
            if error.number != errno.ESRCH:  # it has not ended
                logs.get("gpus").error("a worker has lost its board", pid=pid, reason=str(error))
            return
        self._seats[pid] = seat

    def orphans(self) -> dict[int, Seat]:
        seats, self._seats, self._orphans = {**self._seats, **self._orphans}, {}, {}
        return seats

    def adopt(self, orphans: dict[int, Seat]) -> None:
        self._orphans.update(orphans)

    def snapshot(self) -> Snapshot:
        text, _ = self._perform("describe", "describe it")
        return read_snapshot(text)

    def turns(self, since: int) -> TurnLog:
        text, _ = self._perform(f"turns {since}", "describe its turns")
        return read_turns(text)

    def charge(self, name: str, ns: int, whose: str) -> None:
        self._perform(f"charge {name} {ns} {whose}", f"charge {name}")

    def close(self) -> None:
        """Let go of it; its workers keep it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        _close(*[self._pidfd] if self._pidfd >= 0 else [])
        self._pidfd = -1
        for seat in self.orphans().values():
            _close(seat.page, seat.bell)


def _connect(path: Path) -> socket.socket | None:
    """To the arbiter that is there; None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def _start(program: Path, path: Path) -> None:
    """Start an arbiter that listens at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(4)
        process = subprocess.Popen(
            [str(program), "--listen-fd", str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            cwd="/",
            env={},
        )
    # Whoever is started next waits for those that have ended (subprocess does that).
    del process


def open_board(program: Path, path: Path) -> ArbitratedBoard:
    """The board of the arbiter at ``path``, which is started if it is not there; BoardError."""
    try:
        connection = _connect(path)
        if connection is None:
            _start(program, path)
            connection = _connect(path)
    except OSError as error:
        if error.errno in FULL:
            raise BoardError(error.errno, "a GPU's board", no_space(path.parent)) from None
        raise BoardError(
            error.errno or errno.EIO,
            f"the arbiter {program} at {path} cannot be started",
            error.strerror or str(error),
        ) from None
    if connection is None:
        raise BoardError(errno.EPIPE, f"the board {path}")
    return ArbitratedBoard(path, connection)


def find_opener(home: Home) -> OpenBoard | None:
    """How boards are opened here; None if the arbiter is not installed."""
    program = home.root / PROGRAM
    if not program.is_file():
        return None

    def opener(path: Path) -> Board:
        return open_board(program, path)

    return opener
