"""A client without our library that lies about its graphs."""

from __future__ import annotations

import struct
import time

import pytest

from harness import PATIENCE, PoolServer, wait_until
from peer_client import LEGACY, Worker, sessions_like, worker_of
from raw_client import KIND_CONTEXT, NUMBERS, handle

pytestmark = pytest.mark.real_gpu

KIND_GRAPH, KIND_EXEC, KIND_NODE = 7, 8, 9
INVALID_VALUE = 1
RELAXED = 2
DEVICE_LAUNCH = 4


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


def empty_node(worker: Worker, graph: int, index: int) -> int:
    node = handle(KIND_NODE, index)
    assert worker.result("gp_node_empty", struct.pack("<QQ", node, graph)) == 0
    return node


def link(worker: Worker, graph: int, first: int, second: int) -> int:
    head = struct.pack("<QIIII", graph, 1, 8, 8, 8)
    return worker.result("gp_graph_link", head + struct.pack("<QQQ", first, second, 0))


def test_a_node_dies_with_its_graph(server: PoolServer) -> None:
    """Its handle would lead to memory that the driver has freed."""
    with worker_of(server) as worker:
        graph = handle(KIND_GRAPH, 1)
        assert worker.result("cuGraphCreate", struct.pack("<QI4x", graph, 0)) == 0
        first, second = empty_node(worker, graph, 1), empty_node(worker, graph, 2)
        assert link(worker, graph, first, second) == 0
        assert worker.result("cuGraphDestroyNode", struct.pack("<Q", second)) == 0
        assert worker.result("cuGraphDestroyNode", struct.pack("<Q", second)) == INVALID_VALUE
        assert worker.result("cuGraphDestroy", struct.pack("<Q", graph)) == 0
        assert worker.result("cuGraphDestroyNode", struct.pack("<Q", first)) == INVALID_VALUE
        assert worker.result("cuGraphNodeGetType", struct.pack("<Q", first)) == INVALID_VALUE


def test_the_graph_of_a_node_is_the_nodes(server: PoolServer) -> None:
    """It cannot be ended by itself, and goes with the node's graph."""
    with worker_of(server) as worker:
        outer, inner, owned = (handle(KIND_GRAPH, index) for index in (1, 2, 3))
        for graph in (outer, inner):
            assert worker.result("cuGraphCreate", struct.pack("<QI4x", graph, 0)) == 0
        node = handle(KIND_NODE, 1)
        assert worker.result("gp_node_child", struct.pack("<QQQ", node, outer, inner)) == 0
        asked = struct.pack("<QQ", node, owned)
        assert worker.result("cuGraphChildGraphNodeGetGraph", asked) == 0
        assert worker.result("cuGraphDestroy", struct.pack("<Q", owned)) == INVALID_VALUE
        assert worker.result("cuGraphDestroy", struct.pack("<Q", outer)) == 0
        body = struct.pack("<QQ", handle(KIND_NODE, 2), owned)
        assert worker.result("gp_node_empty", body) == INVALID_VALUE


def made_graph(worker: Worker, index: int) -> int:
    graph = handle(KIND_GRAPH, index)
    assert worker.result("cuGraphCreate", struct.pack("<QI4x", graph, 0)) == 0
    return graph


def capture_to(worker: Worker, stream: int, graph: int, nodes: list[int]) -> int:
    count, size = len(nodes), 8 * len(nodes)
    head = struct.pack("<QQIIII", stream, graph, RELAXED, count, size, size)
    body = head + struct.pack(f"<{count}Q", *nodes) + bytes(size)
    return worker.result("gp_capture_to_graph", body)


def depend_on(worker: Worker, stream: int, flags: int, nodes: list[int]) -> int:
    count, size = len(nodes), 8 * len(nodes)
    head = struct.pack("<QIIII", stream, flags, count, size, size)
    return worker.result(
        "gp_capture_depends", head + struct.pack(f"<{count}Q", *nodes) + bytes(size)
    )


def test_a_graph_that_is_captured_into_keeps_its_nodes(server: PoolServer) -> None:
    """However the capture ends; and what it is begun behind must be the graph's."""
    with worker_of(server) as worker:
        stream, graph, other = worker.stream(), made_graph(worker, 1), made_graph(worker, 2)
        mine, others = empty_node(worker, graph, 1), empty_node(worker, other, 2)
        assert capture_to(worker, stream, graph, [others]) == INVALID_VALUE
        assert capture_to(worker, stream, graph, [handle(KIND_NODE, 9)]) == INVALID_VALUE
        assert capture_to(worker, stream, graph, [mine]) == 0
        asked = struct.pack("<QQ", stream, handle(KIND_GRAPH, 3))
        assert worker.result("gp_capture_info", asked) == 0
        assert depend_on(worker, stream, 0, [others]) == INVALID_VALUE
        assert depend_on(worker, stream, 7, [mine]) == INVALID_VALUE
        assert depend_on(worker, stream, 1, [mine]) == 0
        ending = struct.pack("<QQ", stream, graph)
        assert worker.result("gp_capture_end_to_graph", ending) == 0
        # its end in the form that names a graph: two ids of one graph, which go together
        assert capture_to(worker, stream, graph, [mine]) == 0
        again = handle(KIND_GRAPH, 4)
        assert worker.result("cuStreamEndCapture", struct.pack("<QQ", stream, again)) == 0
        assert worker.result("cuGraphNodeGetType", struct.pack("<Q", mine)) == 0
        assert worker.result("cuGraphDestroy", struct.pack("<Q", again)) == 0
        assert worker.result("cuGraphDestroy", struct.pack("<Q", graph)) == INVALID_VALUE
        assert worker.result("cuGraphNodeGetType", struct.pack("<Q", mine)) == INVALID_VALUE


def test_an_end_of_another_capture_ends_the_session(server: PoolServer) -> None:
    """The graph that it leaves would have no name."""
    with worker_of(server) as worker:
        stream, graph = worker.stream(), made_graph(worker, 1)
        assert worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", stream, RELAXED)) == 0
        worker.tell("gp_capture_end_to_graph", struct.pack("<QQ", stream, graph))
        wait_until(lambda: not sessions_like(server, worker), "the session ended")


@pytest.mark.parametrize("together", [1, 1024])
def test_refusals_that_nobody_reads(server: PoolServer, together: int) -> None:
    """Each was told by itself: after some hundreds the worker waited until its client read, and
    read nothing any more of what that went on to send."""
    posted = 65536 if together > 1 else 2048
    with worker_of(server) as worker:
        graph, none = handle(KIND_GRAPH, 1), handle(KIND_GRAPH, 2)
        assert worker.result("cuGraphCreate", struct.pack("<QI4x", graph, 0)) == 0
        bodies = [
            struct.pack("<QQQ", handle(KIND_NODE, i), graph, none) for i in range(1, posted + 1)
        ]
        number = NUMBERS["gp_node_child"]
        for at in range(0, posted, together):
            batch = bodies[at : at + together]
            worker.send([worker.message(number, body, flags=0) for body in batch])
        empty_node(worker, graph, posted + 1)
        assert worker.errors == [("gp_node_child", INVALID_VALUE)] * posted
        assert worker.told_of_errors <= 32 + 128 + 1  # one by one, now and then, and the rest


WAIT_32, WRITE_32, NO_OPERATION = 1, 2, 99
NOT_SUPPORTED = 801


def batch_node(worker: Worker, graph: int, index: int, *operations: tuple[int, int]) -> int:
    """A node with an operation on each of these addresses."""
    size = 48 * len(operations)
    head = struct.pack("<QQII", handle(KIND_NODE, index), graph, len(operations), size)
    body = b"".join(struct.pack("<I4xQQI20x", kind, at, 1, 0) for kind, at in operations)
    return worker.result("gp_node_batch", head + body)


def test_a_batch_stays_in_the_sessions_memory(server: PoolServer) -> None:
    """Each of its operations is looked at, and how many there are."""
    with worker_of(server) as worker:
        graph, mine = made_graph(worker, 1), worker.allocate(64)
        assert batch_node(worker, graph, 1, (WRITE_32, mine), (WAIT_32, mine)) == 0
        for index, wrong in enumerate((mine + (1 << 30), 0x1000, 0, (1 << 64) - 2), 2):
            assert batch_node(worker, graph, index, (WRITE_32, mine), (WRITE_32, wrong)) != 0
            assert batch_node(worker, graph, 20 + index, (WAIT_32, wrong)) == INVALID_VALUE
        assert batch_node(worker, graph, 40, (NO_OPERATION, mine)) == NOT_SUPPORTED
        assert batch_node(worker, graph, 41) == 0  # nothing to do
        many = [(WRITE_32, mine)] * 256
        assert batch_node(worker, graph, 42, *many) == INVALID_VALUE


def keep(worker: Worker, graph: int, cookie: int, count: int) -> int:
    return worker.result("gp_graph_keeps", struct.pack("<QQI4x", graph, cookie, count))


def let_graph_go(worker: Worker, graph: int, cookie: int, count: int) -> int:
    return worker.result("gp_graph_lets_go", struct.pack("<QQI4x", graph, cookie, count))


def test_a_graph_lets_go_of_what_it_keeps_alone(server: PoolServer) -> None:
    """The driver's object may be gone otherwise; what is told once is over."""
    with worker_of(server) as worker:
        graph, other = made_graph(worker, 1), made_graph(worker, 2)
        assert keep(worker, graph, 7, 0) == INVALID_VALUE
        assert keep(worker, graph, 7, 1 << 31) == INVALID_VALUE
        assert keep(worker, handle(KIND_GRAPH, 9), 7, 1) == INVALID_VALUE
        assert keep(worker, graph, 7, 2) == 0
        assert let_graph_go(worker, graph, 8, 1) == INVALID_VALUE
        assert let_graph_go(worker, other, 7, 1) == INVALID_VALUE
        assert let_graph_go(worker, graph, 7, 3) == INVALID_VALUE
        assert let_graph_go(worker, graph, 7, 0) == INVALID_VALUE
        assert let_graph_go(worker, graph, 7, 2) == 0
        let_go(worker, 7, 1)
        assert let_graph_go(worker, graph, 7, 1) == INVALID_VALUE
        assert keep(worker, graph, 9, 1) == 0
        assert worker.result("cuGraphDestroy", struct.pack("<Q", graph)) == 0
        again = made_graph(worker, 3)  # perhaps where the first one was
        assert let_graph_go(worker, again, 9, 1) == INVALID_VALUE
        let_go(worker, 9, 1)
        assert worker.host_calls.count(7) == 1


def test_what_is_kept_cannot_be_over_by_itself(server: PoolServer) -> None:
    with worker_of(server) as worker:
        assert keep(worker, made_graph(worker, 1), 7, 1) == 0
        worker.tell("gp_host_done", struct.pack("<Q", 7))
        wait_until(lambda: not sessions_like(server, worker), "the session ended")


def alloc_node(worker: Worker, graph: int, index: int, size: int, ordinal: int = 0) -> int:
    """A node that allocates; its address, or 0."""
    props = struct.pack("<IIIi", 1, 0, 1, ordinal) + bytes(88 - 16)
    head = struct.pack("<QQ", handle(KIND_NODE, index), graph)
    reply = worker.call("gp_node_alloc", head + props + struct.pack("<QII", size, 0, 0))
    result, address = struct.unpack_from("<i4xQ", reply)
    return int(address) if result == 0 else 0


def free_node(worker: Worker, graph: int, index: int, address: int) -> int:
    body = struct.pack("<QQQ", handle(KIND_NODE, index), graph, address)
    return worker.result("gp_node_free", body)


def test_a_graph_frees_what_graphs_allocate_alone(server: PoolServer) -> None:
    """The session's own memory is no graph's, and neither is what lies within a graph's."""
    with worker_of(server) as worker:
        graph, other, mine = made_graph(worker, 1), made_graph(worker, 2), worker.allocate(4096)
        at = alloc_node(worker, graph, 1, 4096)
        assert at != 0
        for index, wrong in enumerate((mine, at + 512, 0, 0x1000, (1 << 64) - 8), 2):
            assert free_node(worker, graph, index, wrong) == INVALID_VALUE
        assert free_node(worker, other, 20, at) == 0
        assert free_node(worker, graph, 21, at) == INVALID_VALUE
        for index, size, result in ((30, 4096, 0), (31, 4097, INVALID_VALUE)):
            body = struct.pack("<QQQQIIQQ", handle(KIND_NODE, index), graph, at, 0, 0, 1, size, 1)
            assert worker.result("gp_node_memset", body) == result


def test_a_graph_allocates_where_it_is_charged(server: PoolServer) -> None:
    with worker_of(server) as worker:
        graph = made_graph(worker, 1)
        for index, ordinal in enumerate((1, 2, -1, 1 << 30), 1):
            assert alloc_node(worker, graph, index, 4096, ordinal) == 0
        assert alloc_node(worker, graph, 9, 0) == 0
        assert alloc_node(worker, graph, 10, 1 << 62) == 0
        assert alloc_node(worker, handle(KIND_GRAPH, 5), 11, 4096) == 0
        assert alloc_node(worker, graph, 12, 4096) != 0


IF, WHILE, SWITCH = 0, 1, 2


def condition(worker: Worker, graph: int) -> int:
    """The driver's number of one."""
    body = struct.pack("<QQII", graph, handle(KIND_CONTEXT, 1), 0, 0)
    result, number = struct.unpack_from(
        "<i4xQ", worker.call("cuGraphConditionalHandleCreate", body)
    )
    assert result == 0
    return int(number)


def condition_node(
    worker: Worker, graph: int, index: int, number: int, kind: int = IF, size: int = 1
) -> int:
    head = struct.pack("<QQQII", handle(KIND_NODE, index), graph, number, kind, size)
    return worker.result("gp_node_condition", head)


def body_of(worker: Worker, index: int, which: int, graph: int) -> int:
    return worker.result(
        "gp_node_body", struct.pack("<QI4xQ", handle(KIND_NODE, index), which, graph)
    )


def test_a_condition_is_one_of_the_sessions(server: PoolServer) -> None:
    """The driver takes any number for an address of its own."""
    with worker_of(server) as worker:
        graph, other = made_graph(worker, 1), made_graph(worker, 2)
        number, gone = condition(worker, graph), condition(worker, other)
        wrongs = {0, 1, number + 2, number ^ 1 << 40, (1 << 64) - 1} - {number, gone}
        for index, wrong in enumerate(sorted(wrongs), 1):
            assert condition_node(worker, graph, index, wrong) == INVALID_VALUE
        assert worker.result("cuGraphDestroy", struct.pack("<Q", other)) == 0
        if gone != number:  # a driver may count them in each graph
            assert condition_node(worker, graph, 10, gone) == INVALID_VALUE
        for index, (kind, size) in enumerate(
            ((IF, 0), (IF, 3), (WHILE, 2), (SWITCH, 0), (SWITCH, 1025), (SWITCH, (1 << 32) - 1)), 20
        ):
            assert condition_node(worker, graph, index, number, kind, size) == INVALID_VALUE
        assert condition_node(worker, graph, 30, number, SWITCH, 1024) == 0
        assert condition_node(worker, graph, 31, number) == INVALID_VALUE


def test_a_body_goes_with_its_node(server: PoolServer) -> None:
    with worker_of(server) as worker:
        graph, body = made_graph(worker, 1), handle(KIND_GRAPH, 2)
        assert condition_node(worker, graph, 1, condition(worker, graph), IF, 2) == 0
        plain = empty_node(worker, graph, 2)
        assert plain and body_of(worker, 2, 0, handle(KIND_GRAPH, 3)) == INVALID_VALUE
        assert body_of(worker, 1, 2, handle(KIND_GRAPH, 4)) == INVALID_VALUE
        assert body_of(worker, 1, 1, body) == 0
        empty_node(worker, body, 3)
        assert worker.result("cuGraphDestroy", struct.pack("<Q", body)) == INVALID_VALUE
        node = struct.pack("<Q", handle(KIND_NODE, 1))
        assert worker.result("cuGraphDestroyNode", node) == 0
        late = struct.pack("<QQ", handle(KIND_NODE, 4), body)
        assert worker.result("gp_node_empty", late) == INVALID_VALUE
        empty_node(worker, graph, 5)  # perhaps where the other was
        assert body_of(worker, 5, 0, handle(KIND_GRAPH, 6)) == INVALID_VALUE


def test_only_graphs_that_kernels_launch_are_named(server: PoolServer) -> None:
    """Where the driver has any other graph is not told, and its name is no number of a graph."""
    with worker_of(server) as worker:
        stream = worker.stream()
        runnable = capture(worker, stream, [])
        ask = "gp_graph_exec_named"
        assert worker.result(ask, struct.pack("<Q", runnable)) == INVALID_VALUE
        assert worker.result(ask, struct.pack("<Q", handle(KIND_EXEC, 9))) == INVALID_VALUE
        launched = handle(KIND_EXEC, 2)
        body = struct.pack("<QQQ", launched, handle(KIND_GRAPH, 1), DEVICE_LAUNCH)
        assert worker.result("cuGraphInstantiateWithFlags", body) == 0
        result, name = struct.unpack_from("<i4xQ", worker.call(ask, struct.pack("<Q", launched)))
        assert (result, name != 0) == (0, True)
        for call in (ask, "cuGraphExecGetFlags", "cuGraphExecDestroy"):
            assert worker.result(call, struct.pack("<Q", name)) == INVALID_VALUE
