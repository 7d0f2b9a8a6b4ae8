"""What a client without our library asks of its worker's memory: nothing beyond its own."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from gpupool.admin import Admin
from harness import PoolServer, skip_unless_open, wait_until
from peer_client import INVALID_VALUE, LEGACY, Worker, worker_of
from raw_client import NUMBERS, WINDOW_BASE, handle

pytestmark = pytest.mark.real_gpu

Box = tuple[int, int, int]
KIND_MODULE = 2
KIB4 = 4096
FAR = (1 << 64) - 8
NOWHERE = 1 << 57  #: GP_NOWHERE of proto/wire/span.h


def described(server: PoolServer, worker: Worker) -> dict[str, Any] | None:
    """What the server knows of a session; None when it has ended."""
    status = Admin(server.folder / "run").ask({"do": "status"})
    found = [s for s in status["sessions"] if s["session"] == worker.session["session"]]
    return dict(found[0]) if found else None


# Copies that say less than they touch --------------------------------------------------------


def copy_3d(
    source: int, target: int, pitch: tuple[int, int], height: tuple[int, int], box: Box, **at: int
) -> bytes:
    """A gp_copy_3d message's body: CUDA_MEMCPY3D between two device addresses, then the stream."""
    ends = []
    for side, address, step, rows in zip(
        ("src", "dst"), (source, target), pitch, height, strict=True
    ):
        first = [at.get(f"{side}_{axis}", 0) for axis in "xyz"]
        ends.append(struct.pack("<4QI4xQQQQQQ", *first, 0, 2, 0, address, 0, 0, step, rows))
    return ends[0] + ends[1] + struct.pack("<3QQ", *box, LEGACY)


#: Pitches, heights, the box, and offsets: each touches more than 4 KiB at one end.
TOO_LONG: dict[str, tuple[tuple[int, int], tuple[int, int], Box, dict[str, int]]] = {
    "packed rows": ((0, 0), (0, 0), (64, 65, 1), {}),
    "packed slices": ((0, 0), (0, 0), (64, 32, 3), {}),
    "packed source": ((0, 64), (0, 0), (64, 4096, 1), {}),
    "packed target": ((64, 0), (0, 0), (64, 4096, 1), {}),
    "a pitch below the row": ((63, 64), (0, 0), (64, 2, 1), {}),
    "a height below the box": ((64, 64), (7, 8), (64, 8, 2), {}),
    "many rows": ((0, 0), (0, 0), (64, FAR, 1), {}),
    "many slices": ((64, 64), (8, 8), (64, 8, FAR), {}),
    "rows that wrap round": ((1 << 33, 64), (0, 0), (1, 1 << 31, 1), {}),
    "a far source row": ((64, 64), (0, 0), (64, 8, 1), {"src_y": FAR}),
    "a far target row": ((64, 64), (0, 0), (64, 8, 1), {"dst_y": FAR // 64}),
    "a far slice": ((64, 64), (8, 8), (64, 8, 1), {"src_z": 1 << 58}),
    "a far column": ((0, 0), (0, 0), (64, 1, 1), {"src_x": FAR}),
}


@pytest.mark.parametrize("case", TOO_LONG)
def test_a_pitched_copy_keeps_to_its_allocations(server: PoolServer, case: str) -> None:
    """A pitch or height of 0 means packed, and was counted as nothing: a client read and wrote
    what its worker had behind the allocation."""
    pitch, height, box, at = TOO_LONG[case]
    with worker_of(server) as worker:
        first, second = worker.allocate(KIB4), worker.allocate(KIB4)
        worker.write(first, b"\x11" * KIB4)
        worker.write(second, b"\x22" * KIB4)
        assert worker.result("gp_copy_3d", copy_3d(first, second, pitch, height, box, **at)) == (
            INVALID_VALUE
        )
        assert worker.read(first, KIB4) == b"\x11" * KIB4
        assert worker.read(second, KIB4) == b"\x22" * KIB4
        assert worker.result("gp_copy_3d", copy_3d(first, second, (0, 0), (0, 0), (64, 64, 1))) == 0
        assert worker.read(second, KIB4) == b"\x11" * KIB4


def mapped(pid: int) -> list[int]:
    """Where a process has memory that it can write, beside that of its GPUs."""
    skip_unless_open(pid)
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    begins = [int(line.split("-")[0], 16) for line in lines if " rw" in line]
    return [begin for begin in begins if not WINDOW_BASE <= begin < 2 * WINDOW_BASE]


def on_device(name: str, address: int, mine: int) -> bytes:
    """The body of a call that has the GPU write or read 4 bytes at an address."""
    bodies = {
        "cuMemsetD8Async": struct.pack("<QB7xQQ", address, 0, 4, LEGACY),
        "cuMemsetD32Async": struct.pack("<QI4xQQ", address, 0, 1, LEGACY),
        "cuMemsetD2D32Async": struct.pack("<QQI4xQQQ", address, 4, 0, 1, 1, LEGACY),
        "cuMemcpyDtoDAsync_v2": struct.pack("<QQQQ", mine, address, 4, LEGACY),
        "cuMemcpyDtoD_v2": struct.pack("<QQQ", address, mine, 4),
        "cuStreamWriteValue32_v2": struct.pack("<QQII", LEGACY, address, 0, 0),
        "cuStreamWaitValue32_v2": struct.pack("<QQII", LEGACY, address, 0, 0),
        "gp_copy": struct.pack("<QQQQI4x", mine, address, 4, LEGACY, 0),
        "gp_htod": struct.pack("<QQII", address, LEGACY, 4, 4) + bytes(8),
        "gp_dtoh": struct.pack("<QQI4x", address, LEGACY, 4),
    }
    return bodies[name]


ON_DEVICE = (
    *("cuMemsetD8Async", "cuMemsetD32Async", "cuMemsetD2D32Async", "cuMemcpyDtoDAsync_v2"),
    *("cuMemcpyDtoD_v2", "cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"),
    *("gp_copy", "gp_htod", "gp_dtoh"),
)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_memory_of_the_worker_is_out_of_reach(server: PoolServer, name: str) -> None:
    """Addresses went to the driver as they came, and the driver takes pinned host memory."""
    with worker_of(server) as worker:
        mine = worker.allocate(KIB4)
        worker.read(mine, 8)  # the worker has pinned memory of its own from here on
        assert worker.result(name, on_device(name, mine + 8, mine)) == 0, "it works where it may"
        known = described(server, worker)
        assert known is not None
        places = mapped(int(known["pid"]))
        assert len(places) > 4
        nowhere = [NOWHERE, NOWHERE + mine, NOWHERE + places[0], (1 << 64) - 4]
        for place in places + nowhere:
            assert worker.result(name, on_device(name, place, mine)) == INVALID_VALUE, hex(place)
        assert worker.result(name, on_device(name, mine + KIB4 - 3, mine)) == INVALID_VALUE, (
            "over the end"
        )


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cuMemsetD8Async", "<QB7xQQ"),
        ("cuMemsetD16Async", "<QH6xQQ"),
        ("cuMemsetD32Async", "<QI4xQQ"),
    ],
)
def test_a_set_keeps_to_its_allocation(server: PoolServer, name: str, shape: str) -> None:
    size = {"8": 1, "1": 2, "3": 4}[name[9]]
    with worker_of(server) as worker:
        mine = worker.allocate(KIB4)
        for count in (KIB4 // size + 1, 1 << 62, (1 << 63) + 1, (1 << 64) - 1):
            assert worker.result(name, struct.pack(shape, mine, 1, count, LEGACY)) == INVALID_VALUE
        assert worker.result(name, struct.pack(shape, mine, 1, KIB4 // size, LEGACY)) == 0


def test_lengths_that_wrap_round(server: PoolServer) -> None:
    """Twice 0x80000001 is 2 in 32 bits: the options were read far behind the message."""
    with worker_of(server) as worker:
        count = 0x80000001
        body = struct.pack("<QIIIIII", handle(KIND_MODULE, 1), 32, count, 16, 0, 0, 0)
        worker.send([worker.message(NUMBERS["gp_module_load"], body + bytes(32 + 16))])
        wait_until(lambda: described(server, worker) is None, "the session ended")


# Mapped memory of a client over a network -----------------------------------------------------

MAPPED = 0x1000_0000_0000
NOT_SUPPORTED = 801
OUT_OF_MEMORY = 2


def written(pieces: list[tuple[int, int]], data: bytes) -> bytes:
    """The body of a gp_mapped_write."""
    sizes = struct.pack(f"<{len(pieces)}I", *(size for _, size in pieces))
    addresses = struct.pack(f"<{len(pieces)}Q", *(address for address, _ in pieces))
    fixed = (len(pieces), len(addresses), len(sizes), len(data), len(data))
    tails = [tail + bytes(-len(tail) % 8) for tail in (addresses, sizes, data)]
    return struct.pack("<5I4x", *fixed) + b"".join(tails)


def look(
    worker: Worker, blocks: list[tuple[int, int]], digests: list[int], size: int
) -> tuple[int, int, bytes]:
    """A gp_mapped_look: its result, which blocks came, and what."""
    addresses = struct.pack(f"<{len(blocks)}Q", *(address for address, _ in blocks))
    sizes = struct.pack(f"<{len(blocks)}I", *(size for _, size in blocks))
    known = struct.pack(f"<{len(digests)}Q", *digests)
    fixed = (len(blocks), len(addresses), len(sizes), len(known), size)
    tails = [tail + bytes(-len(tail) % 8) for tail in (addresses, sizes, known)]
    answer = worker.call("gp_mapped_look", struct.pack("<5I4x", *fixed) + b"".join(tails))
    result = int.from_bytes(answer[:4], "little")
    changed, came = struct.unpack_from("<QI", answer, 8) if result == 0 else (0, 0)
    return result, changed, bytes(answer[24 : 24 + came])


def digest(data: bytes) -> int:
    """As proto/wire/look.h has it."""

    bits = (1 << 64) - 1

    def mix(h: int, word: int) -> int:
        h = (h ^ word) * 0x9E3779B97F4A7C15 & bits
        return (h << 29 | h >> 35) & bits

    lanes = [1, 2, 3, 4]
    for i, word in enumerate(struct.unpack(f"<{len(data) // 8}Q", data)):
        lanes[i % 4] = mix(lanes[i % 4], word)
    h = len(data)
    for lane in lanes:
        h = mix(h, lane)
    return h


def read_back(worker: Worker, address: int, size: int) -> bytes:
    answer = worker.call("gp_mapped_read", struct.pack("<QI4x", address, size))
    return bytes(answer[16 : 16 + size])


def test_no_address_is_a_managed_variable(server: PoolServer) -> None:
    """A client may ask about any address, and learns nothing of what is no variable."""
    with worker_of(server) as worker:
        mine = worker.allocate(KIB4)
        known = described(server, worker)
        assert known is not None
        for address in [0, 1, FAR, -1 & FAR, MAPPED, WINDOW_BASE, mine, *mapped(int(known["pid"]))]:
            answer = worker.call("gp_managed_variable", struct.pack("<Q", address))
            assert answer[:4] == bytes(4), hex(address)
            assert not any(answer[16:]), hex(address)


def test_mapped_memory_keeps_to_itself(server: PoolServer) -> None:
    """A client says where it has memory, and what of it it has written."""
    with worker_of(server) as worker:
        mine = worker.allocate(KIB4)
        known = described(server, worker)
        assert known is not None
        opened = [
            (0, KIB4, INVALID_VALUE),
            (MAPPED, 0, INVALID_VALUE),
            (MAPPED + 8, KIB4, INVALID_VALUE),
            (MAPPED, KIB4 + 8, INVALID_VALUE),
            (MAPPED, -KIB4 & FAR, INVALID_VALUE),
            (-KIB4 & FAR, 2 * KIB4, INVALID_VALUE),
            (mine - mine % KIB4, KIB4, INVALID_VALUE),
            (WINDOW_BASE - KIB4, 2 * KIB4, INVALID_VALUE),
            (MAPPED, 1 << 44, OUT_OF_MEMORY),
        ]
        places = mapped(int(known["pid"]))
        opened += [(place, KIB4, NOT_SUPPORTED) for place in places]
        for address, size, result in opened:
            got = worker.result("gp_mapped_open", struct.pack("<QQ", address, size))
            assert got == result, (hex(address), size)
        assert worker.result("gp_mapped_open", struct.pack("<QQ", MAPPED, 2 * KIB4)) == 0
        again = worker.result("gp_mapped_open", struct.pack("<QQ", MAPPED + KIB4, KIB4))
        assert again == NOT_SUPPORTED, "what is there is not mapped twice"
        wrong = [
            written([(MAPPED - 4, 8)], bytes(8)),
            written([(MAPPED + 2 * KIB4 - 4, 8)], bytes(8)),
            written([(MAPPED + 2, 4)], bytes(4)),
            written([(MAPPED, 6)], bytes(6)),
            written([(MAPPED, 8)], bytes(4)),
            written([(MAPPED, 4), (MAPPED + 8, 8)], bytes(8)),
            written([(MAPPED, 4)], bytes(8)),
            written([(MAPPED, 0xFFFFFFFC)], bytes(8)),
            written([(FAR, 4)], bytes(4)),
            written([(mine, 4)], bytes(4)),
            *(written([(place, 4)], bytes(4)) for place in places[:8]),
        ]
        for body in wrong:
            assert worker.result("gp_mapped_write", body) == INVALID_VALUE, body.hex()
        assert (
            worker.result("gp_mapped_write", written([(MAPPED + KIB4 - 4, 12)], b"abcd" * 3)) == 0
        )
        assert read_back(worker, MAPPED + KIB4 - 8, 20) == bytes(4) + b"abcd" * 3 + bytes(4)
        for address, size in ((MAPPED, 2 * KIB4 + 1), (MAPPED - 1, 4), (FAR, 16), (mine, 4)):
            body = struct.pack("<QI4x", address, size)
            assert worker.result("gp_mapped_read", body) == INVALID_VALUE, hex(address)
        assert worker.result("gp_pinned_close", struct.pack("<Q", MAPPED)) == 0
        assert worker.result("gp_pinned_close", struct.pack("<Q", MAPPED)) == INVALID_VALUE


def test_a_look_keeps_to_itself(server: PoolServer) -> None:
    """A client names blocks of mapped memory, and what it has of them."""
    with worker_of(server) as worker:
        mine = worker.allocate(KIB4)
        assert worker.result("gp_mapped_open", struct.pack("<QQ", MAPPED, 2 * KIB4)) == 0
        piece = written([(MAPPED + KIB4 - 4, 12)], b"abcd" * 3)
        assert worker.result("gp_mapped_write", piece) == 0
        second = bytes(KIB4 - 4) + b"abcd"
        both = [(MAPPED, 32), (MAPPED + KIB4 - 32, 64)]
        first, other = digest(bytes(32)), digest(read_back(worker, MAPPED + KIB4 - 32, 64))
        assert look(worker, both, [first, other], 96) == (0, 0, b"")
        assert look(worker, both, [first, 7], 96) == (0, 2, second[-32:] + b"abcd" * 2 + bytes(24))
        assert look(worker, both, [7, other], 96) == (0, 1, bytes(32))
        assert look(worker, [], [], 0) == (0, 0, b"")
        for blocks, size in (
            ([(MAPPED, 32)], 64),
            ([(MAPPED, 64)], 32),
            ([(MAPPED, 16)], 16),
            ([(MAPPED + 8, 32)], 32),
            ([(MAPPED, 0xFFFFFFE0)], 32),
            ([(MAPPED, 0xFFFFFFE0), (MAPPED, 64)], 32),
            ([(MAPPED + 2 * KIB4 - 16, 32)], 32),
            ([(mine, 32)], 32),
            ([(FAR, 32)], 32),
            ([(MAPPED, 32)] * 17, 17 * 32),
        ):
            result = look(worker, blocks, [0] * len(blocks), size)
            assert result == (INVALID_VALUE, 0, b""), (blocks, size)
