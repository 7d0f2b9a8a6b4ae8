"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque
from pathlib import Path

#: Of each port that is a test's a datagram socket has the number, which no server of ours takes:
#: so tests that run beside this one see it, also before its server is there and while it is down.
_kept: deque[socket.socket] = deque()
#: The servers of so many ports may still be started again.
_MOST_KEPT = 100


def _keep(port: int) -> bool:
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return False
    _kept.append(mark)
    if len(_kept) > _MOST_KEPT:
        _kept.popleft().close()
    return True


def free_port() -> int:
    """A port for a server of ours, now and when it is started again.

    It is none of those that the kernel gives connections: one of these would be taken while the
    server is down, by any program of a test that runs beside this one.
    """
    theirs = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    first = int(theirs.split()[0])
    for port in random.SystemRandom().sample(range(10_000, first), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if _keep(port):
                return port
    raise AssertionError(f"no port from 10000 to {first - 1} is free")
