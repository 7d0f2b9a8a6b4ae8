"""Closing what strangers have sent, or may have, without waiting for it.

The last close of a TCP socket with SO_LINGER waits until its peer has read, for as long as who set
that likes. Such a descriptor can be sent through a Unix socket. Who reads the message without
taking the descriptor closes it, and so does who closes a Unix socket in which it lies unread. So a
process of its own (closer_process.py) does the last close of such connections; ours is not the
last, as it has a copy by then.

Whether descriptors have come with a message is seen by looking at it first: `brings`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess

from gpupool_common.helper_process import start_helper

#: What is said when the owner has closed its own copies, and with them.
CLOSE, HOLD = b"close", b"hold"

#: Descriptors of one message.
MOST_AT_ONCE = 64

#: As many can come with one message (the kernel's SCM_MAX_FD).
MOST_SENT = 253

#: Linux 6.16 and later; Python has no name for it yet.
SO_PASSRIGHTS = 83


def brings(connection: socket.socket) -> bool:
    """Whether the next message has descriptors, which stay in it. OSError: it has gone, or there
    is none yet."""
    flags = connection.recvmsg(1, 0, socket.MSG_PEEK)[2]
    return bool(flags & socket.MSG_CTRUNC)


def take_no_descriptors(connection: socket.socket) -> None:
    """Have the kernel refuse them to who sends them, where it can."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


class Closer:
    """Closes descriptors elsewhere: in a process that is started with the first of them, or
    before."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: socket.socket | None = None

    def start(self) -> None:
        """Have the process before it is needed, if it can be had."""
        with contextlib.suppress(OSError):
            self._owner = self._owner or self._start()

    def close(self, *descriptors: int) -> None:
        """Close them, also if it cannot be done elsewhere."""
        for at in range(0, len(descriptors), MOST_AT_ONCE):
            self._close(descriptors[at : at + MOST_AT_ONCE])

    def _close(self, descriptors: tuple[int, ...]) -> None:
        held = self._hold(descriptors) or self._hold(descriptors)  # by another process
        for fd in descriptors:
            with contextlib.suppress(OSError):
                os.close(fd)
        if held and self._owner is not None:
            try:
                self._owner.send(CLOSE)
            except OSError:
                self.end()

    def _hold(self, descriptors: tuple[int, ...]) -> bool:
        try:
            owner = self._owner or self._start()
            socket.send_fds(owner, [HOLD], descriptors)
        except OSError:  # it has died, or does not keep up
            self.end()
            return False
        return True

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = start_helper("gpupool_common.closer_process", theirs.fileno())
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._owner = ours
        return ours

    def end(self) -> None:
        """End the process; what it holds is closed by that, which waits for nothing."""
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
