"""What a relay's process and its owner say to each other (relay.py, relay_process.py).

A record is a kind and some byte strings. Both sides check every length: the process
talks to untrusted clients, and is trusted no more than they are.
"""

from __future__ import annotations

import enum
import struct

#: The longest record; a message of the pool's link has at most 2 MiB.
MAX_RECORD = 4 << 20
MAX_PARTS = 16

_HEAD = struct.Struct("<IBB")
_SIZE = struct.Struct("<I")


class Kind(enum.IntEnum):
    """What a record is about, and its parts."""

    # From the owner.
    CONFIG = 1  # one part, JSON: relay_process.Config
    SEND = 2  # connection, frames…
    WRONG = 3  # address, connection: a question from there had a token that is none
    KNOWN = 4  # connection: it has shown a right one
    # From the process.
    READY = 16
    MESSAGE = 17  # connection, address, user, frames…
    GONE = 18  # connection: it is not there any more
    REFUSED = 19  # address, why: a connection that could not be made


class RecordError(ValueError):
    """The other side does not keep to this."""


def pack(kind: Kind, *parts: bytes) -> bytes:
    """The bytes of a record."""
    body = b"".join(_SIZE.pack(len(part)) + part for part in parts)
    if len(parts) > MAX_PARTS or len(body) > MAX_RECORD:
        raise RecordError(f"a record of {len(parts)} parts and {len(body)} bytes")
    return _HEAD.pack(len(body), kind, len(parts)) + body


class Unpacker:
    """Records out of a stream of bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, list[bytes]]]:
        """The records that are whole now; RecordError."""
        self._bytes += data
        records = []
        while len(self._bytes) >= _HEAD.size:
            size, kind, count = _HEAD.unpack_from(self._bytes)
            if size > MAX_RECORD or count > MAX_PARTS:
                raise RecordError(f"a record of {count} parts and {size} bytes")
            if len(self._bytes) < _HEAD.size + size:
                break
            body = bytes(self._bytes[_HEAD.size : _HEAD.size + size])
            del self._bytes[: _HEAD.size + size]
            records.append((_kind(kind), _parts(body, count)))
        return records


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise RecordError(f"a record of kind {number}") from None


def _parts(body: bytes, count: int) -> list[bytes]:
    parts = []
    at = 0
    for _ in range(count):
        if len(body) - at < _SIZE.size:
            raise RecordError("a record that ends early")
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if len(body) - at < size:
            raise RecordError("a record that ends early")
        parts.append(body[at : at + size])
        at += size
    if at != len(body):
        raise RecordError("a record with more in it than its parts")
    return parts
