"""The ports at which workers listen for the network: any, or those of a range."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from gpupool_common.ask import split_tcp

#: What libzmq and our own transports call any port.
ANY = "*"

Ports = range | None


def data_place(url: str) -> tuple[str, Ports]:
    """Host and ports of tcp://HOST:* (None: any) or tcp://HOST:FIRST-LAST; ValueError."""
    ahead, _, port = url.rpartition(":")
    host, _ = split_tcp(f"{ahead}:1")
    if port == ANY:
        return host, None
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", port)
    if found is None:
        raise ValueError("the port is the worker's to choose")
    first, last = int(found[1]), int(found[2])
    if not 1 <= first <= last <= 65535:
        raise ValueError("no range of ports")
    return host, range(first, last + 1)


def to_try(ports: Ports) -> Iterator[int]:
    """One after the other, from any on: workers that start together seldom meet."""
    if ports is None:
        yield 0
        return
    begin = secrets.randbelow(len(ports))
    yield from ports[begin:]
    yield from ports[:begin]
