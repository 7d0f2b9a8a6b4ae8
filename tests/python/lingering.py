"""A socket whose last close waits until its peer has read: what a stranger may send."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

#: What is waited for at most; a sound process waits for nothing.
PATIENCE = 20.0


class Lingering:
    """A TCP connection that is full, of which ``end`` lingers; it is ours to send, then to drop."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.end = socket.create_connection(door.getsockname())
            self._peer, _ = door.accept()
        self.end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.end.send(bytes(1 << 16))
        self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
        #: Whether somebody has waited so long that the peer was closed.
        self.waited = False
        self._timer = threading.Timer(PATIENCE, self._give_up)
        self._timer.start()

    def _give_up(self) -> None:
        self.waited = True
        self.close()

    def close(self) -> None:
        self._timer.cancel()
        self._peer.close()
        self.end.close()


@contextlib.contextmanager
def lingering() -> Iterator[Lingering]:
    """One, whose peer is closed at the end."""
    made = Lingering()
    try:
        yield made
    finally:
        made.close()
