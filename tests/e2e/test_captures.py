"""Captures in a worker, whose one thread is all of the client's for the driver."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from harness import PoolServer, wait_until
from peer_client import Worker, worker_of
from tenants import MakeServer

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
UNSUPPORTED, INVALIDATED = 900, 901
KIND_GRAPH = 7


def begin(worker: Worker, stream: int, mode: int) -> None:
    assert worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", stream, mode)) == 0


def end(worker: Worker, stream: int, index: int = 1) -> int:
    graph = KIND_GRAPH << 44 | index << 4
    return worker.result("cuStreamEndCapture", struct.pack("<QQ", stream, graph))


def is_thread(worker: Worker, mode: int) -> None:
    """What comes next is of a thread that captures forbid so much."""
    worker.tell("gp_capture_mode_set", struct.pack("<I4x", mode))


# GPUPOOL_WATCH_CAPTURES ---------------------------------------------------------------------


def watched(server: PoolServer) -> list[str]:
    return [line for line in server.log.read_text().splitlines() if "became invalid" in line]


def spoil_by_question(worker: Worker, stream: int) -> int:
    return worker.result("cuStreamQuery", struct.pack("<Q", stream))


def spoil_by_allocation(worker: Worker, stream: int) -> int:
    is_thread(worker, GLOBAL)
    return worker.result("cuMemAlloc_v2", struct.pack("<Q", 512))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_by_question, "in the call cuStreamQuery: this thread's mode relaxed, strict 0"),
        (spoil_by_allocation, "in the call cuMemAlloc_v2: this thread's mode global, strict 1"),
    ],
)
def test_the_step_that_spoils_a_capture_is_named(
    make_server: MakeServer,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Worker, int], int],
    said: str,
) -> None:
    monkeypatch.setenv("GPUPOOL_WATCH_CAPTURES", "1")
    server = make_server()
    with worker_of(server) as worker:
        address = worker.allocate(512)
        for _ in range(2):  # only the first is told
            is_thread(worker, RELAXED)
            stream = worker.stream()
            begin(worker, stream, THREAD_LOCAL)
            set_ = struct.pack("<QB7xQQ", address, 1, 512, stream)
            assert worker.result("cuMemsetD8Async", set_) == 0
            assert watched(server) == [] or said in watched(server)[0]
            assert spoil(worker, stream) == UNSUPPORTED
            assert end(worker, stream) == INVALIDATED
        wait_until(lambda: bool(watched(server)), "the log has it")
    (line,) = watched(server)
    assert said in line and f"stream {2 << 4 | 5 << 44:#x}" in line


def test_nobody_looks_where_nobody_asked(make_server: MakeServer) -> None:
    server = make_server()
    with worker_of(server) as worker:
        stream = worker.stream()
        begin(worker, stream, THREAD_LOCAL)
        assert spoil_by_question(worker, stream) == UNSUPPORTED
        assert end(worker, stream) == INVALIDATED
    assert watched(server) == []
