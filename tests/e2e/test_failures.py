"""What happens when a part of the pool dies, and what refusals say."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from gpupool_common import paths
from gpupool_server.driver import find_system
from harness import (
    TOKEN,
    PoolServer,
    Result,
    Talk,
    alive,
    run_program,
    wait_until,
)
from ports import free_port
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]


@pytest.fixture
def hold(toolchain: Toolchain) -> str:
    return str(toolchain.runtime_program("hold"))


@pytest.fixture
def vector_add(toolchain: Toolchain) -> str:
    return str(toolchain.runtime_program("vector_add"))


def held(server: PoolServer, talk: StartTalk, hold: str, transport: str) -> tuple[Talk, int]:
    """A program with a session, and its worker."""
    before = set(server.worker_pids())
    program = talk([hold], server.environment(transport))
    assert program.line() == "ready"
    workers = set(server.worker_pids()) - before
    assert len(workers) == 1, workers
    return program, workers.pop()


def step(program: Talk, number: int) -> None:
    program.say("go")
    assert program.line() == f"step {number}"


def assert_refused(result: Result, *words: str) -> None:
    """A CUDA error for the program, one line of ours for its user."""
    assert result.returncode == 1, result.explain()
    assert "FAIL" in result.stdout, result.explain()
    lines = result.own_lines()
    assert len(lines) == 1, result.explain()
    for word in words:
        assert word in lines[0], lines[0]


# What dies -------------------------------------------------------------------------


@pytest.mark.alone  # the one promise of a time
def test_killed_client_frees_its_session(
    make_server: MakeServer, talk: StartTalk, hold: str, transport: str
) -> None:
    server = make_server()
    program, worker = held(server, talk, hold, transport)
    step(program, 1)
    assert len(server.sessions()) == 1
    program.process.kill()
    # Promised to users: what a killed client had is free again within two seconds.
    wait_until(lambda: not alive(worker), "the worker of a killed client ended", patience=2.0)
    wait_until(lambda: server.sessions() == [], "its session was forgotten")
    assert list((server.folder / "run" / "sessions").iterdir()) == []


@pytest.mark.real_gpu
@pytest.mark.parametrize(
    "then", ["exit", "synchronize", "copy", "free", "reset", "load", "destroy"]
)
def test_a_stream_that_never_goes_on_holds_no_worker(
    make_server: MakeServer, talk: StartTalk, toolchain: Toolchain, transport: str, then: str
) -> None:
    """Whatever waits for it in the worker, inside the driver too, ends with the client."""
    server = make_server()
    before = set(server.worker_pids())
    stuck = str(toolchain.driver_program("driver_stuck"))
    program = talk([stuck, then], server.environment(transport))
    assert program.line() == "ready"
    (worker,) = set(server.worker_pids()) - before or {0}
    if then != "exit":
        time.sleep(0.5)  # the call is to be in the worker
        program.process.kill()
    wait_until(lambda: not alive(worker), "the worker of a client that is gone ended")
    wait_until(lambda: server.sessions() == [], "its session was forgotten")


def test_killed_worker_gives_errors_and_no_hang(
    make_server: MakeServer, talk: StartTalk, hold: str, transport: str
) -> None:
    server = make_server()
    program, worker = held(server, talk, hold, transport)
    other, _ = held(server, talk, hold, transport)
    step(program, 1)
    os.kill(worker, signal.SIGKILL)
    program.say("go")
    result = program.finish()
    assert result.returncode == 3, result.explain()
    assert "gone cuda" in result.stdout
    assert "FAIL" not in result.stdout, result.explain()
    assert len(result.own_lines()) == 1, result.explain()
    # The neighbour notices nothing.
    step(other, 1)
    other.say("end")
    assert "PASS hold" in other.finish().stdout


def test_killed_server_ends_no_session(
    make_server: MakeServer, talk: StartTalk, hold: str, vector_add: str, transport: str
) -> None:
    server = make_server()
    program, worker = held(server, talk, hold, transport)
    step(program, 1)
    server.kill()
    step(program, 2)
    assert_refused(server.run([vector_add], transport), server.url)
    server.start()
    # The new server knows the old session, and opens new ones beside it.
    assert [session["pid"] for session in server.sessions()] == [worker]
    assert server.run([vector_add], transport).returncode == 0
    step(program, 3)
    program.say("end")
    assert "PASS hold" in program.finish().stdout
    wait_until(lambda: server.sessions() == [], "the adopted session ended")


def test_stopped_server_ends_no_session(
    make_server: MakeServer, talk: StartTalk, hold: str, transport: str
) -> None:
    server = make_server()
    program, _ = held(server, talk, hold, transport)
    server.kill(signal.SIGHUP if transport == "shm" else signal.SIGTERM)  # SIGHUP: of a terminal
    assert " stopping " in server.log.read_text()
    step(program, 1)
    program.say("end")
    assert "PASS hold" in program.finish().stdout


def test_a_faulting_neighbour_harms_nobody(
    server: PoolServer, talk: StartTalk, hold: str, toolchain: Toolchain, transport: str
) -> None:
    program, _ = held(server, talk, hold, transport)
    step(program, 1)
    fault = toolchain.driver_program("driver_fault")
    assert "PASS driver_fault" in server.run([str(fault)], transport).stdout
    step(program, 2)
    program.say("end")
    assert "PASS hold" in program.finish().stdout


# What stands still -----------------------------------------------------------------

#: Longer than the connections of these tests may be silent.
STILL_SECONDS = 8.0


def test_a_client_that_stands_still_keeps_its_session(
    make_server: MakeServer, talk: StartTalk, hold: str, transport: str
) -> None:
    """As in a debugger. It lost its session when heartbeats of ZeroMQ went unanswered."""
    server = make_server(**{"silence-seconds": "2"})
    program, worker = held(server, talk, hold, transport)
    step(program, 1)
    program.process.send_signal(signal.SIGSTOP)
    time.sleep(STILL_SECONDS)
    assert alive(worker)
    program.process.send_signal(signal.SIGCONT)
    step(program, 2)
    program.say("end")
    assert "PASS hold" in program.finish().stdout


def test_a_worker_that_stands_still_is_waited_for(
    make_server: MakeServer, talk: StartTalk, hold: str, transport: str
) -> None:
    server = make_server()
    before = set(server.worker_pids())
    program = talk([hold], {**server.environment(transport), "GPUPOOL_SILENCE": "2"})
    assert program.line() == "ready"
    (worker,) = set(server.worker_pids()) - before
    os.kill(worker, signal.SIGSTOP)
    program.say("go")
    time.sleep(STILL_SECONDS)
    os.kill(worker, signal.SIGCONT)
    assert program.line() == "step 1"
    program.say("end")
    assert "PASS hold" in program.finish().stdout


@pytest.mark.parametrize("way", ["tcp", "zmq"])
def test_a_silence_that_is_none_is_refused(server: PoolServer, vector_add: str, way: str) -> None:
    assert_refused(server.run([vector_add], way, GPUPOOL_SILENCE="soon"), "GPUPOOL_SILENCE")


def test_a_silence_that_changes_nothing_is_said(
    server: PoolServer, vector_add: str, transport: str
) -> None:
    lines = server.run([vector_add], transport, GPUPOOL_SILENCE="60").own_lines()
    said = [line for line in lines if "GPUPOOL_SILENCE=60 changes nothing" in line]
    assert len(said) == (1 if transport == "shm" else 0), lines
    assert not any("GPUPOOL_SILENCE" in line for line in server.run([vector_add]).own_lines())


def test_no_secret_in_the_worker_s_environment_or_command(
    make_server: MakeServer, talk: StartTalk, hold: str
) -> None:
    """/proc showed the session's secret in the environment it was started with."""
    server = make_server()
    _, worker = held(server, talk, hold, "zmq")
    images = list((server.folder / "run" / "images").iterdir())
    for name in ("environ", "cmdline"):
        text = Path(f"/proc/{worker}/{name}").read_bytes()
        assert text
        for tenant in images:  # named by a digest that is no secret
            text = text.replace(tenant.name.encode(), b"")
        assert re.search(rb"[0-9a-f]{32}", text) is None, text
        assert b"SECRET" not in text
        assert TOKEN.encode() not in text


# What is refused -------------------------------------------------------------------


def test_wrong_token(server: PoolServer, vector_add: str) -> None:
    assert_refused(server.run([vector_add], GPUPOOL_TOKEN="not-the-token"), "token")


def test_no_token(server: PoolServer, vector_add: str) -> None:
    assert_refused(server.run([vector_add], GPUPOOL_TOKEN=""), "GPUPOOL_TOKEN")


def test_a_token_in_a_file(server: PoolServer, vector_add: str, tmp_path: Path) -> None:
    path = tmp_path / "token"

    def run() -> Result:
        return server.run([vector_add], GPUPOOL_TOKEN="", GPUPOOL_TOKEN_FILE=str(path))

    assert_refused(run(), "GPUPOOL_TOKEN_FILE")
    path.write_text("not-the-token\n")
    assert_refused(run(), "token")
    path.write_text(TOKEN + "\n")
    result = run()
    assert result.returncode == 0, result.explain()


def test_nobody_listens(server: PoolServer, vector_add: str) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    assert_refused(server.run([vector_add], GPUPOOL_SERVER=url), url)


def test_unknown_host(server: PoolServer, vector_add: str) -> None:
    url = "tcp://no-such-host.invalid:7700"
    assert_refused(server.run([vector_add], GPUPOOL_SERVER=url), "no-such-host.invalid")


def test_no_server_named(server: PoolServer, vector_add: str) -> None:
    assert_refused(server.run([vector_add], GPUPOOL_SERVER=""), "GPUPOOL_SERVER")


@pytest.mark.parametrize("url", ["7700", "http://127.0.0.1:80", "tcp://", "tcp://127.0.0.1:99999"])
def test_no_address(server: PoolServer, vector_add: str, url: str) -> None:
    assert_refused(server.run([vector_add], GPUPOOL_SERVER=url), url)


@pytest.fixture
def stranger() -> Iterator[str]:
    """A port where a service answers every connection with something that is not ours."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                try:
                    peer.recv(4096)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    stopping.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_a_port_that_is_no_gpupool_server(
    server: PoolServer, vector_add: str, stranger: str
) -> None:
    assert_refused(server.run([vector_add], GPUPOOL_SERVER=stranger), stranger)


@pytest.fixture
def other_release() -> Iterator[str]:
    """A front end of another release: it refuses every question."""
    context = zmq.Context()
    socket_ = context.socket(zmq.ROUTER)
    port = socket_.bind_to_random_port("tcp://127.0.0.1")
    answer = b"GPUPOOL/1 refused\ncode: version\nmessage: install release 9 on both sides\n"
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            if socket_.poll(100):
                who, *rest = socket_.recv_multipart()
                socket_.send_multipart([who, *rest[:-1], answer])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{port}"
    stopping.set()
    thread.join(5)
    context.destroy(linger=0)


def test_client_of_another_version(server: PoolServer, vector_add: str, other_release: str) -> None:
    result = server.run([vector_add], GPUPOOL_SERVER=other_release)
    assert_refused(result, "install release 9 on both sides")


def test_server_of_another_version(server: PoolServer) -> None:
    """The server's side of it, asked as a client of another build would."""
    question = "\n".join(
        ["GPUPOOL/1 hello", f"token: {TOKEN}", "wire: 99", "wire-oldest: 98"]
        + ["pid: 1", "program: test", "host: here", "boot-id: x", ""]
    )
    context = zmq.Context()
    asker = context.socket(zmq.DEALER)
    try:
        asker.connect(server.url)
        asker.send(question.encode())
        assert asker.poll(10_000), "no answer"
        answer = asker.recv_multipart()[-1].decode()
    finally:
        context.destroy(linger=0)
    assert answer.startswith("GPUPOOL/1 refused\n"), answer
    assert "code: version" in answer
    assert "speaks protocol 98 to 99" in answer
    assert "upgrade gpupool on the server" in answer


def test_full_server(
    make_server: MakeServer, talk: StartTalk, hold: str, vector_add: str, transport: str
) -> None:
    server = make_server(**{"max-sessions": "1"})
    program, worker = held(server, talk, hold, transport)
    assert_refused(server.run([vector_add], transport), "full")
    program.say("end")
    program.finish()
    wait_until(lambda: not alive(worker), "the only worker ended")
    wait_until(lambda: server.sessions() == [], "its session was forgotten")
    assert server.run([vector_add], transport).returncode == 0


def test_garbage_at_the_front_end_harms_nobody(server: PoolServer, vector_add: str) -> None:
    host, _, port = server.url.removeprefix("tcp://").rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"\xff" * 100_000, b"\xff\0\0\0\0"):
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            peer.settimeout(0.2)
            try:
                peer.sendall(garbage)
                peer.recv(4096)
            except OSError:
                pass
    assert server.run([vector_add]).returncode == 0


@pytest.mark.parametrize("value", ["carrier-pigeon", "shm,zmq"])
def test_unknown_transport(server: PoolServer, vector_add: str, value: str) -> None:
    """Before a session is opened that nobody would come to."""
    opened = server.log.read_text().count("session opened")
    assert_refused(
        server.run([vector_add], value), "GPUPOOL_TRANSPORT", "auto, shm, tcp, zmq or ucx"
    )
    assert server.log.read_text().count("session opened") == opened


def test_tcp_where_a_server_offers_none(
    make_server: MakeServer, server: PoolServer, vector_add: str
) -> None:
    """As a server of an earlier release: there it was another name of zmq."""
    result = server.run([vector_add], "tcp")
    assert result.returncode == 0, result.explain()
    assert result.stats["transport"] == "tcp"
    result = make_server(**{"no-tcp": ""}).run([vector_add], "tcp")
    assert result.returncode == 0, result.explain()
    assert result.stats["transport"] == "zmq"


def test_the_transport_is_chosen_and_said(server: PoolServer, vector_add: str) -> None:
    """Same machine, nothing asked for: shared memory."""
    result = server.run([vector_add], "", GPUPOOL_LOG="info")
    assert result.returncode == 0, result.explain()
    assert result.stats["transport"] == "shm"
    assert any("shm" in line for line in result.own_lines()), result.explain()


def test_a_level_of_the_log_that_there_is_not_is_said(server: PoolServer, vector_add: str) -> None:
    result = server.run([vector_add], "", GPUPOOL_LOG="loud")
    assert result.returncode == 0, result.explain()
    (line,) = result.own_lines()
    assert "GPUPOOL_LOG='loud' is not one of error, warn, info, debug; it is warn" in line


def test_quiet_when_all_is_well(server: PoolServer, vector_add: str, transport: str) -> None:
    result = server.run([vector_add], transport)
    assert (result.returncode, result.stderr) == (0, ""), result.explain()


LOAD_BAD_PTX = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, module = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b".version 7.0\\nnonsense") != 0
"""


def test_what_a_soft_gpu_cannot_load_is_a_warning(server: PoolServer) -> None:
    """Programs that ignore the error, as CuPy does, go on with wrong results."""
    result = server.run([sys.executable, "-c", LOAD_BAD_PTX])
    assert result.returncode == 0, result.explain()

    def warned() -> bool:
        lines = server.log.read_text().splitlines()
        return any("warning" in x and "soft GPU: cannot load a module" in x for x in lines)

    wait_until(warned, "the server's log warned")


def test_launcher(toolchain: Toolchain, home: paths.Home) -> None:
    """`gpupool run --local --soft -- PROGRAM`: its exit code and its output are the program's."""
    env = client_environment_without_server()
    base = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", "--"]
    result = run_program([*base, str(toolchain.runtime_program("vector_add"))], env)
    assert (result.returncode, result.stdout) == (0, "PASS vector_add\n"), result.explain()
    result = run_program([*base, "sh", "-c", "exit 7"], env)
    assert result.returncode == 7, result.explain()


def client_environment_without_server() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    env = {**kept, "GPUPOOL_HOME": str(paths.find_home().root)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return env


# Simulated GPUs -----------------------------------------------------------------------------


def test_a_program_is_told_once_that_its_gpus_are_simulated(
    home: paths.Home, vector_add: str
) -> None:
    """Only where nobody asked for soft GPUs: else slow results look like a fault."""
    if find_system() is not None:
        pytest.skip("this machine has a CUDA driver")
    for driver, times in (("auto", 1), ("soft", 0)):
        server = PoolServer(driver)
        try:
            server.start()
            for transport in ("shm", "tcp", "zmq"):
                result = run_program([vector_add], server.environment(transport))
                assert result.returncode == 0, result.explain()
                said = [line for line in result.own_lines() if "simulated" in line]
                assert len(said) == times, result.explain()
            again = run_program([vector_add], {**server.environment("shm"), "GPUPOOL_LOG": "error"})
            assert again.own_lines() == []
        finally:
            server.close()
