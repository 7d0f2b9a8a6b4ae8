"""What somebody with a token would try, to get more than is his: nothing comes of it."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from harness import PATIENCE, TOKEN, Talk, alive, wait_until
from raw_client import (
    KIND_STREAM,
    NUMBERS,
    RawClient,
    ask_for_session,
    connected,
    handle,
    with_context,
)
from tenants import (
    BLUE,
    MIB,
    RED,
    SCALE,
    MakeServer,
    Pool,
    StartTalk,
    configured,
    end,
    info,
    most_resident,
    tell,
)
from toolchain import Toolchain

OUT_OF_MEMORY = 2
KIND_MODULE = 2
IMAGE_MISSING = 1
INVALID_CONTEXT = 201
REFUSED = "refused CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def pool(make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path) -> Pool:
    return Pool(configured(make_server, tmp_path), toolchain, talk)


def worker_pid(pool: Pool, session: str) -> int:
    (pid,) = (s["pid"] for s in pool.ask(do="status")["sessions"] if s["session"] == session)
    return int(pid)


def gone(pid: int) -> bool:
    return not alive(pid)


# Asking for more, or by another name ----------------------------------------------------


def test_a_child_without_the_variables_stays_under_the_quota(pool: Pool, transport: str) -> None:
    """The parent's request holds on, and the child has what the tenant has left."""
    parent = pool.start(transport, **RED, GPUPOOL_GROUP="job", GPUPOOL_MEMORY="40MiB")
    child = pool.start(transport, **RED)
    assert info(parent)[1] == 40 * MIB
    assert info(child)[1] == 24 * MIB
    assert tell(child, "take 26") == REFUSED
    assert tell(child, "take 20") == "took 20"
    assert tell(parent, "take 36") == "took 36"
    used = [pool.account(name)["memory_used_bytes"] for name in ("red", "red/job")]
    assert sum(used) <= 64 * MIB
    end(child)
    end(parent)


def test_many_groups_are_one_quota(pool: Pool) -> None:
    """A group for every process does not make the quota larger."""
    programs = []
    for name in ("a", "b", "c"):
        asked = {**RED, "GPUPOOL_GROUP": name, "GPUPOOL_MEMORY": "20MiB"}
        programs.append(pool.start("shm", **asked))
    result = pool.run("shm", "driver_vmm", **RED, GPUPOOL_GROUP="d", GPUPOOL_MEMORY="20MiB")
    assert result.returncode == 1 and "64MiB" in result.stderr, result.explain()
    for program in programs:
        assert tell(program, "take 20") == REFUSED
        assert tell(program, "take 16") == "took 16"
        end(program)


def test_a_request_larger_than_its_group_has_is_refused(pool: Pool) -> None:
    first = pool.start("shm", **RED, GPUPOOL_GROUP="job", GPUPOOL_MEMORY="16MiB")
    result = pool.run("shm", "driver_vmm", **RED, GPUPOOL_GROUP="job", GPUPOOL_MEMORY="60MiB")
    assert result.returncode == 1 and len(result.own_lines()) == 1, result.explain()
    assert pool.account("red/job")["memory_limit_bytes"] == info(first)[1] == 16 * MIB
    end(first)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"GPUPOOL_MEMORY": "65MiB"}, "64MiB"),
        ({"GPUPOOL_SHARE": "60%"}, "50%"),
        ({"GPUPOOL_CEILING": "90%", "GPUPOOL_SHARE": "10%"}, "80%"),
        ({"GPUPOOL_WEIGHT": "5"}, "its quota is 4"),
        ({"GPUPOOL_PRIORITY": "high"}, "high priority is not allowed"),
    ],
    ids=["memory", "share", "ceiling", "weight", "priority"],
)
def test_more_than_the_quota(pool: Pool, request_: dict[str, str], says: str) -> None:
    result = pool.run("shm", "driver_vmm", **RED, **request_)
    assert result.returncode == 1, result.explain()
    (line,) = result.own_lines()
    assert says in line, line
    assert pool.ask(do="status")["gpus"][0]["tenants"] == []


def test_more_sessions_than_the_quota(pool: Pool) -> None:
    programs = [pool.start("shm", **RED) for _ in range(4)]
    result = pool.run("shm", "driver_vmm", **RED)
    assert result.returncode == 1 and "4 of 4 sessions" in result.stderr, result.explain()
    for program in programs:
        end(program)


def test_another_tenants_group_is_out_of_reach(pool: Pool, transport: str) -> None:
    """The name of a group means what it means to the tenant whose token it comes with."""
    victim = pool.start(transport, **RED, GPUPOOL_GROUP="job", GPUPOOL_MEMORY="60MiB")
    thief = pool.start(transport, **BLUE, GPUPOOL_GROUP="job")
    before = pool.account("red/job")
    assert info(thief)[1] == 32 * MIB
    assert tell(thief, "take 40") == REFUSED
    assert tell(thief, "take 28") == "took 28"
    after = pool.account("red/job")
    assert after["memory_used_bytes"] == before["memory_used_bytes"]
    assert (after["workers"], pool.account("blue/job")["workers"]) == (1, 1)
    assert tell(victim, "take 56") == "took 56"
    end(thief)
    end(victim)


@pytest.mark.parametrize("group", ["red/job", "../red", "job\x01", "red job", "x" * 33])
def test_a_group_with_a_path_in_it(pool: Pool, group: str) -> None:
    """Refused by our library, and by the server where it is not asked."""
    result = pool.run("shm", "driver_vmm", **BLUE, GPUPOOL_GROUP=group)
    assert result.returncode == 1, result.explain()
    answer = ask_for_session(pool.server, token="token-of-blue", group=group)
    assert (answer["word"], answer["code"]) == ("refused", "bad-request"), answer


@pytest.mark.parametrize("token", ["token-of-nobody", "token-of-re", "token-of-red2", "red"])
def test_a_guessed_token(pool: Pool, token: str) -> None:
    victim = pool.start("shm", **RED, GPUPOOL_GROUP="job")
    result = pool.run("shm", "driver_vmm", GPUPOOL_TOKEN=token, GPUPOOL_GROUP="job")
    assert result.returncode == 1 and "token" in result.stderr, result.explain()
    assert pool.account("red/job")["workers"] == 1
    end(victim)


def test_a_tenant_sees_only_its_own_sessions(pool: Pool) -> None:
    victim = pool.start("shm", **RED, GPUPOOL_GROUP="job")
    shown = pool.server.sessions()
    assert shown == [], "the server's own token shows what another tenant runs"
    end(victim)


# Handles and memory that are not his ------------------------------------------------------


def test_forged_handles_and_addresses(pool: Pool, transport: str) -> None:
    victim = pool.start(transport, **RED)
    assert tell(victim, "work 3") == "worked 3"
    address = tell(victim, "where").split()[1]
    result = pool.run(transport, "driver_forged", address, **BLUE)
    assert result.stdout == "PASS driver_forged\n", result.explain()
    assert tell(victim, "work 3") == "worked 6"
    end(victim)


@pytest.mark.parametrize("limit", ["64MiB", "250MiB"])
def test_memory_that_is_kept_is_counted(pool: Pool, transport: str, limit: str) -> None:
    result = pool.run(transport, "driver_keep", GPUPOOL_MEMORY=limit)
    assert result.stdout == "PASS driver_keep\n", result.explain()


# Without our library ----------------------------------------------------------------------


def assert_unharmed(pool: Pool, program: Talk, worked: int) -> None:
    """The neighbour works, and the server opens sessions."""
    assert tell(program, f"work {worked}") == f"worked {worked}"
    end(program)
    assert pool.run("shm", "driver_vmm", **RED).returncode == 0


def ends(pool: Pool, client: RawClient, pid: int) -> None:
    with client:
        wait_until(lambda: not alive(pid), "the worker of a session that went wrong ended")
    wait_until(
        lambda: all(s["pid"] != pid for s in pool.ask(do="status")["sessions"]), "it was forgotten"
    )


@pytest.mark.parametrize("secret", ["00" * 16, "", "ff" * 8, "00" * 4096], ids=len)
def test_a_wrong_secret(pool: Pool, secret: str) -> None:
    neighbour = pool.start("shm", **RED)
    client = connected(pool.server, token="token-of-blue")
    pid = worker_pid(pool, client.session["session"])
    client.send([client.message(NUMBERS["gp_hello"], client.hello(secret))])
    ends(pool, client, pid)
    assert_unharmed(pool, neighbour, 2)


def test_no_hello(pool: Pool) -> None:
    client = connected(pool.server)
    pid = worker_pid(pool, client.session["session"])
    client.send([client.message(NUMBERS["cuMemAlloc_v2"], struct.pack("<Q", 1 << 20))])
    ends(pool, client, pid)


GARBAGE = {
    "nothing": b"",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "size of 4GiB": struct.pack("<II", 0xFFFFFFF8, 0x62617431) + bytes(64),
    "cut": struct.pack("<II", 64, 0x62617431) + bytes(8),
    "too small": struct.pack("<II", 8, 0x62617431) + bytes(8),
    "a header that lies": struct.pack("<IIIHHQ", 16, 0x62617431, 0xFFFFFFF8, 330, 2, 1),
    "another kind": struct.pack("<II", 16, 0x12345678) + bytes(16),
    "long": random.Random(5).randbytes(1 << 20),
}


@pytest.mark.parametrize("greeted", [False, True], ids=["stranger", "greeted"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_to_a_worker(pool: Pool, garbage: str, greeted: bool) -> None:
    client = connected(pool.server)
    pid = worker_pid(pool, client.session["session"])
    if greeted:
        assert client.result("gp_hello", client.hello()) == 0
    client.up.send(GARBAGE[garbage])
    ends(pool, client, pid)
    assert pool.run("shm", "driver_vmm", **RED).returncode == 0


def test_operations_with_bodies_of_garbage(pool: Pool) -> None:
    """The worker answers with an error or ends; whatever it does, it is the asker's own."""
    neighbour = pool.start("shm", **RED)
    noise = random.Random(11)
    names = [
        *("cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuMemMap", "cuMemsetD8_v2"),
        *("gp_launch", "gp_htod", "gp_dtoh", "gp_copy", "gp_image_put", "gp_module_load"),
        *("gp_pinned_open", "gp_arena_open", "gp_host_done", "gp_context_create"),
    ]
    for name in names:
        with connected(pool.server, token="token-of-blue") as client:
            assert client.result("gp_hello", client.hello()) == 0
            pid = worker_pid(pool, client.session["session"])
            client.send(
                [
                    client.message(NUMBERS[name], noise.randbytes(8 * noise.randrange(1, 32)))
                    for _ in range(8)
                ]
            )
            client.send([client.message(0xFFFF)])  # is no operation: here it ends at the latest
            wait_until(partial(gone, pid), f"the worker ended after {name}")
    assert_unharmed(pool, neighbour, 3)


def test_a_client_of_its_own_has_the_same_limit(pool: Pool) -> None:
    """The limit is the worker's to keep: no library of ours is asked."""
    client = connected(pool.server, token="token-of-blue", group="raw")
    pid = worker_pid(pool, client.session["session"])
    with client:
        with_context(client)
        taken = 0
        while client.result("cuMemAlloc_v2", struct.pack("<Q", 2 * MIB)) == 0:
            taken += 2 * MIB
            assert taken <= 32 * MIB
        assert taken == 32 * MIB
        for size in (1, 2 * MIB, 1 << 40, (1 << 64) - 1):
            assert client.result("cuMemAlloc_v2", struct.pack("<Q", size)) == OUT_OF_MEMORY
        account = pool.account("blue/raw")
        assert account["memory_used_bytes"] == account["memory_peak_bytes"] == 32 * MIB
        assert account["memory_denied"] >= 3
    wait_until(lambda: not alive(pid), "the worker ended with its client")
    wait_until(lambda: pool.account("blue/raw") == {}, "nothing of it was left on the board")


def without_context(client: RawClient) -> int:
    """Make a stream and let go of the context that it was made in."""
    stream = handle(KIND_STREAM, 1)
    assert client.result("cuStreamCreate", struct.pack("<QI", stream, 1)) == 0
    assert client.result("gp_context_set", struct.pack("<Q", 0)) == 0
    return stream


@pytest.mark.real_gpu
def test_no_current_context_is_no_way_past_the_quota(pool: Pool) -> None:
    """Memory in the order of an explicit stream needs none, and was charged to nobody."""
    with connected(pool.server, token="token-of-blue", group="raw") as client:
        with_context(client)
        stream = without_context(client)
        taken, piece, quota = 0, 2 * SCALE * MIB, 32 * SCALE * MIB
        asked = struct.pack("<QQ", piece, stream)
        held = pool.account("blue/raw")["memory_used_bytes"]  # a real context takes a part
        while client.result("cuMemAllocAsync", asked) == 0:
            taken += piece
            assert held + taken <= quota
        assert quota - 2 * piece < held + taken
        assert pool.account("blue/raw")["memory_peak_bytes"] <= quota
        nowhere = struct.pack("<QQ", 2 * MIB, 1)  # the default stream, of no context
        assert client.result("cuMemAllocAsync", nowhere) == INVALID_CONTEXT


@pytest.mark.real_gpu
def test_no_current_context_is_no_way_past_the_gate(pool: Pool) -> None:
    """A tenant without compute: work on an explicit stream waits, too."""
    assert pool.cli("gpu", "set", "0", "--policy", "weighted").returncode == 0
    client = connected(pool.server, token=TOKEN, group="raw", weight="0")
    with client:
        with_context(client)
        address = struct.unpack_from("<iIQ", client.call("cuMemAlloc_v2", struct.pack("<Q", 512)))[
            2
        ]
        stream = without_context(client)
        work = struct.pack("<QB7xQQ", address, 1, 512, stream)
        client.send([client.message(NUMBERS["cuMemsetD8Async"], work)])
        assert not client.answers(0.5), "it was let in"
        assert pool.account("default/raw")["turns"] == 0
        assert pool.cli("session", "set", "default/raw", "--weight", "2").returncode == 0
        assert client.answers(PATIENCE)
        assert pool.account("default/raw")["turns"] == 1


@pytest.mark.real_gpu
def test_work_without_a_context_is_charged_as_with_one(pool: Pool, transport: str) -> None:
    asked = {**RED, "GPUPOOL_GROUP": "job", "GPUPOOL_CEILING": "10%", "GPUPOOL_SHARE": "10%"}
    program = pool.start(transport, **asked)
    assert tell(program, "work 50") == "worked 50"
    before = pool.account("red/job")
    assert before["launches"] == (worked := 50)

    def charged() -> bool:
        """Of work so short as to end before anybody looks, no time is seen: so more of it."""
        nonlocal worked
        worked += 50
        assert tell(program, "adrift 50") == f"worked {worked}"
        after = pool.account("red/job")
        assert after["launches"] == worked
        return bool(after["busy_ns"] > before["busy_ns"])

    wait_until(charged, "its time was counted")
    end(program)


@pytest.mark.parametrize(
    "made",
    [[], ["built"], ["replaced"], ["within"]],
    ids=["captured", "built", "replaced", "within"],
)
def test_a_graph_is_no_way_to_another_gpu(
    make_server: MakeServer, toolchain: Toolchain, tmp_path: Path, transport: str, made: list[str]
) -> None:
    """A launch is charged to its stream's GPU; what it would do on another one is refused."""
    server = configured(make_server, tmp_path, **{"soft-gpus": "2"})
    program = str(toolchain.driver_program("driver_graph_devices"))
    result = server.run([program, *made], transport)
    assert result.stdout.splitlines() == [
        "launched CUDA_ERROR_NOT_SUPPORTED",
        "PASS driver_graph_devices",
    ], result.explain()
    wait_until(lambda: "a graph with work on several GPUs" in server.log.read_text(), "it was said")


@pytest.mark.parametrize("value", [0, 16, handle(1, 9), handle(2, 1), handle(63, 7), (1 << 64) - 1])
def test_forged_handles_without_the_library(pool: Pool, value: int) -> None:
    with connected(pool.server) as client:
        with_context(client)
        for name in ("cuStreamSynchronize", "cuEventSynchronize", "cuMemFree_v2", "cuMemRelease"):
            if value == 0 and name in ("cuStreamSynchronize", "cuMemFree_v2"):
                continue  # the default stream; nothing to free
            assert client.result(name, struct.pack("<Q", value)) != 0, name
        assert client.result("cuMemAlloc_v2", struct.pack("<Q", 512)) == 0


def test_an_image_of_absurd_size(pool: Pool) -> None:
    with connected(pool.server) as client:
        with_context(client)
        pid = worker_pid(pool, client.session["session"])
        before = most_resident(pid)
        for number, total in enumerate(((1 << 63), (1 << 40), (1 << 64) - 1)):
            fixed = struct.pack("<IIQQII", 32, 0, total, 0, 8, 8)
            body = fixed + bytes([number]) * 32 + bytes(8)
            assert client.result("gp_image_put", body) == 0
            load = struct.pack("<QIIIII4x", handle(KIND_MODULE, 1), 32, 0, 0, 0, 0)
            answer = client.call("gp_module_load", load + bytes([number]) * 32)
            result, state = struct.unpack_from("<i4xI", answer)
            assert (result, state) == (0, IMAGE_MISSING), "nothing of it was kept"
        assert most_resident(pid) < before + 64 * MIB


def test_a_second_client_of_a_session(pool: Pool) -> None:
    """Even one that knows the secret."""
    with connected(pool.server, group="one") as first:
        with_context(first)
        with pytest.raises(ConnectionError):
            RawClient(first.session)
        assert first.result("cuMemAlloc_v2", struct.pack("<Q", 512)) == 0
        assert pool.account("default/one")["workers"] == 1


def test_a_second_client_on_this_machine(pool: Pool) -> None:
    program = pool.start("shm", **RED)
    for path in (pool.run_dir / "sessions").glob("*/data.sock"):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with peer, pytest.raises(OSError):
            peer.connect(str(path))
    assert tell(program, "work 2") == "worked 2"
    end(program)


# A client that ignores the gate -------------------------------------------------------------

PIECES, PIECE_KIB = 1500, 256


def test_a_flood_before_a_closed_gate(pool: Pool, transport: str) -> None:
    """What is sent without ever waiting stays with the sender: the worker keeps little of it."""
    assert pool.cli("gpu", "set", "0", "--policy", "weighted").returncode == 0
    program = pool.start(transport, GPUPOOL_WEIGHT="2", GPUPOOL_GROUP="flood")
    neighbour = pool.start(transport, **RED)
    assert tell(program, f"flood 1 {PIECE_KIB}") == "sent"
    assert tell(program, "work 1") == "worked 2"
    worker = pool.worker_of(program)
    before = most_resident(worker)
    assert pool.cli("session", "set", "default/flood", "--weight", "0").returncode == 0
    calls = pool.session_of(program)["calls"]
    program.say(f"flood {PIECES} {PIECE_KIB}")
    wait_until(lambda: bool(pool.session_of(program)["calls"] > calls), "the flood came")
    assert tell(neighbour, "work 100") == "worked 100"
    assert pool.account("default/flood")["launches"] <= 2 + 1
    assert most_resident(worker) < before + 64 * MIB
    assert pool.cli("session", "set", "default/flood", "--weight", "2").returncode == 0
    assert program.line() == "sent"
    assert tell(program, "work 1") == f"worked {PIECES + 3}"
    assert most_resident(worker) < before + 64 * MIB
    end(program)
    end(neighbour)


def test_a_flood_whose_sender_is_killed(pool: Pool, transport: str) -> None:
    assert pool.cli("gpu", "set", "0", "--policy", "weighted").returncode == 0
    program = pool.start(transport, GPUPOOL_WEIGHT="0", GPUPOOL_GROUP="flood")
    worker = pool.worker_of(program)
    calls = pool.session_of(program)["calls"]
    program.say(f"flood {PIECES} {PIECE_KIB}")
    wait_until(lambda: bool(pool.session_of(program)["calls"] > calls), "the flood came")
    program.process.kill()
    wait_until(lambda: not alive(worker), "the worker ended with its client")
    wait_until(lambda: pool.account("default/flood") == {}, "it was off the board")


# Asking and never coming ------------------------------------------------------------------


def test_sessions_that_nobody_comes_to(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> None:
    """One tenant had all places with admissions, and others were told that the server is full."""
    pool = Pool(configured(make_server, tmp_path, **{"max-sessions": "8"}), toolchain, talk)
    over = threading.Event()
    answers: Counter[str] = Counter()

    def ask() -> None:
        while not over.is_set():
            answer = ask_for_session(pool.server, token="token-of-blue")
            answers[answer.get("code", "ok")] += 1

    attacker = threading.Thread(target=ask)
    attacker.start()
    try:
        wait_until(lambda: answers["busy"] > 0, "the attacker had all that he gets")
        for _ in range(4):
            program = pool.start("zmq")
            assert pool.session_of(program)["state"] == "running"
            end(program)
    finally:
        over.set()
        attacker.join()
    assert set(answers) <= {"ok", "busy"}
    listed = pool.ask(do="status")["sessions"]
    assert 0 < sum(each["state"] == "waiting" for each in listed) <= 4
