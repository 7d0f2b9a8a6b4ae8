"""Bytes and signals between the GPUs of two workers, which never pass the client."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from harness import PoolServer
from peer_client import CHUNK, LEGACY, Worker, join, worker_of

Pair = tuple[Worker, Worker]


@pytest.fixture
def pair(server: PoolServer) -> Iterator[Pair]:
    """Two workers that are joined."""
    with worker_of(server) as a, worker_of(server) as b:
        join(a, b)
        yield a, b


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


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
