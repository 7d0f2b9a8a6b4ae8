"""Resources, descriptors and green contexts that a client without our library makes up: the
driver is given what it gave, and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from harness import PoolServer, wait_until
from peer_client import INVALID_VALUE, Worker, worker_of
from raw_client import KIND_CONTEXT, KIND_EVENT, KIND_STREAM, NUMBERS, handle

KIND_DESC = 17
INVALID_CONTEXT, INVALID_HANDLE, INVALID_TYPE = 201, 400, 914
RESOURCE = 144
PRIMARY, GREEN = handle(KIND_CONTEXT, 1), handle(KIND_CONTEXT, 2)
DESC = handle(KIND_DESC, 1)


@pytest.fixture
def worker(server: PoolServer) -> Iterator[Worker]:
    with worker_of(server) as one:
        yield one


def is_well(worker: Worker) -> None:
    assert worker.result("gp_context_set", struct.pack("<Q", PRIMARY)) == 0
    assert worker.result("cuMemAlloc_v2", struct.pack("<Q", 512)) == 0


def whole(worker: Worker) -> bytes:
    reply = worker.call("cuDeviceGetDevResource", struct.pack("<iI", 0, 1))
    assert struct.unpack_from("<i", reply)[0] == 0
    return reply[8 : 8 + RESOURCE]


def split(worker: Worker, resource: bytes, capacity: int) -> tuple[int, bytes]:
    """The result, and the groups."""
    body = resource + struct.pack("<III4x", capacity, 0, 1)
    reply = worker.call("gp_resource_split", body)
    result, count = struct.unpack_from("<i4xI", reply)
    groups = reply[16 + RESOURCE :]
    return int(result), groups[: count * RESOURCE if capacity else 0]


def counts(groups: bytes) -> list[int]:
    """How many multiprocessors each has."""
    starts = range(0, len(groups), RESOURCE)
    return [struct.unpack_from("<I", groups, at + 96)[0] for at in starts]


def describe(worker: Worker, resources: bytes, count: int, desc: int = DESC) -> int:
    head = struct.pack("<QII", desc, len(resources), count)
    return worker.result("cuDevResourceGenerateDesc", head + resources)


def make(worker: Worker, desc: int = DESC, device: int = 0, flags: int = 1) -> int:
    return worker.result("gp_green_create", struct.pack("<QQiI", GREEN, desc, device, flags))


def made(worker: Worker) -> None:
    assert describe(worker, whole(worker), 1) == 0
    assert make(worker) == 0


def test_a_resource_has_a_name_and_nothing_of_the_drivers(worker: Worker) -> None:
    one, again = whole(worker), whole(worker)
    assert one == again  # and a name is made once
    assert not any(one[12:96])


@pytest.mark.parametrize("name", [0, 2, 1 << 63, (1 << 64) - 1])
def test_resources_that_nobody_gave(worker: Worker, name: int) -> None:
    forged = whole(worker)[:4] + struct.pack("<Q", name) + b"\xff" * (RESOURCE - 12)
    assert split(worker, forged, 1)[0] == INVALID_TYPE
    assert describe(worker, forged, 1) == INVALID_TYPE
    is_well(worker)


def test_numbers_beside_the_name_are_not_read(worker: Worker) -> None:
    """More multiprocessors than there are, of another type."""
    real = whole(worker)
    forged = b"\xff" * 4 + real[4:12] + b"\xff" * (RESOURCE - 12)
    (result, groups), (_, others) = split(worker, forged, 2), split(worker, real, 2)
    assert result == 0 and len(groups) == 2 * RESOURCE
    assert counts(groups) == counts(others)
    is_well(worker)


@pytest.mark.parametrize("capacity", [257, 1 << 20, (1 << 32) - 1])
def test_more_groups_than_a_message_has(worker: Worker, capacity: int) -> None:
    body = whole(worker) + struct.pack("<III4x", capacity, 0, 1)
    worker.send([worker.message(NUMBERS["gp_resource_split"], body)])
    if capacity == 257:  # else it is no message at all
        assert split(worker, whole(worker), capacity)[0] == INVALID_VALUE
        is_well(worker)


def test_descriptors_of_too_many_or_none(worker: Worker) -> None:
    assert describe(worker, b"", 0) == INVALID_VALUE
    assert describe(worker, whole(worker) * 257, 257, handle(KIND_DESC, 2)) == INVALID_VALUE
    is_well(worker)


@pytest.mark.parametrize("device", [-1, 2, 1 << 30])
def test_devices_of_nobody(worker: Worker, device: int) -> None:
    made(worker)
    assert worker.result("cuDeviceGetDevResource", struct.pack("<iI", device, 1)) == 101
    body = struct.pack("<QQiI", handle(KIND_CONTEXT, 3), DESC, device, 1)
    assert worker.result("gp_green_create", body) == 101
    is_well(worker)


def test_descriptors_that_are_none(worker: Worker) -> None:
    for wrong in (handle(KIND_DESC, 9), PRIMARY, 4096):
        assert make(worker, wrong) == INVALID_HANDLE
    is_well(worker)


def test_streams_go_with_a_green_context_and_memory_does_not(worker: Worker) -> None:
    stream = handle(KIND_STREAM, 7)
    made(worker)
    assert worker.result("gp_context_set", struct.pack("<Q", GREEN)) == 0
    assert worker.result("cuStreamCreate", struct.pack("<QI4x", stream, 1)) == 0
    address = worker.allocate(4096)
    assert worker.result("cuCtxDestroy_v2", struct.pack("<Q", GREEN)) == 0
    assert worker.result("gp_context_set", struct.pack("<Q", GREEN)) == INVALID_CONTEXT
    assert worker.result("gp_context_set", struct.pack("<Q", PRIMARY)) == 0
    assert worker.result("cuStreamSynchronize", struct.pack("<Q", stream)) == INVALID_HANDLE
    worker.write(address, b"x" * 16)
    assert worker.read(address, 16) == b"x" * 16


def test_what_a_green_context_made_is_the_primary_ones(worker: Worker) -> None:
    event = handle(KIND_EVENT, 3)
    made(worker)
    assert worker.result("gp_context_set", struct.pack("<Q", GREEN)) == 0
    assert worker.result("cuEventCreate", struct.pack("<QI4x", event, 0)) == 0
    assert worker.result("cuCtxDestroy_v2", struct.pack("<Q", GREEN)) == 0
    assert worker.result("gp_context_set", struct.pack("<Q", PRIMARY)) == 0
    assert worker.result("cuEventQuery", struct.pack("<Q", event)) == 0


def ended(worker: Worker, server: PoolServer, name: str, body: bytes, why: str) -> None:
    """The session is over, and the log says why."""
    worker.send([worker.message(NUMBERS[name], body)])
    wait_until(lambda: why in server.log.read_text(), "the log says why")


def test_a_primary_context_does_not_end_before_its_green_ones(
    worker: Worker, server: PoolServer
) -> None:
    made(worker)
    body = struct.pack("<QiI", PRIMARY, 0, 1)
    ended(worker, server, "gp_primary_release", body, "a primary context that has green ones")


def test_a_green_context_of_a_primary_one_that_is_not_there(
    worker: Worker, server: PoolServer
) -> None:
    assert describe(worker, whole(worker), 1) == 0
    body = struct.pack("<QQiI", GREEN, DESC, 1, 1)  # of a device whose context nobody retained
    ended(worker, server, "gp_green_create", body, "of a primary context that is not retained")
