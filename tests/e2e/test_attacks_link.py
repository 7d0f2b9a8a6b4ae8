"""A client without our library that lies about what it links."""

from __future__ import annotations

import struct

import pytest

from gpupool_server.image_name import image_name
from harness import PoolServer
from peer_client import Worker, worker_of
from raw_client import handle

pytestmark = pytest.mark.real_gpu

KIND_LINK = 16
CUBIN, PTX, FATBINARY = 0, 1, 2
INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE, INVALID_HANDLE = 1, 2, 200, 400
LOADED, MISSING = 0, 1
ROOM = 64
TEXT = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f()\n{\n    ret;\n}\n\0"


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def create(worker: Worker, index: int = 1, room: int = ROOM, options: tuple[int, ...] = ()) -> int:
    pairs = struct.pack(f"<{len(options)}Q", *options)
    body = struct.pack(
        "<QIIII", handle(KIND_LINK, index), len(options) // 2, len(pairs), room, room
    )
    return worker.result("gp_link_create", padded(body) + pairs)


def put(worker: Worker, data: bytes) -> bytes:
    digest = bytes.fromhex(image_name(data))
    head = struct.pack("<I4xQQII", 32, len(data), 0, len(data), len(data))
    worker.tell("gp_image_put", head + digest + padded(data))
    return digest


def add(worker: Worker, kind: int, digest: bytes, index: int = 1) -> tuple[int, int, int]:
    """The result of the call, the state, and what the driver said."""
    name = b"name\0"
    head = struct.pack(
        "<QIIIIIII4x", handle(KIND_LINK, index), kind, 32, len(name), 0, 0, ROOM, ROOM
    )
    reply = worker.call("gp_link_add", head + digest + padded(name))
    (result,) = struct.unpack_from("<i", reply)
    if result != 0:
        return result, -1, -1
    _bytes, state, said = struct.unpack_from("<QIi", reply, 8)
    return result, state, said


def read(worker: Worker, offset: int, size: int) -> int:
    body = struct.pack("<QQI4x", handle(KIND_LINK, 1), offset, size)
    return worker.result("gp_link_read", body)


def test_a_cubin_ends_where_it_ends(server: PoolServer) -> None:
    with worker_of(server) as worker:
        assert create(worker) == 0
        assert read(worker, 0, 1) == INVALID_VALUE  # there is none yet
        assert add(worker, PTX, put(worker, TEXT)) == (0, LOADED, 0)
        body = struct.pack("<QII", handle(KIND_LINK, 1), ROOM, ROOM)
        reply = worker.call("gp_link_complete", body)
        size, _state, said = struct.unpack_from("<QIi", reply, 8)
        assert said == 0 and size > 0
        assert read(worker, 0, min(size, 4096)) == 0
        assert read(worker, size - 1, 2) == INVALID_VALUE
        assert read(worker, size + 1, 0) == INVALID_VALUE
        assert read(worker, 2**64 - 1, 2) == INVALID_VALUE


def test_what_is_added_is_what_it_says(server: PoolServer) -> None:
    """The driver would read more than came, or follow what is no pointer."""
    with worker_of(server) as worker:
        assert create(worker) == 0
        assert add(worker, PTX, bytes(32)) == (0, MISSING, 0)
        cut = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 20) + bytes(64)
        assert add(worker, FATBINARY, put(worker, cut))[0] == INVALID_IMAGE
        for kind in (CUBIN, PTX):
            result, _state, said = add(worker, kind, put(worker, b"\x7fELF" + bytes(60)))
            assert INVALID_IMAGE in (result, said)
        wrapper = struct.pack("<IIQQ", 0x466243B1, 1, 0x4141414141414141, 0)
        result, _state, said = add(worker, PTX, put(worker, wrapper))
        assert INVALID_IMAGE in (result, said)
        assert worker.stream()  # the session goes on


def test_a_cubin_that_is_said_to_be_ptx(server: PoolServer) -> None:
    """As CuPy adds one with a device's runtime. What it is worth is the driver's to say."""
    header = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 1, 0)
    cubin = b"\x7fELF\x02\x01\x01" + bytes(9) + header + bytes(64)
    with worker_of(server) as worker:
        assert create(worker) == 0
        result, state, said = add(worker, PTX, put(worker, cubin))
        assert (result, state) == (0, LOADED)
        assert said != 0  # it has no code


def test_logs_have_a_limit_and_options_no_pointers(server: PoolServer) -> None:
    names = 17  # CU_JIT_GLOBAL_SYMBOL_NAMES, whose value is an address
    with worker_of(server) as worker:
        assert create(worker, 1, room=1 << 30) == INVALID_VALUE
        assert create(worker, 2, options=(names, 0x4141414141414141)) == INVALID_VALUE
        assert add(worker, PTX, put(worker, TEXT), index=3)[0] == INVALID_HANDLE
