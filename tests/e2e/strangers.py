"""Whoever reaches a port without being welcome: connections that begin well and break off."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

from harness import PATIENCE

#: ZMTP 3.1, mechanism NULL; a READY of a DEALER; a message of five bytes.
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_METADATA = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
READY = b"\x04" + bytes((len(_METADATA),)) + _METADATA
MESSAGE = b"\x00\x05hello"
#: A frame of 4,000 bytes of which few come, a ping, a subscription.
TORN = b"\x02" + struct.pack(">Q", 4000) + b"torn"
PING = b"\x04\x07\x04PING\0\x64"

#: Of one address come so many: the kernel has about 28,000 ports for each.
OF_ONE = 10_000

#: What is said first, and what once the other side has answered that.
KINDS = (
    (b"", b""),
    (GREETING[:11], b""),
    (GREETING + READY[:7], b""),
    (GREETING + READY, MESSAGE * 400),
    (GREETING + READY, MESSAGE * 3 + TORN),
    (GREETING + READY, PING + MESSAGE * 70),
    (GREETING.replace(b"NULL\0", b"CURVE"), READY),
    (os.urandom(300), b""),
)


def say(stranger: socket.socket, first: bytes, then: bytes) -> None:
    """As far as the other side lets it."""
    stranger.sendall(first)
    stranger.settimeout(0.02)  # one that encrypts says less
    heard = b""
    while then and len(heard) < len(GREETING) + 20:
        try:
            more = stranger.recv(4096)
        except TimeoutError:
            break
        if not more:
            return
        heard += more
    stranger.sendall(then)


def elsewhere(number: int) -> tuple[str, int]:
    """Where a stranger comes from: other addresses of this machine's than its programs have."""
    return f"127.0.0.{2 + number // OF_ONE % 200}", 0


def break_off(port: int, number: int) -> bool:
    """One such connection; False if nobody listens there any more."""
    stranger = socket.socket()
    kind, reset = KINDS[number % len(KINDS)], number % 3 == 0
    try:
        stranger.settimeout(PATIENCE)
        stranger.bind(elsewhere(number))
        try:
            stranger.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            return False
        if reset:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        say(stranger, *kind)
    except OSError:
        pass  # it was hung up on, which is right
    finally:
        stranger.close()
    return True


def storm(port: int, count: int, meanwhile: Callable[[], None] | None = None) -> int:
    """So many of them, some left open for a while; how many found somebody listening.

    ``meanwhile`` is called a few times between them.
    """
    found = 0
    held: list[socket.socket] = []
    for number in range(count):
        found += break_off(port, number)
        if number % 50 == 0:
            try:
                at = ("127.0.0.1", port)
                held.append(socket.create_connection(at, PATIENCE, elsewhere(number)))
                say(held[-1], *KINDS[3])
            except OSError:
                pass
            if len(held) > 20:
                held.pop(0).close()
        if meanwhile is not None and number % (count // 4) == 0:
            meanwhile()
    for stranger in held:
        stranger.close()
    return found


def storm_size() -> int:
    """How many connections a test of these makes: more by request."""
    return int(os.environ.get("GPUPOOL_STORM", "10000"))
