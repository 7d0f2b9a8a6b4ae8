"""A client without our library that lies about its graphs."""

from __future__ import annotations

import struct
import time

import pytest

from harness import PATIENCE, PoolServer
from peer_client import LEGACY, Worker, worker_of
from raw_client import handle

pytestmark = pytest.mark.real_gpu

KIND_GRAPH, KIND_EXEC = 7, 8
RELAXED = 2


def capture(worker: Worker, stream: int, cookies: list[int], index: int = 1) -> int:
    """An executable graph with a host function for each cookie."""
    graph, runnable = handle(KIND_GRAPH, index), handle(KIND_EXEC, index)
    assert worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", stream, RELAXED)) == 0
    for cookie in cookies:
        assert worker.result("gp_host_function", struct.pack("<QQI4x", stream, cookie, 0)) == 0
    assert worker.result("cuStreamEndCapture", struct.pack("<QQ", stream, graph)) == 0
    body = struct.pack("<QQQ", runnable, graph, 0)
    assert worker.result("cuGraphInstantiateWithFlags", body) == 0
    return runnable


def let_go(worker: Worker, cookie: int, times: int) -> None:
    """Say that the host function has run, once a stream has come to it so many times."""
    until = time.monotonic() + PATIENCE
    while worker.host_calls.count(cookie) < times:
        assert time.monotonic() < until, f"no stream came to host function {cookie} again"
        worker.busy(LEGACY)
    worker.tell("gp_host_done", struct.pack("<Q", cookie))


def test_a_captured_host_function_outlives_every_launch(server: PoolServer) -> None:
    """Whether it is in a graph was the client's word: else it was freed after its first run,
    and the graph came to it again."""
    with worker_of(server) as worker:
        stream = worker.stream()
        cookies = list(range(1, 9))
        runnable = capture(worker, stream, cookies)
        for times in range(1, 5):
            worker.tell("cuGraphLaunch", struct.pack("<QQ", runnable, stream))
            for cookie in cookies:
                let_go(worker, cookie, times)
            other = 1000 + times  # takes the memory of what was freed
            worker.halt(LEGACY, other)
            worker.let_go(other)
            assert worker.synchronize(stream) == 0
        assert worker.errors == []
        assert [worker.host_calls.count(cookie) for cookie in cookies] == [4] * len(cookies)


def test_launches_of_one_graph_at_once(server: PoolServer) -> None:
    """Two streams come to one host function together: one after the other is told."""
    with worker_of(server) as worker:
        streams = [worker.stream(), worker.stream()]
        runnable = [
            capture(worker, streams[0], [7], index=1),
            # a second executable of the same graph
            handle(KIND_EXEC, 2),
        ]
        body = struct.pack("<QQQ", runnable[1], handle(KIND_GRAPH, 1), 0)
        assert worker.result("cuGraphInstantiateWithFlags", body) == 0
        for times in (2, 4, 6):
            for graph, stream in zip(runnable, streams, strict=True):
                worker.tell("cuGraphLaunch", struct.pack("<QQ", graph, stream))
            let_go(worker, 7, times - 1)
            let_go(worker, 7, times)
            for stream in streams:
                assert worker.synchronize(stream) == 0
        assert worker.host_calls.count(7) == 6
