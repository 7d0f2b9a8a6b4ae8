"""Memory and events that processes of one lease have in common: who gets them, who pays."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from gpupool.admin import Admin
from harness import PATIENCE, PoolServer, Talk, wait_until
from peer_client import INVALID_VALUE, worker_of
from raw_client import handle
from tenants import BLUE, RED, MakeServer, StartTalk, tell
from toolchain import Toolchain

LIMITED = """
[tenants.red]
token = "token-of-red"
memory = "256MiB"

[tenants.blue]
token = "token-of-blue"
memory = "256MiB"
"""

MEMORY, RANGE, EVENT = 1, 2, 3
KIND_MEMPOOL = 10
MAGIC = 0x63706967
MIB = 1 << 20

Start = Callable[..., Talk]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolServer]:
    """A server whose tenants have limits."""
    path = tmp_path_factory.mktemp("limited") / "server.toml"
    path.write_text(LIMITED)
    made = PoolServer(config=str(path), **{"soft-gpus": "2", "soft-memory": "1GiB"})
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def start(limited: PoolServer, toolchain: Toolchain, talk: StartTalk) -> Start:
    """Programs that share what they are told (programs/driver_ipc_talk.c)."""

    def begin(transport: str = "shm", server: PoolServer | None = None, **request: str) -> Talk:
        command = [str(toolchain.driver_program("driver_ipc_talk"))]
        if server is None:
            env = limited.environment(transport, **(request or RED))
        else:
            env = server.environment(transport)
        program = talk(command, env)
        assert program.line() == "ready"
        return program

    return begin


def handle_of(program: Talk, what: str) -> str:
    """The handle of what it makes, in hexadecimal digits."""
    word, handle = tell(program, what).split()
    assert word == "handle"
    return handle


def end(*programs: Talk) -> None:
    for program in programs:
        program.say("end")
        result = program.finish()
        assert result.returncode == 0, result.explain()


@pytest.mark.parametrize(("one", "other"), [("shm", "tcp"), ("tcp", "shm")])
def test_transports_have_no_part_in_it(start: Start, one: str, other: str) -> None:
    a, b = start(one), start(other)
    handle = handle_of(a, "take 4")
    assert tell(b, f"open {handle}") == "opened"
    assert tell(a, "fill 7") == "filled"
    assert tell(b, "read") == "holds 7"
    assert tell(b, "fill 8") == "filled"
    assert tell(a, "read") == "holds 8"
    end(b, a)


def test_devices_are_those_that_a_process_sees(start: Start) -> None:
    """What is the one's first device may be the other's second, or none of it."""
    only, both = start(**RED, CUDA_VISIBLE_DEVICES="1"), start(**RED, CUDA_VISIBLE_DEVICES="1,0")
    handle, path = handle_of(only, "take 4"), tell(only, "export 4").split()[1]
    assert tell(both, f"open {handle}") == "opened"
    assert tell(only, "fill 7") == "filled"
    assert tell(both, "read") == "holds 7"
    assert tell(both, "close") == "closed"
    assert tell(both, f"import {path}") == "imported"
    blind = start(**RED, CUDA_VISIBLE_DEVICES="0")
    assert tell(blind, f"open {handle}") == "CUDA_ERROR_MAP_FAILED"
    assert tell(blind, f"import {path}") == "CUDA_ERROR_INVALID_DEVICE"
    end(blind, both, only)


# Who gets it -----------------------------------------------------------------------------


def test_another_tenant_gets_nothing(start: Start) -> None:
    """Who has the handle of another lease's memory, or the file, has nothing of it."""
    a, b = start(), start(**BLUE)
    handle = handle_of(a, "take 4")
    event = handle_of(a, "event")
    path = tell(a, "export 4").split()[1]
    assert tell(b, f"open {handle}") == "CUDA_ERROR_MAP_FAILED"
    assert tell(b, f"watch {event}") == "CUDA_ERROR_MAP_FAILED"
    assert tell(b, f"import {path}") == "CUDA_ERROR_INVALID_VALUE"
    end(b, a)


def test_nothing_is_behind_a_handle_after_the_free(start: Start) -> None:
    a, b = start(), start()
    handle = handle_of(a, "take 4")
    assert tell(b, f"open {handle}") == "opened"
    assert tell(b, "close") == "closed"
    assert tell(a, "free") == "freed"
    assert tell(a, "take 4") != handle
    wait_until(lambda: tell(b, f"open {handle}") == "CUDA_ERROR_MAP_FAILED", "it is gone")
    end(b, a)


def test_a_handle_of_another_server_cannot_be_mapped(start: Start, make_server: MakeServer) -> None:
    a, b = start(), start(server=make_server())
    handle = handle_of(a, "take 4")
    assert tell(b, f"open {handle}") == "CUDA_ERROR_MAP_FAILED"
    end(b, a)


@pytest.mark.parametrize("what", ["take 4", "event"])
def test_a_handle_is_for_what_it_names(start: Start, what: str) -> None:
    a, b = start(), start()
    handle = handle_of(a, what)
    wrong = "watch" if what == "take 4" else "open"
    assert tell(b, f"{wrong} {handle}") == "CUDA_ERROR_INVALID_VALUE"
    for at in (0, 16, 40, 44):  # token, session, magic, kind
        forged = bytearray.fromhex(handle)
        forged[at] ^= 1
        right = "open" if what == "take 4" else "watch"
        assert tell(b, f"{right} {forged.hex()}") in (
            "CUDA_ERROR_INVALID_VALUE",
            "CUDA_ERROR_MAP_FAILED",
        )
    end(b, a)


def test_a_server_that_is_started_again_goes_on(start: Start, make_server: MakeServer) -> None:
    server = make_server()
    a, b = start(server=server), start(server=server)
    handle = handle_of(a, "take 4")
    server.kill()
    server.start()
    assert tell(b, f"open {handle}") == "opened"
    end(b, a)


def test_a_pool_is_for_its_lease_while_it_is_there(start: Start) -> None:
    a, b, c = start(), start(), start(**BLUE)
    word, path, piece = tell(a, "pool 4").split()
    assert word == "pool"
    assert tell(c, f"piece {path} {piece}") == "CUDA_ERROR_INVALID_VALUE"
    for at in (0, 16, 40, 44, 48):  # token, session, magic, kind, the pool's token
        forged = bytearray.fromhex(piece)
        forged[at] ^= 1
        assert tell(b, f"piece {path} {forged.hex()}") == "CUDA_ERROR_INVALID_VALUE"
    assert tell(b, f"piece {path} {piece}") == "opened"
    assert tell(a, f"piece {path} {piece}") == "CUDA_ERROR_INVALID_VALUE"  # its own
    assert tell(a, "leave") == "left"
    wait_until(lambda: tell(b, f"piece {path} {piece}") == "CUDA_ERROR_INVALID_VALUE", "it is gone")
    end(b, a, c)


# Who pays ----------------------------------------------------------------------------------


def fits(program: Talk, mib: int) -> bool:
    """Whether so much may be allocated beside what there is."""
    if not tell(program, f"take {mib}").startswith("handle "):
        return False
    assert tell(program, "free") == "freed"
    return True


def is_charged(server: PoolServer, program: Talk, mib: int) -> bool:
    """Whether a program's session is charged for so much."""
    status = Admin(server.folder / "run").ask({"do": "status"})
    (own,) = (s["pid"] for s in status["sessions"] if s["client_pid"] == program.process.pid)
    tenants = [tenant for gpu in status["gpus"] for tenant in gpu["tenants"]]
    found = [p for tenant in tenants for p in tenant["processes"] if p["pid"] == own]
    return sum(int(process["memory_used_bytes"]) for process in found) == mib * MIB


def test_memory_is_charged_once(start: Start, limited: PoolServer) -> None:
    """Of 256 MiB one process has 128, which another opens: 96 more fit, 160 do not. So it stays
    when the one that has made it dies, and until the last has closed it."""
    a, b, c = start(), start(), start()
    handle = handle_of(a, "take 128")
    assert tell(b, f"open {handle}") == "opened"
    assert fits(c, 96)
    assert not fits(c, 160)
    a.process.kill()
    a.process.wait(PATIENCE)
    # To try what fits would take it before the other is charged, and end its session by that.
    wait_until(lambda: is_charged(limited, b, 128), "the other process is charged")
    assert not fits(c, 160)
    assert fits(c, 96)
    assert tell(b, "fill 5") == "filled"
    assert tell(b, "read") == "holds 5"
    assert tell(b, "close") == "closed"
    wait_until(lambda: fits(c, 160), "it is given back")
    end(b, c)


def test_a_pool_s_memory_is_charged_once(start: Start, limited: PoolServer) -> None:
    """As other memory: beyond the exporter's end, and until the importer has freed it."""
    a, b, c = start(), start(), start()
    _, path, piece = tell(a, "pool 128").split()
    assert tell(b, f"piece {path} {piece}") == "opened"
    assert fits(c, 96)
    assert not fits(c, 160)
    assert tell(a, "fill 6") == "filled"
    assert tell(a, "free") == "freed"
    assert not fits(c, 160)
    assert tell(b, "read") == "holds 6"
    a.process.kill()
    a.process.wait(PATIENCE)
    wait_until(lambda: is_charged(limited, b, 128), "the other process is charged")
    assert not fits(c, 160)
    assert tell(b, "read") == "holds 6"
    assert tell(b, "put") == "put"
    wait_until(lambda: fits(c, 160), "it is given back")
    end(b, c)


def test_memory_that_others_have_is_charged_behind_its_free(start: Start) -> None:
    a, b, c = start(), start(), start()
    path = tell(a, "export 128").split()[1]
    assert tell(b, f"import {path}") == "imported"
    assert tell(a, "release") == "released"
    assert not fits(c, 160)
    assert tell(b, "drop") == "dropped"
    wait_until(lambda: fits(c, 160), "it is given back")
    end(b, c, a)


# What no client of ours sends ------------------------------------------------------------


def name(kind: int, offset: int = 0, size: int = 0, magic: int = MAGIC) -> bytes:
    """A name that nobody has given."""
    return bytes(range(16)) + bytes(8) + struct.pack("<QQII", offset, size, magic, kind)


@pytest.mark.parametrize(
    "body",
    [name(0), name(5), name(RANGE, magic=0), name(MEMORY)],
    ids=["of no kind", "of a kind that is none", "without its magic", "of nobody's memory"],
)
def test_a_name_that_is_none(server: PoolServer, body: bytes) -> None:
    with worker_of(server) as worker:
        assert worker.result("gp_ipc_bring", body) == INVALID_VALUE
        assert worker.result("gp_ipc_map", body) == INVALID_VALUE
        assert worker.allocate(4096) != 0


def test_a_name_reaches_no_further_than_its_memory(server: PoolServer) -> None:
    """Where an allocation lies in what is shared is the client's word, once it has the token."""
    with worker_of(server) as a, worker_of(server) as b:
        size = 4 << 20
        reply = a.call("gp_ipc_name_range", struct.pack("<Q", a.allocate(size)))
        body = reply[8:56]
        token = body[:24]
        assert b.result("gp_ipc_bring", body) == 0
        for offset, count in ((0, size + 1), (size, 1), (1 << 63, 1 << 63), (size - 1, 2), (0, 0)):
            far = token + struct.pack("<QQII", offset, count, MAGIC, RANGE)
            assert b.result("gp_ipc_map", far) == INVALID_VALUE
        assert (
            b.result("gp_ipc_take_pool", struct.pack("<Q", handle(KIND_MEMPOOL, 2)) + body)
            == INVALID_VALUE
        )
        assert b.result("gp_ipc_map", body) == 0
