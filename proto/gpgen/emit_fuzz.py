"""A libFuzzer dictionary of operation numbers and one seed message per decoder."""

from __future__ import annotations

import struct

from .spec import Function, Spec


def dictionary(spec: Spec) -> str:
    """Every operation number, as the two bytes it is on the wire."""
    rows = []
    for f in spec.wire:
        low, high = f.id & 255, f.id >> 8
        rows.append(f'{f.name}="\\x{low:02x}\\x{high:02x}"')
    return "\n".join(rows) + "\n"


def seed(f: Function) -> bytes:
    """A header for this operation and zeros: lengths of 0, handles of 0."""
    body = bytes(256)
    return struct.pack("<IHHQ", 16 + len(body), f.id, 0, 1) + body
