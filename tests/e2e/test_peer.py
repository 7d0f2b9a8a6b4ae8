"""Bytes and signals between the GPUs of two workers, which never pass the client."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupool.admin import Admin
from harness import PoolServer, alive, wait_until
from peer_client import (
    CHUNK,
    INVALID_VALUE,
    LEGACY,
    UNAVAILABLE,
    Worker,
    assert_works,
    join,
    noise,
    worker_of,
)
from raw_client import KIND_CONTEXT, NUMBERS, handle
from tenants import MakeServer, configured

Pair = tuple[Worker, Worker]


@pytest.fixture
def pair(server: PoolServer) -> Iterator[Pair]:
    """Two workers that are joined."""
    with worker_of(server) as a, worker_of(server) as b:
        join(a, b)
        yield a, b


def described(server: PoolServer, worker: Worker) -> dict[str, Any]:
    """What the server knows of a session."""
    status = Admin(server.folder / "run").ask({"do": "status"})
    (found,) = (s for s in status["sessions"] if s["session"] == worker.session["session"])
    return dict(found)


def worker_pid(server: PoolServer, worker: Worker) -> int:
    return int(described(server, worker)["pid"])


@pytest.mark.parametrize("size", [1, 8, 4095, CHUNK, CHUNK + 1, 9 * CHUNK + 77])
@pytest.mark.parametrize("backwards", [False, True])
def test_bytes_arrive(pair: Pair, size: int, backwards: bool) -> None:
    a, b = reversed(pair) if backwards else pair
    data = noise(size)
    source, target = a.allocate(size), b.allocate(size + 16)
    a.write(source, data)
    b.write(target, bytes(size + 16))
    a.peer_send(LEGACY, 7, source, size)
    b.peer_recv(LEGACY, 7, target + 8, size)
    assert b.read(target, size + 16) == bytes(8) + data + bytes(8)
    assert a.synchronize() == 0
    assert a.errors == b.errors == []


# Order ------------------------------------------------------------------------------------


def test_a_stream_stands_until_the_signal(pair: Pair) -> None:
    a, b = pair
    first, second = a.stream(), b.stream()
    a.halt(first, 1)
    a.peer_send(first, 1)
    b.peer_recv(second, 1)
    assert b.busy(second)
    assert b.synchronize() == 0  # other streams go on
    assert b.busy(second)
    a.let_go(1)
    assert b.synchronize(second) == 0


def test_a_signal_may_come_before_anybody_waits_for_it(pair: Pair) -> None:
    a, b = pair
    for tag in range(300):
        a.peer_send(LEGACY, tag)
    assert a.synchronize() == 0
    for tag in reversed(range(300)):
        b.peer_recv(LEGACY, tag)
    assert b.synchronize() == 0


def test_the_source_is_read_when_the_stream_comes_to_it(pair: Pair) -> None:
    """Not before what is in front of it, and before what is behind."""
    a, b = pair
    size = 20 * CHUNK
    data = noise(size)
    source, target = a.allocate(size), b.allocate(size)
    stream = a.stream()
    a.halt(stream, 1)
    a.write(source, data, stream)
    a.peer_send(stream, 1, source, size)
    a.write(source, bytes(size), stream)
    a.let_go(1)
    assert a.busy(stream)  # nobody takes it yet
    b.peer_recv(LEGACY, 1, target, size)
    assert b.read(target, size) == data
    assert a.read(source, size, stream) == bytes(size)


def test_the_target_is_written_when_the_stream_comes_to_it(pair: Pair) -> None:
    a, b = pair
    data = noise(CHUNK)
    source, target = a.allocate(CHUNK), b.allocate(CHUNK)
    a.write(source, data)
    b.write(target, bytes(CHUNK))
    stream, other = b.stream(), b.stream()
    b.halt(stream, 1)
    b.peer_recv(stream, 1, target, CHUNK)
    a.peer_send(LEGACY, 1, source, CHUNK)
    assert b.read(target, CHUNK, other) == bytes(CHUNK)
    b.let_go(1)
    assert b.read(target, CHUNK, stream) == data
    assert a.synchronize() == 0


def test_opposite_order_on_two_streams(pair: Pair) -> None:
    """Each waits for the other with one stream and serves it with the other."""
    size = 12 * CHUNK
    data = [noise(size), noise(size + 8)[8:]]
    buffers = []
    for me, mine in zip(pair, data, strict=True):
        buffers.append((me.allocate(size), me.allocate(size)))
        me.write(buffers[-1][0], mine)
        assert me.synchronize() == 0  # the streams below are not ordered with this one
    streams = [(me.stream(), me.stream()) for me in pair]
    for me, (_, into), (receives, _), other in zip(pair, buffers, streams, (1, 0), strict=True):
        me.peer_recv(receives, other, into, size)
    for number, (me, (source, _), (_, sends)) in enumerate(
        zip(pair, buffers, streams, strict=True)
    ):
        me.peer_send(sends, number, source, size)
    assert pair[0].read(buffers[0][1], size, streams[0][0]) == data[1]
    assert pair[1].read(buffers[1][1], size, streams[1][0]) == data[0]


def test_a_signal_passes_a_large_transfer(pair: Pair) -> None:
    a, b = pair
    size = 40 * CHUNK
    source, target = a.allocate(size), b.allocate(size)
    large, small = a.stream(), a.stream()
    a.peer_send(large, 1, source, size)
    a.peer_send(small, 2)
    b.peer_recv(LEGACY, 2)
    assert b.synchronize() == 0
    assert a.busy(large)
    b.peer_recv(LEGACY, 1, target, size)
    assert b.synchronize() == 0
    assert a.synchronize(large) == 0


@pytest.mark.parametrize("seed", range(4))
def test_many_at_once_in_any_order(pair: Pair, seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice([0, 1, 100, CHUNK - 1, 3 * CHUNK + 5]) for _ in range(24)]
    ends: list[list[tuple[int, int, int, bool]]] = [[], []]
    expected = []
    for tag, size in enumerate(sizes):
        sender = dice.randrange(2)
        source = pair[sender].allocate(size) if size else 0
        target = pair[1 - sender].allocate(size) if size else 0
        data = dice.randbytes(size)
        pair[sender].write(source, data)
        ends[sender].append((tag, size, source, True))
        ends[1 - sender].append((tag, size, target, False))
        expected.append((pair[1 - sender], target, data))
    for me, mine in zip(pair, ends, strict=True):
        assert me.synchronize() == 0
        streams = {(True, n): me.stream() for n in range(3)}
        streams |= {(False, n): me.stream() for n in range(3)}
        for tag, size, address, sends in mine:
            stream = streams[sends, tag % 3]
            (me.peer_send if sends else me.peer_recv)(stream, tag, address, size)
    for me in pair:
        assert me.result("cuCtxSynchronize") == 0
        assert me.errors == []
    for receiver, target, data in expected:
        assert receiver.read(target, len(data)) == data


# The loop goes on -------------------------------------------------------------------------


def test_a_call_that_may_wait_in_the_driver_is_put_off(pair: Pair) -> None:
    """It would keep the worker from what ends the wait."""
    a, b = pair
    stream = b.stream()
    b.peer_recv(stream, 1)
    b.send([b.message(NUMBERS["cuMemAlloc_v2"], struct.pack("<Q", 4096))])
    assert b.busy(stream)
    a.peer_send(LEGACY, 1)
    assert b.synchronize(stream) == 0
    assert b.allocate(4096)


def test_much_work_behind_a_stream_that_stands(pair: Pair) -> None:
    """More than a driver would queue."""
    a, b = pair
    target, stream = b.allocate(8), b.stream()
    b.peer_recv(stream, 1)
    for n in range(2000):
        b.tell("gp_htod", struct.pack("<QQIIQ", target, stream, 8, 8, n))
    a.peer_send(LEGACY, 1)
    assert b.read(target, 8, stream) == struct.pack("<Q", 1999)


def test_a_stream_that_stands_keeps_no_other_tenant_out(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Nor the worker that it waits for, on the same GPU; what is behind it keeps its order."""
    server = configured(make_server, tmp_path)
    with (
        worker_of(server, token="token-of-red", group="one", memory=str(24 << 20)) as a,
        worker_of(server, token="token-of-red", group="two", memory=str(24 << 20)) as b,
        worker_of(server, token="token-of-blue") as other,
    ):
        join(a, b)
        stream, target = b.stream(), b.allocate(CHUNK)
        theirs = other.allocate(8)
        for tag in range(4):
            b.peer_recv(stream, 2 * tag, target, CHUNK)
            for n in range(40):
                b.tell("gp_htod", struct.pack("<QQIIQ", target, stream, 8, 8, n))
            for n in range(40):
                other.tell("gp_htod", struct.pack("<QQIIQ", theirs, LEGACY, 8, 8, n))
                assert other.synchronize() == 0
            assert b.busy(stream)
            source = a.allocate(CHUNK)
            a.write(source, noise(CHUNK))
            a.peer_send(LEGACY, 2 * tag, source, CHUNK)
            assert b.read(target, CHUNK, stream) == struct.pack("<Q", 39) + noise(CHUNK)[8:]
        assert a.errors == b.errors == other.errors == []


# What goes wrong ----------------------------------------------------------------------------


def test_unknown_peers(pair: Pair) -> None:
    a, b = pair
    for peer in (1, 15, 16, 2**32 - 1):
        a.peer_send(LEGACY, 1, peer=peer)
        assert a.wait_for_error() == ("gp_peer_send", INVALID_VALUE)
        a.peer_recv(LEGACY, 1, peer=peer)
        assert a.wait_for_error() == ("gp_peer_recv", INVALID_VALUE)
    assert_works(a, b, 9)


def test_a_tag_twice(pair: Pair) -> None:
    a, b = pair
    stream = b.stream()
    b.peer_recv(stream, 1)
    b.peer_recv(stream, 1)
    assert b.wait_for_error() == ("gp_peer_recv", INVALID_VALUE)
    assert b.busy(stream)
    a.peer_send(LEGACY, 1)
    assert b.synchronize(stream) == 0
    assert_works(a, b, 9)


@pytest.mark.parametrize("first", ["send", "receive"])
@pytest.mark.parametrize(("sent", "wanted"), [(64, 65), (65, 64), (0, 64), (64, 0)])
def test_lengths_that_differ(pair: Pair, first: str, sent: int, wanted: int) -> None:
    a, b = pair
    source, target = a.allocate(128), b.allocate(128)

    def send() -> None:
        a.peer_send(LEGACY, 1, source, sent)
        a.busy(LEGACY)

    def receive() -> None:
        b.peer_recv(LEGACY, 1, target, wanted)
        b.busy(LEGACY)

    for step in (send, receive) if first == "send" else (receive, send):
        step()
    assert b.wait_for_error() == ("gp_peer_recv", INVALID_VALUE)
    if sent:
        assert a.wait_for_error() == ("gp_peer_send", INVALID_VALUE)
    assert a.synchronize() == b.synchronize() == 0
    a.errors.clear()  # a signal may have gone before anybody knew better
    assert_works(a, b, 9)


def test_addresses_that_are_none(pair: Pair) -> None:
    """The other side hears of it, too, and its stream goes on."""
    a, b = pair
    good = a.allocate(64), b.allocate(64)
    for n, (bad, size) in enumerate([(0, 64), (8, 64), (2**64 - 8, 64), (good[0], 2**64 - 1)]):
        size_there = min(size, 64)
        a.peer_send(LEGACY, 2 * n, bad, size)
        b.peer_recv(LEGACY, 2 * n, good[1], size_there)
        assert a.wait_for_error() == ("gp_peer_send", INVALID_VALUE)
        assert b.wait_for_error() == ("gp_peer_recv", INVALID_VALUE)
        a.peer_send(LEGACY, 2 * n + 1, good[0], size_there)
        b.peer_recv(LEGACY, 2 * n + 1, bad if bad != good[0] else good[1], size)
        assert b.wait_for_error() == ("gp_peer_recv", INVALID_VALUE)
        assert a.wait_for_error() == ("gp_peer_send", INVALID_VALUE)
    assert a.synchronize() == b.synchronize() == 0
    assert_works(a, b, 99)


def test_a_worker_dies(server: PoolServer) -> None:
    """What waits for it ends with an error, and the worker goes on; so do its other links."""
    with worker_of(server) as a, worker_of(server) as b, worker_of(server) as c:
        join(a, b)
        join(a, c, 1, 0)
        memory = a.allocate(64)
        streams = [a.stream() for _ in range(3)]
        a.peer_recv(streams[0], 1, memory, 64)
        a.peer_recv(streams[1], 2)
        a.peer_send(streams[2], 3, memory, 64)
        assert all(map(a.busy, streams))
        os.kill(worker_pid(server, b), signal.SIGKILL)
        came = sorted(a.wait_for_error() for _ in range(3))
        assert came == [("gp_peer_recv", UNAVAILABLE)] * 2 + [("gp_peer_send", UNAVAILABLE)]
        assert [a.synchronize(stream) for stream in streams] == [0, 0, 0]
        a.peer_send(LEGACY, 4)
        assert a.wait_for_error() == ("gp_peer_send", UNAVAILABLE)
        assert_works(a, c, 9, (1, 0))
        with worker_of(server) as again:  # the number may be used for another
            join(a, again)
            assert_works(a, again, 10)


def test_a_session_ends_in_order(server: PoolServer) -> None:
    with worker_of(server) as a:
        with worker_of(server) as b:
            join(a, b)
            stream = a.stream()
            a.peer_recv(stream, 1)
            b.peer_recv(LEGACY, 2)
            assert b.busy(LEGACY)
            pid = worker_pid(server, b)
            b.tell("gp_goodbye")
            wait_until(lambda: not alive(pid), "the worker ended")
        assert a.wait_for_error() == ("gp_peer_recv", UNAVAILABLE)
        assert a.synchronize(stream) == 0


def test_a_context_ends_under_transfers(pair: Pair) -> None:
    a, b = pair
    memory, there = a.allocate(64), b.allocate(64)
    stream = a.stream()
    a.peer_recv(stream, 1, memory, 64)
    a.peer_send(a.stream(), 2, memory, 64)
    b.peer_recv(LEGACY, 2, there, 64)
    a.peer_send(LEGACY, 3)
    released = struct.pack("<QiI", handle(KIND_CONTEXT, 1), 0, 0)
    assert a.result("gp_primary_release", released) == 0
    b.peer_send(LEGACY, 1, there, 64)
    assert b.synchronize() == 0
    # whether the second was through when the context ended is a matter of time
    assert ("gp_peer_send", UNAVAILABLE) in b.errors
    assert a.result("gp_primary_retain", struct.pack("<QiI", handle(KIND_CONTEXT, 2), 0, 0)) == 0
    assert a.result("gp_context_set", struct.pack("<Q", handle(KIND_CONTEXT, 2))) == 0
    a.errors.clear()
    b.errors.clear()
    assert_works(a, b, 9)


@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_a_context_ends_while_the_other_stands(server: PoolServer, pair: Pair, after: int) -> None:
    """Memory that a piece was on its way to was waited for as long as the other worker stood."""
    a, b = pair
    size = 24 * CHUNK
    pid = worker_pid(server, a)
    a.peer_send(LEGACY, 1, a.allocate(size), size)
    b.peer_recv(b.stream(), 1, b.allocate(size), size)
    for _ in range(after):
        b.busy(LEGACY)
    os.kill(pid, signal.SIGSTOP)
    try:
        released = struct.pack("<QiI", handle(KIND_CONTEXT, 1), 0, 0)
        assert b.result("gp_primary_release", released) == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    again = struct.pack("<QiI", handle(KIND_CONTEXT, 2), 0, 0)
    assert b.result("gp_primary_retain", again) == 0
    assert a.synchronize() == 0


@pytest.mark.parametrize("way", ["tcp", "zmq"])
def test_a_context_ends_while_the_other_takes_nothing(
    server: PoolServer, pair: Pair, way: str
) -> None:
    """Pieces that were read ahead behind one that did not leave kept the worker for good."""
    a, b = pair
    peer = 0
    if way == "zmq":
        peer, secret = 1, os.urandom(16)
        a.listen(secret, peer)
        result, url = a.listen(secret, peer)  # which it takes when it is asked again
        assert (result, url.partition("://")[0]) == (0, "tcp")
        assert b.connect(secret, url, peer) == 0
    size = 256 * CHUNK
    pid = worker_pid(server, a)
    target, source = a.allocate(size), b.allocate(size)
    a.peer_recv(LEGACY, 1, target, size, peer)
    assert a.busy(LEGACY)
    time.sleep(0.2)  # it has said so
    os.kill(pid, signal.SIGSTOP)
    try:
        b.peer_send(b.stream(), 1, source, size, peer)
        b.busy(LEGACY)
        time.sleep(0.2)  # what is between them is full
        released = struct.pack("<QiI", handle(KIND_CONTEXT, 1), 0, 0)
        assert b.result("gp_primary_release", released) == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    again = struct.pack("<QiI", handle(KIND_CONTEXT, 2), 0, 0)
    assert b.result("gp_primary_retain", again) == 0


def test_counted(pair: Pair, server: PoolServer) -> None:
    """By the workers; the bytes have not passed the client."""
    a, b = pair
    size = 5 * CHUNK + 3
    a.peer_send(LEGACY, 1, a.allocate(size), size)
    b.peer_recv(LEGACY, 1, b.allocate(size), size)
    assert a.synchronize() == b.synchronize() == 0

    def counts() -> list[tuple[Any, Any]]:
        """Nothing of a worker that did not answer in time."""
        both = (described(server, worker) for worker in pair)
        return [(each.get("peer_bytes_sent"), each.get("peer_bytes_received")) for each in both]

    # the sender counts a piece behind its way, which nothing waits for
    wait_until(lambda: counts() == [(size, 0), (0, size)], "all was counted")
