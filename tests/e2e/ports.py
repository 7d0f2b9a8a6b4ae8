"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


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
            return port
    raise AssertionError(f"no port from 10000 to {first - 1} is free")
