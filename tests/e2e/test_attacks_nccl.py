"""Collectives that a client without our library makes up: NCCL is told to touch what is the
session's own, or is not asked at all."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count

import pytest

from harness import PATIENCE, PoolServer, wait_until
from peer_client import LEGACY, Worker, sessions_like, worker_of
from raw_client import NUMBERS, handle

KIND_COMMUNICATOR = 18
INVALID_HANDLE = 400
SUCCESS, INVALID_ARGUMENT, IN_PROGRESS = 0, 4, 7
DEFAULTS = struct.pack("<12i", *[-(1 << 31)] * 12)
ID = 128
FLOAT, DOUBLE = 7, 8
MOST_RANKS = 65536

#: The numbers of functions (gp_nccl_calls.h).
ALL_REDUCE, BCAST, ALL_GATHER, SCATTER, SEND, FUNCTIONS = 0, 3, 5, 8, 9, 11

SIZE = 1 << 20


class Ranks:
    """A worker, and communicators in it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.memory = worker.allocate(SIZE)
        self._numbers = count(1)

    def unique_id(self) -> bytes:
        reply = self.worker.call("gp_nccl_unique_id")
        assert struct.unpack_from("<i4xiI", reply) == (0, SUCCESS, ID)
        return reply[16 : 16 + ID]

    def init(self, ids: bytes, ranks: int = 1, rank: int = 0) -> tuple[int, int]:
        """A communicator, and what NCCL says of it."""
        comm = handle(KIND_COMMUNICATOR, next(self._numbers))
        head = struct.pack("<QiiII", comm, ranks, rank, len(ids) // ID, len(ids))
        reply = self.worker.call("gp_nccl_init", head + DEFAULTS + ids)
        result, said = struct.unpack_from("<i4xi", reply)
        assert result == 0
        return comm, int(said)

    def alone(self) -> int:
        """One of a single rank, that is made."""
        comm, said = self.init(self.unique_id())
        assert said == SUCCESS
        assert self.settled(comm) == (SUCCESS, SUCCESS)
        return comm

    def settled(self, comm: int) -> tuple[int, int]:
        reply = self.worker.call("gp_nccl_settled", struct.pack("<Q", comm))
        result, length = struct.unpack_from("<i4xI", reply)
        assert (result, length) == (0, 8)
        first, second = struct.unpack_from("<ii", reply, 16)
        return int(first), int(second)

    def tell_settled(self, comm: int) -> None:
        """Nobody waits for the answer."""
        number = NUMBERS["gp_nccl_settled"]
        self.worker.send([self.worker.message(number, struct.pack("<Q", comm))])

    def group(self, *calls: bytes) -> None:
        data = b"".join(calls)
        head = struct.pack("<QIIII", LEGACY, 1, len(calls), len(data), 0)[:-4]
        self.worker.tell("gp_nccl_group", head + bytes(-len(head) % 8) + data)

    def call(
        self,
        comm: int,
        function: int = ALL_REDUCE,
        *,
        send: int | None = None,
        recv: int | None = None,
        elements: int = 1,
        datatype: int = FLOAT,
        operation: int = 0,
        peer: int = 0,
    ) -> bytes:
        send, recv = (self.memory if at is None else at for at in (send, recv))
        numbers = (elements, function, datatype, operation, peer)
        return struct.pack("<QQQQQIiii", comm, LEGACY, send, recv, *numbers)

    def end(self, comm: int) -> int:
        return self.worker.result("gp_nccl_end", struct.pack("<QI4x", comm, 1))

    def last_error(self) -> str:
        reply = self.worker.call("gp_nccl_last_error", struct.pack("<Q", 0))
        return reply[16:].split(b"\0", 1)[0].decode()

    def is_well(self) -> None:
        comm = self.alone()
        self.group(self.call(comm))
        assert self.settled(comm) == (SUCCESS, SUCCESS)
        assert self.end(comm) == 0


@pytest.fixture
def ranks(server: PoolServer) -> Iterator[Ranks]:
    with worker_of(server) as worker:
        yield Ranks(worker)


def ends(server: PoolServer, worker: Worker) -> None:
    wait_until(lambda: not sessions_like(server, worker), "the session ends")


@pytest.mark.parametrize("elements", [SIZE, (1 << 61) + 1, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_lengths_beyond_the_memory(ranks: Ranks, elements: int) -> None:
    """Also those that wrap round with the type, or with the number of ranks."""
    for function in range(FUNCTIONS):
        for datatype in (FLOAT, DOUBLE):
            comm = ranks.alone()
            ranks.group(ranks.call(comm, function, elements=elements, datatype=datatype))
            assert ranks.settled(comm)[1] == INVALID_ARGUMENT
            assert ranks.end(comm) == 0
    ranks.is_well()


def test_memory_of_the_worker(ranks: Ranks) -> None:
    beyond = ranks.memory + SIZE - 3
    for at in (0, 4096, beyond, 0x7FFF_0000_0000, (1 << 64) - 4):
        for ends_there in ({"send": at}, {"recv": at}):
            comm = ranks.alone()
            ranks.group(ranks.call(comm, **ends_there))
            assert ranks.settled(comm)[1] == INVALID_ARGUMENT
            body = struct.pack("<QQQ", comm, at, 4)
            ranks.worker.call("gp_nccl_register", body)
            assert ranks.end(comm) == 0
    comm = ranks.alone()
    for at, size in ((4096, 4), (ranks.memory, SIZE + 1), (ranks.memory, (1 << 64) - 1)):
        reply = ranks.worker.call("gp_nccl_register", struct.pack("<QQQ", comm, at, size))
        assert struct.unpack_from("<i4xi", reply) == (0, INVALID_ARGUMENT)
        reply = ranks.worker.call("gp_nccl_operation", struct.pack("<QQii", comm, at, FLOAT, 0))
        if at == 4096:  # where a scalar would be read
            assert struct.unpack_from("<i4xi", reply) == (0, INVALID_ARGUMENT)
    ranks.is_well()


@pytest.mark.parametrize(
    "wrong",
    [
        {"function": FUNCTIONS},
        {"function": (1 << 32) - 1},
        {"datatype": -1},
        {"datatype": 12},
        {"operation": -1},
        {"operation": 5},
        {"operation": (1 << 31) - 1},
        {"function": BCAST, "peer": 1},
        {"function": BCAST, "peer": -1},
        {"function": SCATTER, "peer": 1 << 30},
        {"function": SEND, "peer": -(1 << 31)},
    ],
)
def test_calls_that_are_none(ranks: Ranks, wrong: dict[str, int]) -> None:
    comm = ranks.alone()
    ranks.group(ranks.call(comm), ranks.call(comm, **wrong))
    assert ranks.settled(comm)[1] == INVALID_ARGUMENT
    ranks.is_well()


def test_ranks_that_cannot_be(ranks: Ranks) -> None:
    ids = ranks.unique_id()
    for number, rank in ((0, 0), (-1, 0), (1, 1), (1, -1), (-(1 << 31), -1)):
        assert ranks.init(ids, number, rank)[1] == INVALID_ARGUMENT
    for number in (MOST_RANKS + 1, (1 << 31) - 1):
        assert ranks.init(ids, number, number - 1)[1] == INVALID_ARGUMENT
        assert f"at most {MOST_RANKS} ranks" in ranks.last_error()
    assert ranks.init(ids * 3, 2)[1] == INVALID_ARGUMENT
    ranks.is_well()


def test_ids_that_were_changed(ranks: Ranks) -> None:
    ids = ranks.unique_id()
    for at in (0, 40, 95, 96, 127):
        forged = bytearray(ids)
        forged[at] ^= 1
        assert ranks.init(bytes(forged))[1] == INVALID_ARGUMENT
    assert ranks.init(bytes(ID))[1] == INVALID_ARGUMENT
    assert ranks.init(ids)[1] == SUCCESS


def test_an_end_is_the_end(ranks: Ranks) -> None:
    comm = ranks.alone()
    assert ranks.end(comm) == 0
    assert ranks.end(comm) == INVALID_HANDLE
    assert ranks.worker.result("gp_nccl_state", struct.pack("<Q", comm)) == INVALID_HANDLE
    for number in (0, 1, 4096, 1 << 63):
        ranks.worker.call("gp_nccl_deregister", struct.pack("<QQ", ranks.alone(), number))
        ranks.worker.call("gp_nccl_operation_end", struct.pack("<QQ", ranks.alone(), number))
    ranks.is_well()


@pytest.mark.parametrize("calls", [0, 1, 4097])
def test_a_group_that_no_client_sends(server: PoolServer, calls: int) -> None:
    """Of a communicator that is another session's, of too many calls, or of none."""
    with worker_of(server) as a, worker_of(server) as b:
        one, other = Ranks(a), Ranks(b)
        others = [other.alone() for _ in range(3)][-1]
        own = one.alone()
        one.group(*[one.call(own if calls > 1 else others)] * calls)
        ends(server, a)
        other.is_well()


def test_waits_for_who_never_comes_are_counted(server: PoolServer) -> None:
    """They are memory of the host's, of which a session has a budget."""
    with worker_of(server) as worker:
        ranks = Ranks(worker)
        comm, said = ranks.init(ranks.unique_id(), 2)
        assert said in (IN_PROGRESS, SUCCESS)

        def waits() -> int | None:
            """None: the worker did not answer in time."""
            (shown,) = sessions_like(server, worker)
            kinds = shown.get("host_bytes_by_kind")
            return kinds and int(kinds["waits"])

        wait_until(lambda: waits() == 0, "nothing waits", PATIENCE)
        for _ in range(500):
            ranks.tell_settled(comm)
        wait_until(lambda: (waits() or 0) >= 500 * 32, "they are counted", PATIENCE)
        assert ranks.end(comm) == 0
        wait_until(lambda: waits() == 0, "they are given back", PATIENCE)
        ranks.is_well()
