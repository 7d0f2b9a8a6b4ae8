"""The process at the front end: what it lets through, and what its owner takes from it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import uvloop
import zmq
import zmq.asyncio
from structlog.testing import capture_logs

from gpupool_common import protocol
from gpupool_common.hosts import limited_as
from gpupool_common.relay import Relay
from gpupool_common.relay_limits import CELLS, Budgets, Connections
from gpupool_common.relay_process import MOST_FRAMES, Config
from gpupool_common.relay_wire import MAX_PARTS, MAX_RECORD, Kind, RecordError, Unpacker, pack
from gpupool_manager.attempts import Attempts
from gpupool_server.server import Server
from ports import free_port
from server_harness import MakeServer, accepted, eventually, hello, refused


@pytest.fixture
def context() -> zmq.asyncio.Context:
    return zmq.asyncio.Context()


@pytest_asyncio.fixture
async def server(make_server: MakeServer) -> AsyncIterator[Server]:
    yield await make_server(listen=f"tcp://127.0.0.1:{free_port()}")


async def ask(context: zmq.asyncio.Context, url: str, question: bytes) -> bytes:
    asker = context.socket(zmq.DEALER)
    try:
        asker.connect(url)
        await asker.send(question)
        async with asyncio.timeout(30):
            answer: list[bytes] = await asker.recv_multipart()
        return answer[-1]
    finally:
        asker.close(linger=0)


# Records ------------------------------------------------------------------------------


def test_records_come_out_as_they_went_in() -> None:
    records = [(Kind.SEND, [b"who", b"", b"x" * 70_000]), (Kind.READY, []), (Kind.GONE, [b"a"])]
    stream = b"".join(pack(kind, *parts) for kind, parts in records)
    for step in (1, 7, 4096, len(stream)):
        unpacker = Unpacker()
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        assert [record for piece in pieces for record in unpacker.feed(piece)] == records


@pytest.mark.parametrize(
    "data",
    [
        (MAX_RECORD + 1).to_bytes(4, "little") + bytes((Kind.SEND, 1)),
        bytes(4) + bytes((Kind.SEND, MAX_PARTS + 1)),
        bytes(4) + bytes((99, 0)),
        bytes(4) + bytes((Kind.SEND, 1)),
        (4).to_bytes(4, "little") + bytes((Kind.SEND, 1)) + (1).to_bytes(4, "little"),
        (4).to_bytes(4, "little") + bytes((Kind.SEND, 1)) + b"\xff" * 4,
        (5).to_bytes(4, "little") + bytes((Kind.SEND, 1)) + bytes(5),
        (4).to_bytes(4, "little") + bytes((Kind.SEND, 0)) + bytes(4),
    ],
)
def test_records_that_are_none(data: bytes) -> None:
    with pytest.raises(RecordError):
        Unpacker().feed(data)


def test_no_record_is_made_that_would_not_be_taken() -> None:
    with pytest.raises(RecordError):
        pack(Kind.SEND, b"x" * (MAX_RECORD + 1))
    with pytest.raises(RecordError):
        pack(Kind.SEND, *[b""] * (MAX_PARTS + 1))


# Limits -------------------------------------------------------------------------------


def test_a_budget_is_spent_and_comes_back() -> None:
    now = [100.0]
    budgets = Budgets(rate=2, most=3, clock=lambda: now[0])
    assert [budgets.spend(b"a") for _ in range(5)] == [True] * 3 + [False] * 2
    assert budgets.spend(b"b") or not budgets.left(b"b")  # a neighbour, or by bad luck the same
    now[0] += 0.5
    assert [budgets.spend(b"a") for _ in range(2)] == [True, False]
    now[0] += 1000
    assert [budgets.spend(b"a") for _ in range(4)] == [True] * 3 + [False]


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff:ffff:ffff:ffff]", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::2", "fe80::2"),
        ("::1", "::/64"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_whom_a_limit_is_for(address: str, whose: str) -> None:
    """One machine has a whole /64: each address of it had limits of its own."""
    assert limited_as(address) == whose


def test_a_network_of_one_machine_has_one_budget() -> None:
    budgets = Budgets(rate=0, most=3)
    spent = [budgets.spend(f"2001:db8:0:1::{n:x}".encode()) for n in range(1, 6)]
    assert spent == [True] * 3 + [False] * 2
    attempts = Attempts(burst=3, clock=lambda: 0.0)
    for n in range(3):
        assert not attempts.too_many(f"2001:db8::{n:x}")
        attempts.count(f"2001:db8::{n:x}")
    assert attempts.too_many("2001:db8::ffff") and not attempts.too_many("2001:db8:0:1::1")


def test_connections_of_one_network_end_its_own_oldest() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    table = Connections(most=5, most_of_one=1)
    with listener:
        pairs = [
            (socket.create_connection(listener.getsockname()[:2], 5), listener.accept()[0])
            for _ in range(2)
        ]
    assert [table.opened(theirs.fileno()) for _, theirs in pairs] == [None, "::/64"]
    for pair in pairs:
        for each in pair:
            each.close()


def test_budgets_take_no_memory_of_strangers() -> None:
    budgets = Budgets(rate=0, most=1)
    spent = sum(
        budgets.spend(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}".encode()) for n in range(20_000)
    )
    assert 0 < spent <= CELLS


def test_connections_of_one_address_end_its_own_oldest() -> None:
    table = Connections(most=5, most_of_one=3)
    pairs = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for host in ("127.0.0.1", *["127.0.0.2"] * 4, "127.0.0.3", "127.0.0.4"):
            client = socket.create_connection(listener.getsockname(), 5, (host, 0))
            theirs, _ = listener.accept()
            pairs.append((client, theirs))
            table.opened(theirs.fileno())
    ended = []
    for client, _ in pairs:
        client.settimeout(0.05)
        try:
            ended.append(client.recv(1) == b"")
        except TimeoutError:
            ended.append(False)
    # Of the crowd, for its own and for a newcomer: who was there first may be a node.
    assert ended == [False, True, True, False, False, False, False]
    assert len(table) == 5
    for client, theirs in pairs:
        table.closed(theirs.fileno())
        client.close()
        theirs.close()
    assert len(table) == 0


# The process --------------------------------------------------------------------------


async def test_wrong_tokens_of_one_address_are_not_read_any_more(
    server: Server, context: zmq.asyncio.Context
) -> None:
    """Whoever tries tokens is refused unread, after some; others are answered."""
    codes = []
    for _ in range(200):
        code, message = refused(await ask(context, server.url, hello(token="wrong")))
        codes.append(code)
        if code == "busy":  # the next one may be read again: one a second is
            break
    assert set(codes[:-1]) == {"bad-token"}
    assert (code, "this client's address" in message) == ("busy", True)
    asker = context.socket(zmq.DEALER)
    asker.connect(server.url.replace("tcp://", "tcp://127.0.0.3:0;"))
    await asker.send(hello())
    async with asyncio.timeout(30):
        accepted((await asker.recv_multipart())[-1])
    asker.close(linger=0)
    async with asyncio.timeout(60):  # it refills
        while protocol.decode(await ask(context, server.url, hello())).word != "ok":
            await asyncio.sleep(0.3)


async def test_who_has_shown_a_right_token_is_heard_until_it_shows_a_wrong_one(
    context: zmq.asyncio.Context,
) -> None:
    heard: list[tuple[bytes, bytes]] = []
    relay = Relay(
        Config("tcp://127.0.0.1:*", 4096, 4, wrong_rate=0, wrong_burst=2),
        lambda connection, address, user, frames: heard.append((connection, frames[-1])),
    )
    askers = [context.socket(zmq.DEALER) for _ in range(3)]
    try:
        for number, asker in enumerate(askers):
            asker.connect(relay.url)
            await asker.send(b"first")
            await eventually(lambda count=number + 1: len(heard) == count)  # type: ignore[misc]
        good, bad, third = (connection for connection, _ in heard)
        heard.clear()
        for each in (good, bad):
            relay.known(each)
        for _ in range(2):
            relay.wrong("127.0.0.1", bad)
        # An answer comes behind what was said before.
        relay.send(good, b"now")
        await askers[0].recv()
        for asker in reversed(askers):
            await asker.send(b"second")
        await askers[0].send(b"third")
        await eventually(lambda: (good, b"third") in heard)
        assert heard == [(good, b"second"), (good, b"third")]
        relay.wrong("127.0.0.1", good)
        relay.send(good, b"now")
        relay.known(third)
        await askers[0].recv()
        await askers[0].send(b"fourth")
        await askers[2].send(b"fifth")
        await eventually(lambda: (third, b"fifth") in heard)
    finally:
        for asker in askers:
            asker.close(linger=0)
        await relay.close()
    assert (good, b"fourth") not in heard


async def test_refusals_name_the_client_s_address(
    server: Server, context: zmq.asyncio.Context
) -> None:
    with capture_logs() as captured:
        refused(await ask(context, server.url, hello(token="wrong")))
        refused(await ask(context, server.url, b"junk"))
    lines = [line for line in captured if line["event"] == "refused"]
    assert [(line["code"], line["address"]) for line in lines] == [
        ("bad-token", "127.0.0.1"),
        ("bad-request", "127.0.0.1"),
    ]


async def test_messages_of_long_frames_end_nothing(context: zmq.asyncio.Context) -> None:
    """Each frame was within the limit and all together beyond a record, which ended the process."""
    heard: list[list[bytes]] = []

    def on_message(connection: bytes, address: str, user: str, frames: list[bytes]) -> None:
        heard.append(frames)

    relay = Relay(Config("tcp://127.0.0.1:*", 2 << 20, 4), on_message)
    asker = context.socket(zmq.DEALER)
    try:
        asker.connect(relay.url)
        for count in (1, 2, 3, 9):
            await asker.send_multipart([b"x" * (2 << 20)] * count)
        await asker.send(b"last")
        await eventually(lambda: len(heard) == 5)
        assert relay.pid != 0
        first = relay.pid
        assert heard == [[b"x" * (2 << 20)], [b""] * 2, [b""] * 3, [b""] * MOST_FRAMES, [b"last"]]
        await asker.send(b"again")
        await eventually(lambda: len(heard) == 6)
        assert relay.pid == first
    finally:
        asker.close(linger=0)
        await relay.close()


def send_without_end(port: int, most: int) -> int:
    """A message whose frames never are the last; how many bytes went before the other end hung up.

    A number above ``most`` means that it did not.
    """
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    frame = b"\x03" + (30_000).to_bytes(8, "big") + bytes(30_000)
    sent = 0
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        connection.sendall(greeting)
        answers = connection.makefile("rb")  # MSG_WAITALL does not wait where there is a time-out
        assert len(answers.read(64)) == 64
        connection.sendall(bytes((4, len(ready))) + ready)
        head = answers.read(2)
        assert len(answers.read(head[1])) == head[1]
        try:
            while sent <= most:
                connection.sendall(frame)
                sent += len(frame)
        except OSError:
            pass
    return sent


async def test_a_message_without_end_fills_no_memory() -> None:
    """libzmq keeps every frame until the last has come, and has no limit for their number."""
    heard: list[list[bytes]] = []
    relay = Relay(
        Config("tcp://127.0.0.1:*", 32 << 10, 4, memory=128 << 20),
        lambda connection, address, user, frames: heard.append(frames),
    )
    port = int(relay.url.rpartition(":")[2])
    try:
        for _ in range(2):
            sent = await asyncio.to_thread(send_without_end, port, 512 << 20)
            assert 1 << 20 < sent < 160 << 20
        asker = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        asker.connect(relay.url)
        await asker.send(b"others")
        await eventually(lambda: heard == [[b"others"]])
        asker.close(linger=0)
    finally:
        await relay.close()


async def test_a_relay_that_says_what_it_must_not_is_made_anew() -> None:
    """It may have been taken over: its words are checked, and it goes."""
    heard: list[list[bytes]] = []

    def on_message(connection: bytes, address: str, user: str, frames: list[bytes]) -> None:
        heard.append(frames)

    relay = Relay(Config("tcp://127.0.0.1:*", 4096, 4), on_message)
    try:
        await eventually(lambda: relay.pid != 0)
        first = relay.pid
        with pytest.raises(RecordError):
            relay._take(Kind.CONFIG, [b""])
        with pytest.raises(RecordError):
            relay._take(Kind.MESSAGE, [b"who"])
        assert relay._process is not None
        relay._process.kill()
        await eventually(lambda: relay.pid not in (0, first))
    finally:
        await relay.close()
    assert heard == []


def test_a_relay_that_ends_with_words_unread_fails_nobody_s_answer() -> None:
    """Its owner takes messages one by one, and so sees its end late; until then uvloop raised
    RuntimeError in whoever had an answer."""

    async def answer() -> None:
        room = asyncio.Semaphore(0)
        heard: list[bytes] = []
        relay = Relay(
            Config("tcp://127.0.0.1:*", 4096, 4),
            lambda connection, address, user, frames: heard.append(frames[-1]),
            room=room,
        )
        asker: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        try:
            asker.connect(relay.url)
            asker.send(b"question")
            await eventually(lambda: bool(room._waiters))
            first = relay.pid
            os.kill(first, signal.SIGSTOP)
            os.waitid(os.P_PID, first, os.WSTOPPED | os.WNOWAIT)
            relay.send(b"who", b"answer")
            os.kill(first, signal.SIGKILL)
            os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
            await asyncio.sleep(0.1)  # that the loop sees it
            relay.send(b"who", b"answer")
            relay.known(b"who")
            relay.wrong("127.0.0.1", b"who")
            assert heard == []
            room.release()
            await eventually(lambda: relay.pid not in (0, first))
        finally:
            asker.close(linger=0)
            await relay.close()
        assert heard == [b"question"]

    uvloop.run(answer())
