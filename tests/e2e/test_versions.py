"""Client and server of releases that differ: what both know works, the rest is refused clearly."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import other_release
from gpupool_common import paths
from gpupool_common.ask import ask_info
from harness import TOKEN, PoolServer, Result, wait_until
from other_release import Release
from raw_client import (
    KIND_CONTEXT,
    NUMBERS,
    OPERATIONS,
    RawClient,
    connected,
    greeting_of,
    handle,
)
from test_failures import StartTalk, held, step
from test_failures import hold as hold  # a fixture
from toolchain import Toolchain

#: The first one compiles the other release.
pytestmark = pytest.mark.timeout(900)

MakeServer = Callable[..., PoolServer]

#: What the two do not have in common, as cuGetProcAddress is asked for it.
HIDDEN = ["cuStreamWriteValue32", "cuGraphClone", "cuCtxSetCacheConfig"]


@pytest.fixture(scope="session")
def release() -> Release:
    return other_release.build(other_release.ROOT / "build/other-release")


@pytest.fixture(scope="session")
def server_before(home: paths.Home, release: Release) -> Iterator[PoolServer]:
    """Today's server with workers of the other release."""
    server = PoolServer(worker=str(release.worker))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["same", "older client", "older worker"])
def run(
    request: pytest.FixtureRequest, server: PoolServer, release: Release, home: paths.Home
) -> Callable[..., Result]:
    """Run a program, with one of the sides being of the other release."""
    kind = str(request.param)
    there = request.getfixturevalue("server_before") if kind == "older worker" else server

    def start(command: list[str], transport: str) -> Result:
        env = there.environment(transport)
        library = env["LD_LIBRARY_PATH"]
        if kind == "older client":
            library = f"{release.library}:{library}"
        plugins = str(home.root / paths.PLUGINS)
        result = there.run(command, transport, LD_LIBRARY_PATH=library, GPUPOOL_PLUGINS=plugins)
        result.stats["kind"] = kind
        return result

    return start


def answers(result: Result) -> dict[str, str]:
    assert result.returncode == 0, result.explain()
    return dict(line.split(" ", 1) for line in result.stdout.splitlines())


@pytest.mark.parametrize("transport", ["shm", "tcp", "zmq"])
def test_what_one_side_lacks(
    run: Callable[..., Result], toolchain: Toolchain, transport: str
) -> None:
    result = run([str(toolchain.driver_program("driver_versions"))], transport)
    found = answers(result)
    kind = result.stats["kind"]
    both = kind == "same"
    assert found["cuMemAlloc"] == "here CUDA_SUCCESS"
    assert found["cuCtxGetCacheConfig"] == "here CUDA_SUCCESS"
    assert found["value"] == ("7" if both else "5"), "the write was made, or was not"
    for name in HIDDEN:
        gone = kind == "older worker" or (kind == "older client" and name == "cuCtxSetCacheConfig")
        answer = "CUDA_SUCCESS" if both else "CUDA_ERROR_NOT_SUPPORTED"
        assert found[name] == f"{'hidden' if gone else 'here'} {answer}", name
    said = "\n".join(result.own_lines())
    if kind == "older worker":
        assert result.stats["not_on_server"] == {
            "cuCtxSetCacheConfig": 1,
            "cuGraphClone": 1,
            "cuStreamWriteValue32_v2": 1,
        }
        assert said.count("not supported by this server's release of gpupool") == 3
    elif both:
        assert result.stats["not_on_server"] == {}
        assert not said


@pytest.mark.parametrize("transport", ["shm", "tcp", "zmq"])
@pytest.mark.parametrize("name", ["driver_memory", "driver_events", "driver_module"])
def test_programs_run(
    run: Callable[..., Result], toolchain: Toolchain, name: str, transport: str
) -> None:
    result = run([str(toolchain.driver_program(name))], transport)
    assert result.returncode == 0, result.explain()


def test_a_message_that_one_side_lacks_is_done_without(
    run: Callable[..., Result], toolchain: Toolchain
) -> None:
    """The fence is today's; without it a stream is waited for."""
    result = run([str(toolchain.driver_program("uploads")), "4", "stream"], "shm")
    assert result.returncode == 0, result.explain()
    assert not result.own_lines()


def test_memory_that_one_side_does_not_keep(
    run: Callable[..., Result], toolchain: Toolchain
) -> None:
    """It is asked for each time."""
    result = run([str(toolchain.driver_program("churn")), "pairs", "20", "4096"], "shm")
    assert result.returncode == 0, result.explain()
    assert (result.stats["round_trips"] >= 20) == (result.stats["kind"] != "same")


def test_graphs_that_one_side_does_not_give_back(
    run: Callable[..., Result], toolchain: Toolchain
) -> None:
    """Their host functions and buffers stay until the session ends, and work."""
    result = run([str(toolchain.driver_program("driver_graph"))], "shm")
    assert result.returncode == 0, result.explain()
    assert not result.own_lines()


def test_a_worker_does_not_say_what_the_client_lacks(
    run: Callable[..., Result], toolchain: Toolchain
) -> None:
    """What kernels print is lost, and nothing else is."""
    result = run([str(toolchain.runtime_program("hello"))], "shm")
    assert result.returncode == 0, result.explain()
    printed = [f"hello from thread {i}" for i in range(2)]
    assert result.stdout.splitlines() == (printed if result.stats["kind"] == "same" else [])


# Drivers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drivers(home: paths.Home) -> Iterator[dict[str, PoolServer]]:
    """Two hosts whose drivers know CUDA 12.3 and 13.0."""
    servers: dict[str, PoolServer] = {}
    try:
        for version in ("12.3", "13.0"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("GPUPOOL_SOFT_DRIVER", version)
                servers[version] = PoolServer()
                servers[version].start()
        yield servers
    finally:
        for server in servers.values():
            server.close()


@pytest.mark.parametrize(
    ("hosts", "version", "since_12_4"),
    [
        (["13.0"], "13000", "here"),
        (["12.3"], "12030", "hidden"),
        (["12.3", "13.0"], "12030", "hidden"),
        (["13.0", "12.3"], "12030", "hidden"),
    ],
    ids=str,
)
def test_the_oldest_driver_of_the_hosts_counts(
    drivers: dict[str, PoolServer],
    toolchain: Toolchain,
    transport: str,
    hosts: list[str],
    version: str,
    since_12_4: str,
) -> None:
    where = ",".join(drivers[each].address for each in hosts)
    program = str(toolchain.driver_program("driver_versions"))
    found = answers(drivers[hosts[0]].run([program], transport, GPUPOOL_SERVER=where))
    assert found["driver"] == version
    assert found["cuKernelGetParamInfo"] == f"{since_12_4} CUDA_SUCCESS"
    assert found["cuMemAlloc"] == "here CUDA_SUCCESS"


def test_a_server_says_what_its_driver_knows(drivers: dict[str, PoolServer]) -> None:
    for version, server in drivers.items():
        devices = ask_info(server.address, TOKEN)["devices"]
        assert {device["driver"] for device in devices} == {version}


# Servers upgraded beside sessions --------------------------------------------------------------


def test_an_arbiter_of_another_release_ends_no_session(
    make_server: MakeServer, talk: StartTalk, hold: str, transport: str
) -> None:
    """The worker stays at its own board; sessions that come later have one of their own."""
    server = make_server()
    program, worker = held(server, talk, hold, transport)
    place = server.folder / "run/gpus/0.arbiter"
    server.kill()
    place.rename(place.with_suffix(".hidden"))
    step(program, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(place))
        other.listen(1)

        def answer() -> None:
            connection, _ = other.accept()
            assert connection.recv(100) == b"hello 2"
            connection.send(b"%-15d " % -errno.EPROTO)
            connection.close()

        speaker = threading.Thread(target=answer)
        speaker.start()
        server.start()
        speaker.join()
    assert "put a board aside" in server.log.read_text()
    for number in range(2, 4):
        step(program, number)
    assert [each["pid"] for each in server.sessions()] == [worker]
    program.say("end")
    assert program.finish().returncode == 0


# Handshakes, byte by byte -------------------------------------------------------------------

WIRE = 1
#: CUresult values
SUCCESS, MISMATCH = 0, 803


def greet(server: PoolServer, **changed: Any) -> tuple[RawClient, bytes]:
    """A session of a client that says this of itself; the worker's answer."""
    client = connected(server)
    said = {"wire": WIRE, "operations": OPERATIONS, **changed}
    body = greeting_of(bytes.fromhex(client.session["secret"]), **said)
    return client, client.call("gp_hello", body)


def without(name: str) -> list[int]:
    return [each for each in OPERATIONS if each >> 16 != NUMBERS[name]]


def in_another_form(name: str) -> list[int]:
    return [each ^ (each >> 16 == NUMBERS[name]) for each in OPERATIONS]


@pytest.mark.parametrize(
    "changed",
    [
        {"more": b"what a later release has to say"},
        {"wire": WIRE + 7, "oldest": WIRE},
        {"operations": [*OPERATIONS, 65000 << 16 | 9]},
        {"operations": without("gp_output")},
        {"operations": in_another_form("gp_said")},
    ],
    ids=str,
)
def test_a_client_of_another_release_is_let_in(server: PoolServer, changed: dict[str, Any]) -> None:
    client, answer = greet(server, **changed)
    with client:
        result, wire, known = struct.unpack_from("<i4xII", answer)
        assert (result, wire) == (SUCCESS, WIRE)
        listed = struct.unpack_from(f"<{known // 4}I", answer, 24)
        assert list(listed) == OPERATIONS


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"wire": WIRE + 7, "oldest": WIRE + 1}, "it speaks protocol 2 to 8, this worker 1 to 1"),
        ({"wire": 0, "oldest": 0}, "it speaks protocol 0 to 0"),
        ({"oldest": WIRE + 1}, "it speaks protocol 2 to 1"),
        ({"operations": OPERATIONS[::-1]}, "its list of operations is malformed"),
        ({"operations": [OPERATIONS[0]] * 2}, "its list of operations is malformed"),
        ({"operations": [n << 16 for n in range(8193)]}, "its list of operations is malformed"),
        ({"operations": []}, "it does not know 'gp_host_call'"),
        ({"operations": without("gp_async_error")}, "it does not know 'gp_async_error'"),
        ({"operations": in_another_form("gp_arena_free")}, "it does not know 'gp_arena_free'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_client_that_no_session_can_do_with(
    make_server: MakeServer, changed: dict[str, Any], why: str
) -> None:
    server = make_server()
    client, answer = greet(server, **changed)
    with client:
        assert struct.unpack_from("<i", answer)[0] == MISMATCH
    wait_until(lambda: why in server.log.read_text(), f"the log says: {why}")


@pytest.mark.parametrize("changed", [{}, {"operations": []}, {"wire": WIRE + 7, "oldest": WIRE}])
def test_a_client_that_greets_twice(make_server: MakeServer, changed: dict[str, Any]) -> None:
    """What the first greeting has agreed upon stays, until the session ends with the second."""
    server = make_server()
    client, answer = greet(server)
    with client:
        assert struct.unpack_from("<i", answer)[0] == SUCCESS
        said = {"wire": WIRE, "operations": OPERATIONS, **changed}
        again = greeting_of(bytes.fromhex(client.session["secret"]), **said)
        client.send([client.message(NUMBERS["gp_hello"], again)])
        wait_until(lambda: "it greeted twice" in server.log.read_text(), "the session ended")


def test_operations_that_a_client_says_it_lacks(server: PoolServer) -> None:
    """It sends them all the same, and they are answered: the list says what it understands."""
    needed = {"gp_hello", "gp_host_call", "gp_async_error", "gp_arena_free", "gp_pinned_data"}
    numbers = {NUMBERS[name] for name in needed}
    client, answer = greet(server, operations=[n for n in OPERATIONS if n >> 16 in numbers])
    with client:
        assert struct.unpack_from("<i", answer)[0] == SUCCESS
        context = handle(KIND_CONTEXT, 1)
        assert client.result("gp_primary_retain", struct.pack("<QiI", context, 0, 0)) == SUCCESS
        assert client.result("gp_context_set", struct.pack("<Q", context)) == SUCCESS
        assert client.result("cuMemAlloc_v2", struct.pack("<Q", 512)) == SUCCESS
