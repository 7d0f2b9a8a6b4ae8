"""Closing without waiting, whatever it is that is closed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool_common.closer import MOST_AT_ONCE, Closer, brings, take_no_descriptors
from gpupool_common.relay import listen_at
from lingering import lingering
from server_harness import eventually


@pytest.fixture
def closer() -> Iterator[Closer]:
    made = Closer()
    yield made
    made.end()


def process_of(closer: Closer) -> int:
    assert closer._process is not None
    return closer._process.pid


def hung_up(other: socket.socket) -> bool:
    other.setblocking(False)
    try:
        return other.recv(16) == b""
    except BlockingIOError:
        return False


async def test_what_lingers_keeps_nobody(closer: Closer) -> None:
    with lingering() as one:
        closer.close(one.end.detach())
        ours, other = socket.socketpair()
        with other:
            closer.close(ours.detach())
            await eventually(lambda: hung_up(other))
        assert not one.waited


async def test_what_lies_unread_keeps_nobody(closer: Closer) -> None:
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with lingering() as one, other:
        socket.send_fds(other, [b"first"], [])
        socket.send_fds(other, [b"second"], [one.end.fileno()])
        one.end.close()
        assert not brings(ours)
        assert ours.recv(16) == b"first"
        assert brings(ours)
        closer.close(ours.detach())
        await eventually(lambda: hung_up_or_reset(other))
        assert not one.waited


def hung_up_or_reset(other: socket.socket) -> bool:
    try:
        return hung_up(other)
    except ConnectionResetError:  # our words were not read
        return True


async def test_a_process_that_has_died_is_started_again(closer: Closer) -> None:
    for kill in (False, True):
        if kill:
            before = process_of(closer)
            os.kill(before, 9)
            os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
        ours, other = socket.socketpair()
        with other:
            closer.close(ours.detach())
            await eventually(lambda other=other: hung_up(other))  # type: ignore[misc]
    assert process_of(closer) != before


async def test_one_that_does_not_keep_up_is_another(closer: Closer) -> None:
    closer.close(os.dup(0))
    before = process_of(closer)
    os.kill(before, 19)
    for _ in range(10000):
        closer.close(os.dup(0))
        if process_of(closer) != before:
            break
    assert process_of(closer) != before


async def test_many_at_once(closer: Closer) -> None:
    pairs = [socket.socketpair() for _ in range(MOST_AT_ONCE + 3)]
    closer.close(*(ours.detach() for ours, _ in pairs))
    for _, other in pairs:
        await eventually(lambda other=other: hung_up(other))  # type: ignore[misc]
        other.close()


def send_refused(other: socket.socket) -> None:
    try:
        socket.send_fds(other, [b"x"], [0])
    except PermissionError:
        other.send(b"y")
    else:
        pytest.skip("this kernel cannot refuse them: Linux 6.16 can")


def test_descriptors_that_are_not_taken_do_not_come() -> None:
    ours, other = socket.socketpair()
    with ours, other:
        take_no_descriptors(ours)
        send_refused(other)
        assert ours.recv(4) == b"y"


def test_a_front_end_takes_none(folder: Path) -> None:
    listener, _ = listen_at(f"ipc://{folder}/front")
    with listener, socket.socket(socket.AF_UNIX) as other:
        other.connect(f"{folder}/front")
        send_refused(other)
