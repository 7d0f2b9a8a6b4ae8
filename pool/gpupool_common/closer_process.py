"""The process that closes what strangers have sent (closer.py), and may be kept waiting by it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from gpupool_common import interrupt
from gpupool_common.closed_memory import close_memory
from gpupool_common.closer import CLOSE, MOST_AT_ONCE

#: A signal ends the wait of a close, but not of one that begins behind it: so they keep coming.
EVERY = 0.001


def close_all(held: list[int]) -> None:
    """Close descriptors; none of them keeps this process for longer than a signal takes."""
    signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
    for fd in held:
        with contextlib.suppress(OSError):
            os.close(fd)
    signal.setitimer(signal.ITIMER_REAL, 0)


def serve(owner: socket.socket) -> None:
    """Hold what comes, and close it when the owner has closed its own, until that has gone."""
    held: list[int] = []
    while True:
        said, fds, _, _ = socket.recv_fds(owner, len(CLOSE), MOST_AT_ONCE)
        held += fds
        if not said:
            return
        if said == CLOSE:
            close_all(held)
            held = []


def main() -> None:
    """The program: one descriptor, the owner's."""
    for number in interrupt.ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: None)
    close_memory()
    with socket.socket(fileno=int(sys.argv[1])) as owner, contextlib.suppress(ConnectionError):
        serve(owner)


if __name__ == "__main__":
    main()
