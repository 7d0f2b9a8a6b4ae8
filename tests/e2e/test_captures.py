"""Captures in a worker, whose one thread is all of the client's for the driver."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from harness import PoolServer, wait_until
from peer_client import LEGACY, Worker, worker_of
from raw_client import KIND_EVENT, KIND_STREAM, NUMBERS, handle
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


# What a worker does by itself -----------------------------------------------------------------


def holds(worker: Worker, stream: int, address: int) -> None:
    """The stream waits until there is a 1 at the address: for the worker, it works."""
    worker.tell("cuStreamWaitValue32_v2", struct.pack("<QQII", stream, address, 1, 0))


def fill(worker: Worker, address: int, value: int, stream: int) -> None:
    worker.tell("cuMemsetD32Async", struct.pack("<QI4xQQ", address, value, 1, stream))


def test_a_call_put_off_twice_is_still_its_threads(make_server: MakeServer) -> None:
    """It was made as the thread may make it whose calls came meanwhile: what another thread's
    capture forbids that one ended the capture, and failed."""
    server = make_server(**{"soft-memory": "64MiB"})
    with worker_of(server) as worker:
        flag, big = worker.allocate(512), worker.allocate(40 << 20)
        holding, blocked, writing, capturing = (worker.stream() for _ in range(4))
        fill(worker, flag, 0, writing)
        assert worker.synchronize(writing) == 0
        holds(worker, holding, flag)
        worker.halt(blocked, 7)  # puts off, once, what may block
        worker.tell("cuMemFree_v2", struct.pack("<Q", big))  # not over while the first holds
        asked = worker.message(NUMBERS["cuMemAlloc_v2"], struct.pack("<Q", 40 << 20))
        worker.send([asked])
        begin(worker, capturing, THREAD_LOCAL)
        is_thread(worker, GLOBAL)
        fill(worker, flag, 2, capturing)
        worker.let_go(7)  # and now it is put off for the memory, which the free has
        assert worker.busy(holding)
        fill(worker, flag, 1, writing)
        assert struct.unpack_from("<i", worker.reply_to(asked))[0] == 0
        assert end(worker, capturing) == 0


def test_a_thread_that_captures_makes_its_captures_calls_in_relaxed_mode(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver does by itself in such a call, if anything, is then no offence."""
    monkeypatch.setenv("GPUPOOL_WATCH_CAPTURES", "1")
    server = make_server()
    with worker_of(server) as worker:
        address = worker.allocate(512)
        ordered = handle(KIND_STREAM, 50)  # by the default stream
        worker.tell("cuStreamCreate", struct.pack("<QI4x", ordered, 0))
        begin(worker, ordered, THREAD_LOCAL)
        is_thread(worker, GLOBAL)
        fill(worker, address, 1, ordered)
        fill(worker, address, 1, LEGACY)  # which ends the capture, whatever the mode
        assert end(worker, ordered) == INVALIDATED
        wait_until(lambda: bool(watched(server)), "the log has it")
    assert (
        "in the call cuMemsetD32Async: this thread's mode relaxed, strict 1" in watched(server)[0]
    )


@pytest.mark.parametrize("name", ["cuEventQuery", "cuEventSynchronize"])
def test_events_may_not_be_asked_beside_a_threads_own_capture(
    make_server: MakeServer, name: str
) -> None:
    server = make_server()
    with worker_of(server) as worker:
        busy, flag = worker.stream(), worker.allocate(512)
        fill(worker, flag, 0, busy)
        assert worker.synchronize(busy) == 0
        event = handle(KIND_EVENT, 1)
        worker.tell("cuEventCreate", struct.pack("<QI4x", event, 2))
        worker.tell("cuEventRecord", struct.pack("<QQ", event, busy))
        holds(worker, busy, flag)
        others = handle(KIND_EVENT, 2)
        worker.tell("cuEventCreate", struct.pack("<QI4x", others, 2))
        worker.tell("cuEventRecord", struct.pack("<QQ", others, busy))
        # somebody waits already: what comes behind is not asked at once
        worker.send([worker.message(NUMBERS["cuEventSynchronize"], struct.pack("<Q", others))])
        stream = worker.stream()
        begin(worker, stream, THREAD_LOCAL)
        for asks in ("cuEventSynchronize", name):  # another thread's calls
            assert worker.result(asks, struct.pack("<Q", event)) == 0
        is_thread(worker, GLOBAL)
        assert worker.result(name, struct.pack("<Q", event)) == UNSUPPORTED
        assert end(worker, stream) == INVALIDATED
        fill(worker, flag, 1, worker.stream())


def test_an_event_that_is_waited_for_may_be_recorded_into_a_capture(
    make_server: MakeServer,
) -> None:
    """The wait is for what the event had before; the worker asked the event itself, which ended
    the capture and the wait."""
    server = make_server()
    with worker_of(server) as worker:
        busy, capturing, flag = worker.stream(), worker.stream(), worker.allocate(512)
        fill(worker, flag, 0, busy)
        assert worker.synchronize(busy) == 0
        holds(worker, busy, flag)
        event, other = handle(KIND_EVENT, 1), handle(KIND_EVENT, 2)
        for one in (event, other):
            worker.tell("cuEventCreate", struct.pack("<QI4x", one, 2))
            worker.tell("cuEventRecord", struct.pack("<QQ", one, busy))
        waiting = [
            worker.message(NUMBERS["cuEventSynchronize"], struct.pack("<Q", one))
            for one in (event, other, event)
        ]
        worker.send(waiting)
        begin(worker, capturing, THREAD_LOCAL)
        worker.tell("cuEventRecord", struct.pack("<QQ", event, capturing))
        worker.tell("cuEventRecordWithFlags", struct.pack("<QQI4x", other, capturing, 0))
        worker.tell("cuEventDestroy_v2", struct.pack("<Q", event))
        assert end(worker, capturing) == 0
        assert worker.busy(busy), "it was waited for"
        fill(worker, flag, 1, worker.stream())
        for message in waiting:
            assert struct.unpack_from("<i", worker.reply_to(message))[0] == 0
        assert worker.errors == []
