"""Strangers at every port: nothing is started anew, and a session beside them goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest

from gpupool_common.ask import ask_info
from harness import PATIENCE, TOKEN, PoolServer, Talk, alive, wait_until
from pool_harness import PoolManager
from raw_client import ask_for_session
from strangers import storm, storm_size
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]


@pytest.fixture
def hold(toolchain: Toolchain) -> str:
    return str(toolchain.runtime_program("hold"))


def port_of(url: str) -> int:
    return int(url.partition("?")[0].rpartition(":")[2])


def pid_of(server: PoolServer) -> int:
    assert server.pid is not None
    return server.pid


def relay_of(server: PoolServer, other_than: int = 0) -> int:
    """The process at the front end, once it is there."""
    found: list[int] = []

    def look() -> bool:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        found[:] = [pid for pid in pids if is_relay_of(pid, pid_of(server))]
        return len(found) == 1 and found[0] != other_than

    wait_until(look, "one process was at the front end")
    return found[0]


def is_dead(pid: int) -> bool:
    return not alive(pid)


def is_relay_of(pid: int, parent: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            owner = int(file.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return owner == parent and b"gpupool_common.relay_process" in file.read()
    except OSError:
        return False


def test_connections_that_break_off_at_the_front_end(
    make_server: MakeServer, talk: StartTalk, hold: str
) -> None:
    """libzmq ended the server with its heartbeats and a finite receive mark."""
    server = make_server()
    relay = relay_of(server)
    program = talk([hold], server.environment("zmq"))
    assert program.line() == "ready"
    steps = iter(range(1, 100))

    def step() -> None:
        program.say("go")
        assert program.line() == f"step {next(steps)}"
        # the question waits behind strangers' connections
        assert len(ask_info(server.address, TOKEN, timeout=PATIENCE)["sessions"]) == 1

    assert storm(port_of(server.url), storm_size(), step) == storm_size()
    step()
    assert alive(pid_of(server))
    assert relay_of(server) == relay
    assert "Traceback" not in server.log.read_text()
    program.say("end")
    assert "PASS hold" in program.finish().stdout


@pytest.mark.parametrize("way", ["tcp", "zmq"])
def test_connections_that_break_off_at_a_worker(make_server: MakeServer, way: str) -> None:
    """Before its client comes; the client then gets in all the same."""
    from raw_client import RawClient

    server = make_server()
    session = ask_for_session(server)
    (worker,) = server.worker_pids()
    found = storm(port_of(session[way]), 5000)
    assert found == 5000
    assert alive(worker)
    with RawClient(session) as client:
        assert client.greet()
        # Behind its client the door is shut, a moment after it was let in.
        wait_until(lambda: storm(port_of(session[way]), 1) == 0, "the door is shut")
        assert storm(port_of(session[way]), 100) == 0
        assert alive(worker)


def test_a_front_end_that_dies_is_started_again(
    make_server: MakeServer, talk: StartTalk, hold: str
) -> None:
    server = make_server()
    program = talk([hold], server.environment("zmq"))
    assert program.line() == "ready"
    for number in range(1, 4):
        relay = relay_of(server)
        os.kill(relay, signal.SIGKILL)
        # It may still take a connection while it dies, and with it a question.
        wait_until(partial(is_dead, relay), "the front end ended")
        # Asked at once: the question waits in the socket, which is the server's.
        assert len(ask_info(server.address, TOKEN, timeout=PATIENCE)["sessions"]) == 1
        assert relay_of(server, other_than=relay)
        program.say("go")
        assert program.line() == f"step {number}"
    assert alive(pid_of(server))
    relay = relay_of(server)
    server.kill()
    wait_until(partial(is_dead, relay), "the front end ended with its server")


def test_no_secret_in_reach_of_the_front_end(make_server: MakeServer) -> None:
    server = make_server(curve="")
    relay = relay_of(server)
    for name in ("environ", "cmdline"):
        with open(f"/proc/{relay}/{name}", "rb") as file:
            text = file.read()
        assert text
        assert TOKEN.encode() not in text
        assert b"GPUPOOL_" not in text


def test_connections_that_break_off_at_the_manager_s_link() -> None:
    """The manager ended by the same assertion; its REST went with it."""
    manager = PoolManager()
    try:
        manager.start()

        def answers() -> None:
            assert manager.do("GET", "/nodes")["items"] == []

        count = storm_size() // 4
        assert storm(port_of(manager.join_url), count, answers) == count
        answers()
        assert "starting another" not in manager.log.read_text()
    finally:
        manager.close()
