"""Memory that the client hands out again by itself: counted, modelled, asked for by a stranger."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from gpupool.admin import Admin
from harness import DRIVER, PoolServer, wait_until
from peer_client import INVALID_VALUE, Worker, worker_of
from toolchain import Toolchain

pytestmark = pytest.mark.real_gpu

MIB = 1 << 20


def churn(toolchain: Toolchain, server: PoolServer, transport: str, *arguments: str) -> int:
    """How often it waited."""
    result = server.run([str(toolchain.driver_program("churn")), *arguments], transport)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1] == "PASS churn"
    return int(result.stats["round_trips"] + result.stats["gpu_waits"])


@pytest.mark.parametrize("size", [1, 4096, MIB // 2, MIB, 2 * MIB])
def test_a_thousand_pairs_cost_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str, size: int
) -> None:
    few = churn(toolchain, server, transport, "pairs", "1", str(size))
    many = churn(toolchain, server, transport, "pairs", "1001", str(size))
    assert many == few


def test_what_is_freed_under_work_is_not_given_again_before_its_end(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    churn(toolchain, server, transport, "beside", "60")


def test_every_byte_of_many_threads(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    churn(toolchain, server, transport, "threads", "8")


def test_every_byte_over_two_devices(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    if DRIVER == "cuda":
        pytest.skip("it wants two devices")
    churn(toolchain, server, transport, "across", "6")


# A client that says what it likes ------------------------------------------------------------


def take(at: int, size: int) -> bytes:
    return struct.pack("<QQ", at, size)


def free(at: int, *, idle: bool) -> bytes:
    return struct.pack("<QI4x", at, idle)


def spare(worker: Worker, size: int = MIB) -> int:
    """An allocation that was freed, and that the client may choose again."""
    at = worker.allocate(size)
    assert worker.result("gp_memory_free", free(at, idle=True)) == 0
    return at


def sessions(server: PoolServer) -> list[str]:
    status: dict[str, Any] = Admin(server.folder / "run").ask({"do": "status"})
    return [str(s["session"]) for s in status["sessions"]]


def wait_for_end(server: PoolServer, worker: Worker) -> None:
    """The worker ends the session, and the server knows it no more."""
    wait_until(lambda: worker.session["session"] not in sessions(server), "the session ended")


def left(worker: Worker) -> int:
    """What cuMemGetInfo says is free."""
    result, free = struct.unpack_from("<i4xQ", worker.call("cuMemGetInfo_v2"))
    assert result == 0
    return int(free)


def test_a_piece_is_chosen_once(server: PoolServer) -> None:
    with worker_of(server) as worker:
        at = spare(worker)
        assert worker.result("gp_memory_take", take(at, MIB)) == 0
        worker.write(at, b"\x11" * 4096)
        assert worker.read(at, 4096) == b"\x11" * 4096
        worker.tell("gp_memory_take", take(at, MIB))
        wait_for_end(server, worker)


WRONG = {
    "where nothing was": lambda at: take(at + 64 * MIB, MIB),
    "in the middle": lambda at: take(at + 512, MIB),
    "of another size": lambda at: take(at, 512),
    "larger than it is": lambda at: take(at, 3 * MIB),
    "nothing": lambda at: take(at, 0),
    "all there is": lambda at: take(at, (1 << 64) - 1),
    "no memory of the session's": lambda at: take(0x1000, MIB),
    "what is reserved": lambda at: take(at | 1 << 39, MIB),
    "at the end of addresses": lambda at: take((1 << 64) - 512, 512),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_choice_ends_the_session(server: PoolServer, what: str) -> None:
    with worker_of(server) as worker:
        worker.tell("gp_memory_take", WRONG[what](spare(worker)))
        wait_for_end(server, worker)


def test_what_the_worker_took_back_is_chosen_no_more(server: PoolServer) -> None:
    """cuMemGetInfo tells what is free, and gives back what is kept."""
    with worker_of(server) as worker:
        at = spare(worker)
        worker.call("cuMemGetInfo_v2")
        worker.tell("gp_memory_take", take(at, MIB))
        wait_for_end(server, worker)


def test_frees_of_what_is_not_allocated(server: PoolServer) -> None:
    with worker_of(server) as worker:
        at = spare(worker)
        for address in (at, at + 512, 0, 0x1000, (1 << 64) - 8):
            for idle in (False, True):
                assert worker.result("gp_memory_free", free(address, idle=idle)) == INVALID_VALUE
        assert worker.result("gp_memory_take", take(at, MIB)) == 0


def test_one_granule_of_a_size_is_kept(server: PoolServer) -> None:
    """However many are freed so: the others are given back, and the last one is the client's."""
    with worker_of(server) as worker:
        wait_until(lambda: sessions(server) == [worker.session["session"]], "no other has memory")
        whole = left(worker)
        several = [worker.allocate(MIB) for _ in range(8)]
        for at in several:
            assert worker.result("gp_memory_free", free(at, idle=True)) == 0
        assert worker.result("gp_memory_take", take(several[-1], MIB)) == 0
        assert whole - left(worker) == 2 * MIB
        worker.tell("gp_memory_take", take(several[0], MIB))
        wait_for_end(server, worker)
