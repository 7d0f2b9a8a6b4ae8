"""CUDA arrays named by a client without our library: handles of what is gone, boxes that no array
has, and sizes that no limit allows."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from harness import PoolServer
from peer_client import INVALID_VALUE, LEGACY, Worker, worker_of
from raw_client import KIND_CONTEXT, handle
from spec_messages import KINDS, WIRE, Function, Parameter, message

pytestmark = pytest.mark.real_gpu

KIND_ARRAY, KIND_MIPMAP = KINDS["array"], KINDS["mipmap"]
OUT_OF_MEMORY, INVALID_HANDLE = 2, 400
ARRAY, MIPMAP, LEVEL = handle(KIND_ARRAY, 1), handle(KIND_MIPMAP, 1), handle(KIND_ARRAY, 2)
MADE = handle(KIND_CONTEXT, 2)  # beside the primary one
FLOAT = 0x20
#: 64 elements of 8 bytes a row, 4 rows, 2 layers.
SHAPE = struct.pack("<3Q3I4x", 64, 4, 2, FLOAT, 2, 1)
ROW = 512
MOST = (1 << 64) - 1


@pytest.fixture
def worker(server: PoolServer) -> Iterator[Worker]:
    """A worker, which is still well at the end of the test."""
    with worker_of(server) as one:
        yield one
        one.result("gp_context_set", struct.pack("<Q", handle(KIND_CONTEXT, 1)))
        assert one.result("cuMemAlloc_v2", struct.pack("<Q", 512)) == 0


def create(worker: Worker, shape: bytes = SHAPE, new: int = ARRAY) -> int:
    return worker.result("cuArray3DCreate_v2", struct.pack("<Q", new) + shape)


def create_levels(worker: Worker) -> int:
    body = struct.pack("<Q", MIPMAP) + SHAPE + struct.pack("<I4x", 3)
    return worker.result("cuMipmappedArrayCreate", body)


def level(worker: Worker, index: int = 0, new: int = LEVEL) -> int:
    return worker.result("cuMipmappedArrayGetLevel", struct.pack("<QQI4x", new, MIPMAP, index))


def told(worker: Worker, name: str, *values: int) -> int:
    """The result of a call whose arguments are handles."""
    return worker.result(name, struct.pack(f"<{len(values)}Q", *values))


def upload(worker: Worker, array: int, box: tuple[int, ...], size: int) -> int:
    head = struct.pack("<Q5QQII", array, *box, LEGACY, size, size)
    return worker.result("gp_array_upload", head + bytes(size))


def download(worker: Worker, array: int, box: tuple[int, ...], size: int) -> tuple[int, int]:
    """The result, and how many bytes came."""
    body = struct.pack("<Q5QQI4x", array, *box, LEGACY, size)
    result, got = struct.unpack_from("<i4xI", worker.call("gp_array_download", body))
    return int(result), int(got)


def copy(worker: Worker, dst: int, src: int, address: int, *box: int) -> int:
    """A copy of this box between arrays, or (0) packed memory at the address."""
    width, height, depth, x, y, z = (*box, 0, 0, 0)[:6]
    end = struct.pack("<4QI4x6Q", x, y, z, 0, 2, 0, address, 0, 0, 0, 0)
    body = end + end + struct.pack("<3Q", width, height, depth)
    return worker.result("gp_array_copy", body + struct.pack("<3Q", dst, src, LEGACY))


def test_what_is_gone_is_no_array(worker: Worker) -> None:
    assert create(worker) == 0
    assert told(worker, "cuArray3DGetDescriptor_v2", ARRAY) == 0
    assert told(worker, "cuArrayDestroy", ARRAY) == 0
    box = (0, 0, 0, ROW, 1)
    assert told(worker, "cuArray3DGetDescriptor_v2", ARRAY) == INVALID_HANDLE
    assert told(worker, "cuArrayDestroy", ARRAY) == INVALID_HANDLE
    assert upload(worker, ARRAY, box, ROW) == INVALID_HANDLE
    assert download(worker, ARRAY, box, ROW)[0] == INVALID_HANDLE


def test_arrays_go_with_their_context(worker: Worker) -> None:
    assert worker.result("gp_context_create", struct.pack("<QiI", MADE, 0, 0)) == 0
    assert told(worker, "gp_context_set", MADE) == 0
    assert create(worker) == 0
    assert create_levels(worker) == 0
    assert level(worker) == 0
    assert told(worker, "cuCtxDestroy_v2", MADE) == 0
    assert told(worker, "gp_context_set", handle(KIND_CONTEXT, 1)) == 0
    for array in (ARRAY, LEVEL):
        assert told(worker, "cuArray3DGetDescriptor_v2", array) == INVALID_HANDLE
        assert upload(worker, array, (0, 0, 0, ROW, 1), ROW) == INVALID_HANDLE
        assert told(worker, "cuArrayDestroy", array) == INVALID_HANDLE
    assert level(worker, new=handle(KIND_ARRAY, 3)) == INVALID_HANDLE
    assert told(worker, "cuMipmappedArrayDestroy", MIPMAP) == INVALID_HANDLE


def test_a_level_goes_with_its_mipmapped_array_alone(worker: Worker) -> None:
    assert create_levels(worker) == 0
    assert level(worker) == 0
    assert level(worker, 3, handle(KIND_ARRAY, 3)) == INVALID_VALUE
    assert told(worker, "cuArrayDestroy", LEVEL) == INVALID_HANDLE
    assert upload(worker, LEVEL, (0, 0, 1, ROW, 4), 4 * ROW) == 0
    assert told(worker, "cuMipmappedArrayDestroy", MIPMAP) == 0
    assert upload(worker, LEVEL, (0, 0, 1, ROW, 4), 4 * ROW) == INVALID_HANDLE


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ((0, 0, 0, ROW, 1), ROW - 8),  # another number of bytes than the message has
        ((0, 0, 0, ROW, 2), ROW),
        ((0, 0, 0, 1 << 63, 2), 0),
        ((0, 0, 0, 0, ROW), ROW),
        ((8, 0, 0, ROW, 1), ROW),
        ((MOST - 7, 0, 0, ROW, 1), ROW),
        ((0, 4, 0, ROW, 1), ROW),
        ((0, MOST, 0, ROW // 2, 2), ROW),
        ((0, 0, 2, ROW, 1), ROW),
        ((0, 0, MOST, ROW, 1), ROW),
        ((4, 0, 0, ROW // 2, 2), ROW),  # within an element
        ((0, 0, 0, 2 * ROW, 1), 2 * ROW),
    ],
)
def test_a_box_that_no_array_has_is_refused(
    worker: Worker, box: tuple[int, ...], size: int
) -> None:
    assert create(worker) == 0
    assert upload(worker, ARRAY, box, size) == INVALID_VALUE
    assert download(worker, ARRAY, box, size) == (INVALID_VALUE, 0)


def test_copies_of_arrays_are_held_against_both_ends(worker: Worker) -> None:
    memory = worker.allocate(1 << 20)
    assert create(worker) == 0
    fits = (ROW, 4, 2)
    assert copy(worker, ARRAY, 0, memory, *fits) == 0
    assert copy(worker, 0, ARRAY, memory, *fits) == 0
    for wrong in ((ROW, 5, 1), (ROW, 1, 3), (ROW + 8, 1, 1), (MOST - 7, 1, 1), (4, 1, 1)):
        assert copy(worker, ARRAY, 0, memory, *wrong) == INVALID_VALUE, wrong
        assert copy(worker, 0, ARRAY, memory, *wrong) == INVALID_VALUE, wrong
    for address in (0, 4096, memory + (1 << 40), MOST - 4096):
        assert copy(worker, ARRAY, 0, address, *fits) == INVALID_VALUE, hex(address)
        assert copy(worker, 0, ARRAY, address, *fits) == INVALID_VALUE, hex(address)
    assert worker.synchronize() == 0


def test_no_array_is_larger_than_all_there_is(worker: Worker) -> None:
    for shape in ((MOST, MOST, MOST), (1 << 40, 1 << 20, 0), (131072, 65536, 0)):
        result = create(worker, struct.pack("<3Q3I4x", *shape, FLOAT, 4, 0))
        assert result in (INVALID_VALUE, OUT_OF_MEMORY), shape
        assert told(worker, "cuArrayDestroy", ARRAY) in (result, INVALID_HANDLE)


# Textures -------------------------------------------------------------------------------------

LINEAR, PITCHED = 2, 3
DESC, VIEW = bytes(104), bytes(112)


def texture(
    worker: Worker,
    kind: int,
    array: int = 0,
    mipmap: int = 0,
    memory: tuple[int, ...] = (0, 0, 0, 0, 0),
) -> tuple[int, int]:
    """The result, and the new number; `memory`: address, bytes, width, height, pitch."""
    resource = struct.pack("<5Q4I", *memory, kind, FLOAT, 1, 0)
    body = resource + struct.pack("<QQ", array, mipmap) + DESC + struct.pack("<I4x", 0) + VIEW
    result, number = struct.unpack_from("<i4xQ", worker.call("gp_texture_create", body))
    return int(result), int(number)


def test_a_texture_reads_what_is_the_clients_alone(worker: Worker) -> None:
    memory = worker.allocate(1 << 16)
    assert create(worker) == 0
    for kind, array, words in (
        (0, ARRAY, (0,) * 5),
        (LINEAR, 0, (memory, 1 << 16, 0, 0, 0)),
        (PITCHED, 0, (memory, 0, 64, 16, 512)),
    ):
        result, number = texture(worker, kind, array, memory=words)
        assert result == 0
        assert told(worker, "cuTexObjectGetTextureDesc", number) == 0
        assert told(worker, "cuTexObjectDestroy", number) == 0
        assert told(worker, "cuTexObjectDestroy", number) == INVALID_VALUE
        assert told(worker, "cuTexObjectGetTextureDesc", number) == INVALID_VALUE
    for words in (
        (memory, 1 << 40, 0, 0, 0),
        (memory, MOST, 0, 0, 0),
        (memory + (1 << 40), 4096, 0, 0, 0),
        (4096, 4096, 0, 0, 0),
        (memory, 0, 0, 0, 0),
    ):
        assert texture(worker, LINEAR, memory=words)[0] == INVALID_VALUE, words
    for words in (
        (memory, 0, 64, MOST, 512),
        (memory, 0, MOST, 16, 512),
        (memory, 0, 64, 1 << 20, 512),
        (memory, 0, 64, 16, MOST - 511),
        (4096, 0, 64, 16, 512),
    ):
        assert texture(worker, PITCHED, memory=words)[0] == INVALID_VALUE, words
    assert texture(worker, 0)[0] == INVALID_VALUE  # an array that is none
    assert texture(worker, 1)[0] == INVALID_VALUE
    assert texture(worker, 4)[0] == INVALID_VALUE
    assert texture(worker, 0, handle(KIND_ARRAY, 9))[0] == INVALID_HANDLE


def test_textures_are_their_contexts(worker: Worker) -> None:
    assert worker.result("gp_context_create", struct.pack("<QiI", MADE, 0, 0)) == 0
    assert told(worker, "gp_context_set", MADE) == 0
    assert create(worker) == 0
    result, number = texture(worker, 0, ARRAY)
    assert result == 0
    assert told(worker, "cuSurfObjectDestroy", number) == INVALID_VALUE
    assert told(worker, "gp_context_set", handle(KIND_CONTEXT, 1)) == 0
    assert told(worker, "cuTexObjectDestroy", number) == INVALID_VALUE
    assert told(worker, "cuCtxDestroy_v2", MADE) == 0
    assert told(worker, "cuTexObjectDestroy", number) == INVALID_VALUE
    for wrong in (0, 1, number + 1, MOST):
        assert told(worker, "cuTexObjectDestroy", wrong) == INVALID_VALUE
        assert told(worker, "cuSurfObjectDestroy", wrong) == INVALID_VALUE
        assert told(worker, "cuTexObjectGetResourceViewDesc", wrong) == INVALID_VALUE


REFERENCES = ("texref", "surfref")
OF_REFERENCES = [
    f for f in WIRE if any(p.handle in REFERENCES and not p.has("create") for p in f.params)
]


@pytest.mark.parametrize("function", OF_REFERENCES, ids=lambda f: str(f.name))
def test_a_reference_that_is_none_reaches_no_driver(worker: Worker, function: Function) -> None:
    def choose(param: Parameter, size: int) -> int:
        return handle(KINDS[param.handle], 5) if param.handle in REFERENCES else 0 * size

    body = message(function, choose, random.Random(1))
    assert worker.result(function.name, body) == INVALID_HANDLE


def test_references_are_all_tried() -> None:
    assert len(OF_REFERENCES) >= 26
