"""Handles whose objects are gone, options that are pointers, devices of others: a client
without our library names them, and the driver never hears of it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

import pytest

from gpupool_server.image_name import image_name
from harness import PATIENCE, PoolServer, wait_until
from peer_client import INVALID_VALUE, LEGACY, Worker, sessions_like, worker_of
from raw_client import HEADER, KIND_CONTEXT, NUMBERS, handle

pytestmark = pytest.mark.real_gpu

KIND_MODULE, KIND_LIBRARY, KIND_FUNCTION, KIND_STREAM, KIND_EVENT = 2, 3, 4, 5, 6
KIND_GRAPH, KIND_EXEC, KIND_POOL, KIND_ALLOCATION = 7, 8, 10, 11
INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED = 101, 201, 400, 801
MODULE, LIBRARY = handle(KIND_MODULE, 1), handle(KIND_LIBRARY, 1)
FUNCTION, KERNEL = handle(KIND_FUNCTION, 1), handle(KIND_FUNCTION, 2)
MADE = handle(KIND_CONTEXT, 2)  # beside the primary one
NAME = b"nothing\0"
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nothing() { ret; }
\0"""
HASH = bytes.fromhex(image_name(PTX))


@pytest.fixture
def worker(server: PoolServer) -> Iterator[Worker]:
    """A worker, which is still well at the end of the test."""
    with worker_of(server) as one:
        yield one
        one.result("gp_context_set", struct.pack("<Q", handle(KIND_CONTEXT, 1)))
        assert one.result("cuMemAlloc_v2", struct.pack("<Q", 512)) == 0


def put_image(worker: Worker) -> None:
    head = struct.pack("<I4xQQII", 32, len(PTX), 0, len(PTX), len(PTX))
    assert worker.result("gp_image_put", head + HASH + PTX) == 0


def load_module(worker: Worker, *options: int) -> int:
    put_image(worker)
    head = struct.pack("<QIIIII4x", MODULE, 32, len(options) // 2, 8 * len(options), 0, 0)
    reply = worker.call("gp_module_load", head + HASH + struct.pack(f"<{len(options)}Q", *options))
    result, state, loaded = struct.unpack_from("<i4xIi", reply)
    return int(result) or int(loaded) or int(state)


def load_library(worker: Worker, *options: int) -> int:
    put_image(worker)
    count = len(options)
    head = struct.pack("<QIIIIIII4x", LIBRARY, 32, 0, 0, count // 2, 8 * count, 0, 0)
    reply = worker.call("gp_library_load", head + HASH + struct.pack(f"<{count}Q", *options))
    result, state, loaded = struct.unpack_from("<i4xIi", reply)
    return int(result) or int(loaded) or int(state)


def get_function(worker: Worker, new: int = FUNCTION) -> int:
    body = struct.pack("<QQI4x", new, MODULE, len(NAME)) + NAME
    return worker.result("gp_module_get_function", body)


def get_kernel(worker: Worker) -> int:
    body = struct.pack("<QQI4x", KERNEL, LIBRARY, len(NAME)) + NAME
    return worker.result("gp_library_get_kernel", body)


def launch(
    worker: Worker, function: int, stream: int = LEGACY, attributes: bytes = b"", flags: int = 0
) -> int:
    count = len(attributes) // 72
    body = struct.pack(
        "<QQ12I", function, stream, 1, 1, 1, 1, 1, 1, 0, flags, 0, count, 0, len(attributes)
    )
    return worker.result("gp_launch", body + attributes)


def told(worker: Worker, name: str, *values: int) -> int:
    """The result of a call whose arguments are handles."""
    return worker.result(name, struct.pack(f"<{len(values)}Q", *values))


def context_of_its_own(worker: Worker) -> None:
    """Made, and current from here on."""
    assert worker.result("gp_context_create", struct.pack("<QiI", MADE, 0, 0)) == 0
    assert told(worker, "gp_context_set", MADE) == 0


# Children -------------------------------------------------------------------------------


def test_functions_go_with_their_module(worker: Worker) -> None:
    assert load_module(worker) == 0
    assert get_function(worker) == 0
    assert launch(worker, FUNCTION) == 0
    assert told(worker, "cuModuleUnload", MODULE) == 0
    assert launch(worker, FUNCTION) == INVALID_HANDLE
    assert worker.result("cuFuncGetAttribute", struct.pack("<i4xQ", 0, FUNCTION)) == INVALID_HANDLE
    assert told(worker, "cuFuncLoad", FUNCTION) == INVALID_HANDLE
    assert told(worker, "cuModuleUnload", MODULE) == INVALID_HANDLE


def test_kernels_and_what_comes_of_them_go_with_their_library(worker: Worker) -> None:
    function, module = handle(KIND_FUNCTION, 9), handle(KIND_MODULE, 9)
    assert load_library(worker) == 0
    assert get_kernel(worker) == 0
    assert told(worker, "cuKernelGetFunction", function, KERNEL) == 0
    assert told(worker, "cuLibraryGetModule", module, LIBRARY) == 0
    assert launch(worker, KERNEL) == launch(worker, function) == 0
    assert told(worker, "cuLibraryUnload", LIBRARY) == 0
    assert launch(worker, KERNEL) == launch(worker, function) == INVALID_HANDLE
    again = handle(KIND_FUNCTION, 10)
    assert told(worker, "cuKernelGetFunction", again, KERNEL) == INVALID_HANDLE
    assert told(worker, "cuModuleUnload", module) == INVALID_HANDLE


def test_a_function_is_no_kernel(worker: Worker) -> None:
    assert load_module(worker) == 0
    assert get_function(worker) == 0
    made = handle(KIND_FUNCTION, 9)
    assert told(worker, "cuKernelGetFunction", made, FUNCTION) == INVALID_HANDLE


def test_what_a_context_had_goes_with_it(worker: Worker) -> None:
    stream, event = handle(KIND_STREAM, 50), handle(KIND_EVENT, 50)
    context_of_its_own(worker)
    assert worker.result("cuStreamCreate", struct.pack("<QI4x", stream, 1)) == 0
    assert worker.result("cuEventCreate", struct.pack("<QI4x", event, 0)) == 0
    assert load_module(worker) == 0
    assert get_function(worker) == 0
    assert told(worker, "cuEventRecord", event, stream) == 0
    assert launch(worker, FUNCTION, stream) == 0
    assert told(worker, "cuCtxDestroy_v2", MADE) == 0
    for name in ("cuStreamQuery", "cuStreamSynchronize", "cuStreamDestroy_v2"):
        assert told(worker, name, stream) == INVALID_HANDLE, name
    for name in ("cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2"):
        assert told(worker, name, event) == INVALID_HANDLE, name
    assert launch(worker, FUNCTION) == INVALID_HANDLE
    assert told(worker, "cuModuleUnload", MODULE) == INVALID_HANDLE
    assert told(worker, "gp_context_set", MADE) == INVALID_CONTEXT
    assert told(worker, "cuCtxSynchronize_v2", MADE) == INVALID_CONTEXT
    assert told(worker, "gp_context_set", handle(KIND_CONTEXT, 1)) == 0
    body = struct.pack("<QQI4x", LEGACY, event, 0)
    assert worker.result("cuStreamWaitEvent", body) == INVALID_HANDLE
    assert worker.result("cuCtxSynchronize") == 0  # walks over all streams


def test_the_primary_contexts_own_go_with_it(worker: Worker) -> None:
    primary = handle(KIND_CONTEXT, 1)
    stream = worker.stream()
    assert worker.synchronize(stream) == 0
    assert worker.result("gp_primary_release", struct.pack("<QiI", primary, 0, 0)) == 0
    assert worker.result("gp_primary_retain", struct.pack("<QiI", primary, 0, 0)) == 0
    assert told(worker, "gp_context_set", primary) == 0
    assert worker.synchronize(stream) == INVALID_HANDLE
    assert worker.result("cuCtxSynchronize") == 0


@pytest.mark.parametrize("wrong", ["twice", "released as another", "destroyed"])
def test_a_primary_context_has_one_name(server: PoolServer, wrong: str) -> None:
    """Else one of the names outlives it."""
    with worker_of(server) as worker:
        context_of_its_own(worker)
        name, body = {
            "twice": ("gp_primary_retain", struct.pack("<QiI", handle(KIND_CONTEXT, 3), 0, 0)),
            "released as another": ("gp_primary_release", struct.pack("<QiI", MADE, 0, 1)),
            "destroyed": ("cuCtxDestroy_v2", struct.pack("<Q", handle(KIND_CONTEXT, 1))),
        }[wrong]
        worker.tell(name, body)
        wait_until(lambda: not sessions_like(server, worker), "the session ended")


# Graphs -----------------------------------------------------------------------------------


def begin_capture(worker: Worker, stream: int) -> None:
    assert worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", stream, 2)) == 0
    mine = worker.allocate(4096)
    body = struct.pack("<QB7xQQ", mine, 1, 16, stream)
    assert worker.result("cuMemsetD8Async", body) == 0


def nodes_of(worker: Worker, graph: int) -> tuple[int, list[int]]:
    reply = worker.call("gp_graph_nodes", struct.pack("<QII", graph, 0, 16))
    result, count = struct.unpack_from("<i4xQ", reply)
    return int(result), list(struct.unpack_from(f"<{count}Q", reply, 24)) if result == 0 else []


def under_capture(worker: Worker, stream: int, graph: int) -> list[int]:
    """Name the graph that the stream is captured into; the last nodes of it."""
    reply = worker.call("gp_capture_info", struct.pack("<QQ", stream, graph))
    result, status, _, size = struct.unpack_from("<i4xI4xQI", reply)
    assert (result, status) == (0, 1)
    return list(struct.unpack_from(f"<{size // 8}Q", reply, 32))


def test_nodes_go_with_their_graph(worker: Worker) -> None:
    stream, graph = worker.stream(), handle(KIND_GRAPH, 1)
    for round_ in range(3):  # the memory of one is the next one's
        begin_capture(worker, stream)
        assert told(worker, "cuStreamEndCapture", stream, graph) == 0
        result, nodes = nodes_of(worker, graph)
        assert result == 0 and len(nodes) == 1, round_
        assert told(worker, "cuGraphNodeGetType", nodes[0]) == 0
        assert told(worker, "cuGraphDestroy", graph) == 0
        assert told(worker, "cuGraphNodeGetType", nodes[0]) == INVALID_VALUE
        assert nodes_of(worker, graph)[0] == INVALID_VALUE


def test_a_graph_under_capture_is_the_captures(worker: Worker) -> None:
    stream, lent, kept = worker.stream(), handle(KIND_GRAPH, 1), handle(KIND_GRAPH, 2)
    begin_capture(worker, stream)
    nodes = under_capture(worker, stream, lent)
    assert len(nodes) == 1
    assert told(worker, "cuGraphNodeGetType", nodes[0]) == 0
    assert told(worker, "cuGraphDestroy", lent) == INVALID_VALUE
    assert told(worker, "cuStreamEndCapture", stream, kept) == 0
    assert nodes_of(worker, lent) == nodes_of(worker, kept) == (0, nodes)
    assert told(worker, "cuGraphDestroy", lent) == 0
    assert nodes_of(worker, kept)[0] == INVALID_VALUE
    assert told(worker, "cuGraphDestroy", kept) == INVALID_VALUE
    assert told(worker, "cuGraphNodeGetType", nodes[0]) == INVALID_VALUE


@pytest.mark.parametrize("how", ["ended", "destroyed"])
def test_a_capture_that_was_given_up_takes_its_graph_along(worker: Worker, how: str) -> None:
    stream, lent = worker.stream(), handle(KIND_GRAPH, 1)
    begin_capture(worker, stream)
    nodes = under_capture(worker, stream, lent)
    if how == "ended":
        assert worker.synchronize(stream) != 0  # forbidden in a capture
        assert told(worker, "cuStreamEndCapture", stream, handle(KIND_GRAPH, 2)) != 0
    else:
        assert told(worker, "cuStreamDestroy_v2", stream) == 0
    for index in range(3, 20):  # something else is where it was
        assert (
            worker.result("cuGraphCreate", struct.pack("<QI4x", handle(KIND_GRAPH, index), 0)) == 0
        )
    assert nodes_of(worker, lent)[0] == INVALID_VALUE
    assert told(worker, "cuGraphNodeGetType", nodes[0]) == INVALID_VALUE
    assert told(worker, "cuGraphDestroy", lent) == INVALID_VALUE


def test_graphs_go_with_the_contexts_they_were_captured_in(worker: Worker) -> None:
    mine, stream = worker.stream(), handle(KIND_STREAM, 50)
    context_of_its_own(worker)
    assert worker.result("cuStreamCreate", struct.pack("<QI4x", stream, 1)) == 0
    runnable = {}
    for index, where in enumerate((stream, mine), 1):
        begin_capture(worker, where)
        assert told(worker, "cuStreamEndCapture", where, handle(KIND_GRAPH, index)) == 0
        runnable[where] = handle(KIND_EXEC, index)
        body = struct.pack("<QQQ", runnable[where], handle(KIND_GRAPH, index), 0)
        assert worker.result("cuGraphInstantiateWithFlags", body) == 0
        told(worker, "gp_context_set", handle(KIND_CONTEXT, 1))
    assert told(worker, "cuGraphLaunch", runnable[stream], stream) == 0
    assert told(worker, "cuCtxDestroy_v2", MADE) == 0
    assert told(worker, "cuGraphLaunch", runnable[stream], mine) == INVALID_VALUE
    assert nodes_of(worker, handle(KIND_GRAPH, 1))[0] == INVALID_VALUE
    body = struct.pack("<QQQ", handle(KIND_EXEC, 9), handle(KIND_GRAPH, 1), 0)
    assert worker.result("cuGraphInstantiateWithFlags", body) == INVALID_VALUE
    assert told(worker, "cuGraphLaunch", runnable[mine], mine) == 0
    assert worker.synchronize(mine) == 0


# Waits --------------------------------------------------------------------------------------


def answer_of(worker: Worker, sequence: int) -> int:
    """The result of a call that was sent before."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for reply in worker._replies:
            if HEADER.unpack_from(reply)[2] & 1 and HEADER.unpack_from(reply)[3] == sequence:
                return int(struct.unpack_from("<i", reply, HEADER.size)[0])
        if worker.down.poll(1000):
            worker._take(worker.down.recv())
    raise AssertionError("no answer")


def test_an_event_destroyed_while_it_is_waited_for(worker: Worker) -> None:
    """The worker asked the driver for it again and again, whatever was there by then."""
    stream, event = worker.stream(), handle(KIND_EVENT, 50)
    assert worker.result("cuEventCreate", struct.pack("<QI4x", event, 0)) == 0
    worker.halt(stream, 1)
    worker.tell("cuEventRecord", struct.pack("<QQ", event, stream))
    body = struct.pack("<Q", event)
    waiting = [worker.message(NUMBERS["cuEventSynchronize"], body) for _ in range(2)]
    worker.send(waiting)
    worker.tell("cuEventDestroy_v2", body)
    for index in range(60, 80):  # takes its place
        worker.tell("cuEventCreate", struct.pack("<QI4x", handle(KIND_EVENT, index), 0))
    while 1 not in worker.host_calls:
        worker._take(worker.down.recv())
    worker.tell("gp_host_done", struct.pack("<Q", 1))
    assert [answer_of(worker, HEADER.unpack_from(m)[3]) for m in waiting] == [0, 0]
    assert told(worker, "cuEventQuery", event) == INVALID_HANDLE


def test_a_module_that_goes_with_its_context_is_not_unloaded_later(worker: Worker) -> None:
    """An unload waits while a stream is blocked; by then there was nothing to unload."""
    primary, stream = handle(KIND_CONTEXT, 1), handle(KIND_STREAM, 50)
    context_of_its_own(worker)
    assert worker.result("cuStreamCreate", struct.pack("<QI4x", stream, 1)) == 0
    assert told(worker, "gp_context_set", primary) == 0
    assert load_module(worker) == 0
    worker.halt(stream, 1)
    worker.tell("cuModuleUnload", struct.pack("<Q", MODULE))
    release = worker.message(NUMBERS["gp_primary_release"], struct.pack("<QiI", primary, 0, 0))
    worker.send([release])
    worker.let_go(1)
    assert answer_of(worker, HEADER.unpack_from(release)[3]) == 0
    assert told(worker, "gp_context_set", MADE) == 0
    assert worker.result("cuCtxSynchronize") == 0
    assert worker.result("gp_primary_retain", struct.pack("<QiI", primary, 0, 0)) == 0


def test_a_copy_goes_on_when_another_context_ends(worker: Worker) -> None:
    """The worker's pinned memory for it went with the context that was current at its making."""
    stream, data = worker.stream(), bytes(range(256)) * 16
    mine = worker.allocate(len(data))
    worker.write(mine, data)
    context_of_its_own(worker)
    theirs = worker.allocate(4096)
    for _ in range(4):  # pieces are made here
        worker.read(theirs, 4096)
    assert told(worker, "gp_context_set", handle(KIND_CONTEXT, 1)) == 0
    worker.halt(stream, 1)
    body = struct.pack("<QQI4x", mine, stream, len(data))
    copies = [worker.message(NUMBERS["gp_dtoh"], body) for _ in range(6)]
    worker.send(copies)
    while 1 not in worker.host_calls:
        worker._take(worker.down.recv())
    worker.tell("cuCtxDestroy_v2", struct.pack("<Q", MADE))
    worker.tell("gp_host_done", struct.pack("<Q", 1))
    assert [answer_of(worker, HEADER.unpack_from(m)[3]) for m in copies] == [0] * len(copies)
    assert worker.read(mine, len(data)) == data


# Options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [2, 3, 4, 5, 6, 17, 18, 99, 1 << 40])
def test_options_that_are_pointers_do_not_travel(worker: Worker, option: int) -> None:
    assert load_module(worker, option, 4096) == INVALID_VALUE
    assert load_module(worker, 7, 4) == 0  # the optimisation level is a number


@pytest.mark.parametrize("option", [0, 2, 1 << 32])
def test_library_options_that_are_pointers_do_not_travel(worker: Worker, option: int) -> None:
    assert load_library(worker, option, 4096) == INVALID_VALUE
    assert load_library(worker, 1, 1) == 0


@pytest.mark.parametrize("attribute", [7, 12, 13, 99])
def test_attributes_that_are_pointers_or_unknown(worker: Worker, attribute: int) -> None:
    """Graph nodes and events of the driver's, by address."""
    assert load_module(worker) == 0
    assert get_function(worker) == 0
    value = struct.pack("<I4xQ", attribute, 4096) + bytes(56)
    wrong = INVALID_HANDLE if attribute in (7, 12) else NOT_SUPPORTED  # events are looked up
    assert launch(worker, FUNCTION, attributes=value, flags=2) == wrong
    body = struct.pack("<QI4xQ", LEGACY, attribute, 4096) + bytes(56)
    assert worker.result("cuStreamSetAttribute", body) == INVALID_VALUE
    priority = struct.pack("<I4xi", 8, 0) + bytes(60)
    assert launch(worker, FUNCTION, attributes=priority, flags=2) == 0


def launch_updatable(worker: Worker, function: int, stream: int) -> tuple[int, int]:
    """The result, and the name of the node for kernels."""
    attribute = struct.pack("<I4xi4xQ", 13, 1, 4096) + bytes(48)
    body = struct.pack("<QQ11I4x", function, stream, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 72)
    reply = worker.call("gp_launch_updatable", body + attribute)
    result, name = struct.unpack_from("<i4xQ", reply)
    return int(result), int(name)


def test_a_node_that_kernels_update_has_the_drivers_name(worker: Worker) -> None:
    """The client's word for it is not read."""
    stream = handle(KIND_STREAM, 1)
    assert load_module(worker) == 0
    assert get_function(worker) == 0
    assert worker.result("cuStreamCreate", struct.pack("<QI4x", stream, 1)) == 0
    assert launch_updatable(worker, FUNCTION, stream)[0] == INVALID_VALUE  # nothing captures it
    assert launch_updatable(worker, MODULE, stream)[0] == INVALID_HANDLE
    assert worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", stream, 2)) == 0
    names = [launch_updatable(worker, FUNCTION, stream) for _ in range(2)]
    assert [result for result, _ in names] == [0, 0]
    assert len({0, 4096, *(name for _, name in names)}) == 4


# Devices ------------------------------------------------------------------------------------

Call = Callable[[int], tuple[str, bytes]]


def location(device: int, kind: int = 1) -> bytes:
    return struct.pack("<Ii", kind, device)


CALLS: dict[str, Call] = {
    "graph memory": lambda d: ("cuDeviceGetGraphMemAttribute", struct.pack("<iI", d, 0)),
    "trim": lambda d: ("cuDeviceGraphMemTrim", struct.pack("<i4x", d)),
    "pool of": lambda d: (
        "cuDeviceGetDefaultMemPool",
        struct.pack("<Qi4x", handle(KIND_POOL, 5 + d % 7), d),
    ),
    "context": lambda d: (
        "gp_context_create",
        struct.pack("<QiI", handle(KIND_CONTEXT, 5 + d % 7), d, 0),
    ),
    "peer": lambda d: ("cuDeviceCanAccessPeer", struct.pack("<ii", d, 0)),
    "peer of": lambda d: ("cuDeviceCanAccessPeer", struct.pack("<ii", 0, d)),
    "memory": lambda d: (
        "cuMemCreate",
        struct.pack("<QQ", handle(KIND_ALLOCATION, 5 + d % 7), 2 << 20)
        + struct.pack("<II", 1, 0)
        + location(d)
        + bytes(16)
        + bytes(8),
    ),
    "access": lambda d: (
        "cuMemPoolGetAccess",
        struct.pack("<Q", handle(KIND_POOL, 1)) + location(d),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_devices_are_the_sessions_own(server: PoolServer, call: str) -> None:
    """A host with two GPUs, and a session that was given one: numbers are the session's."""
    with worker_of(server, devices="0") as worker:
        pool = struct.pack("<Qi4x", handle(KIND_POOL, 1), 0)
        assert worker.result("cuDeviceGetDefaultMemPool", pool) == 0
        assert worker.result(*CALLS[call](0)) in (0, NOT_SUPPORTED)
        for device in (1, 2, -1, 1 << 30):
            assert worker.result(*CALLS[call](device)) == INVALID_DEVICE, device


def test_numbers_of_events_have_a_place(worker: Worker) -> None:
    """The page of polled events, which no network has: nothing is written, nothing recorded."""
    event, silent = handle(KIND_EVENT, 1), 2
    assert worker.result("cuEventCreate", struct.pack("<QI4x", event, silent)) == 0
    for place, number in ((1, 1), (8192, 1), (1 << 31, (1 << 64) - 1)):
        body = struct.pack("<QQI4xQ", event, LEGACY, place, number)
        assert worker.result("gp_event_record", body) == INVALID_VALUE
    body = struct.pack("<QQI4xQ", handle(KIND_EVENT, 2), LEGACY, 1, 1)
    assert worker.result("gp_event_record", body) == INVALID_HANDLE
    assert worker.result("cuEventQuery", struct.pack("<Q", event)) == 0


def test_waits_that_the_gpu_ends_have_a_place(worker: Worker) -> None:
    """There is no page over a network, and none can be opened: nothing is written."""
    for place, number in ((0, 1), (31, 1), (32, 1), ((1 << 32) - 1, (1 << 64) - 1)):
        body = struct.pack("<QI4xQ", LEGACY, place, number)
        assert worker.result("gp_stream_complete", body) == INVALID_VALUE
        body = struct.pack("<QQIIQ", 1 << 40, LEGACY, 4, place, number)
        assert worker.result("gp_dtoh_complete", body) == INVALID_VALUE
        assert worker.result("gp_dtoh_signal", body) == INVALID_VALUE
        body = struct.pack("<QI4xQ", LEGACY, place, number)
        assert worker.result("gp_stream_signal", body) == INVALID_VALUE
        body = struct.pack("<I4xQ", place, number)
        assert worker.result("gp_context_signal", body) == INVALID_VALUE
