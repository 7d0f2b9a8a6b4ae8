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
        for place in places:
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
