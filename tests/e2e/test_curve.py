"""A server that encrypts: programs over it, who is refused, and what the wire shows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from gpupool_common import paths
from gpupool_common.ask import ask_info, with_key
from harness import (
    PATIENCE,
    TOKEN,
    PoolServer,
    Result,
    Talk,
    alive,
    client_environment,
    run_program,
    wait_until,
)
from peer_client import LEGACY, Worker, worker_of
from pool_harness import PoolManager
from raw_client import RawClient, ask_for_session, query_of, worker_version
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]

OTHER = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f"


@pytest.fixture(scope="module")
def encrypting() -> Iterator[PoolServer]:
    made = PoolServer(curve="")
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def vector_add(toolchain: Toolchain) -> str:
    return str(toolchain.runtime_program("vector_add"))


@pytest.fixture
def hold(toolchain: Toolchain) -> str:
    return str(toolchain.runtime_program("hold"))


def key_of(url: str) -> str:
    return query_of(url)["key"]


def asked(server: PoolServer) -> dict[str, str]:
    """A session for a client that says all by itself."""
    return {**ask_for_session(server), "wire": worker_version(server.home)}


def assert_passes(result: Result, name: str) -> None:
    assert result.returncode == 0, result.explain()
    assert f"PASS {name}" in result.stdout, result.explain()
    assert result.own_lines() == [], result.explain()


def assert_refused(result: Result, *words: str) -> None:
    assert result.returncode == 1, result.explain()
    assert "FAIL" in result.stdout, result.explain()
    (line,) = result.own_lines()
    for word in words:
        assert word in line, line


# Programs ---------------------------------------------------------------------------


def test_a_program_runs(
    encrypting: PoolServer, server: PoolServer, vector_add: str, transport: str
) -> None:
    result = encrypting.run([vector_add], transport)
    assert_passes(result, "vector_add")
    plain = server.run([vector_add], transport)
    for count in ("round_trips", "messages_sent"):
        assert result.stats[count] == plain.stats[count]


@pytest.mark.parametrize("way", ["tcp", "zmq"])
def test_memory_of_all_sizes_comes_back(
    encrypting: PoolServer, toolchain: Toolchain, way: str
) -> None:
    program = toolchain.driver_program("driver_memory")
    assert_passes(encrypting.run([str(program)], way), "driver_memory")


def test_tcp_is_encrypted_where_curve_is(encrypting: PoolServer, server: PoolServer) -> None:
    """Who asks by a key is told no address in clear."""
    assert ask_for_session(encrypting)["tcp"].startswith("tls://")
    assert ask_for_session(server)["tcp"].startswith("plain://")


def test_every_worker_has_a_key_of_its_own(encrypting: PoolServer) -> None:
    keys = [key_of(ask_for_session(encrypting)["zmq"]) for _ in range(2)]
    assert all(len(bytes.fromhex(key)) == 32 for key in keys)
    assert len({*keys, key_of(encrypting.address)}) == 3


def test_nvml_asks_by_the_key(encrypting: PoolServer) -> None:
    if not (encrypting.home.root / "lib/libnvidia-ml.so.1").is_file():
        pytest.skip("this build has no libnvidia-ml.so.1: nvidia-nvml-dev was not installed")
    programs = str(Path(__file__).with_name("nvml_programs.py"))
    command = [sys.executable, programs, "look"]
    done = run_program(command, encrypting.environment(""))
    assert done.returncode == 0, done.explain()
    assert "gpupool soft GPU" in done.stdout
    refused = run_program(command, encrypting.environment("", GPUPOOL_SERVER=encrypting.url))
    assert "the address has no key" in refused.stderr, refused.explain()


def test_commands_ask_by_the_key(encrypting: PoolServer, vector_add: str) -> None:
    run = [sys.executable, "-m", "gpupool", "run", "--server", encrypting.address]
    env = {**os.environ, "GPUPOOL_TOKEN": TOKEN, "GPUPOOL_TRANSPORT": "zmq"}
    assert_passes(run_program([*run, "--", vector_add], env), "vector_add")
    info = [sys.executable, "-m", "gpupool", "info", "--server", encrypting.address]
    shown = run_program(info, env)
    assert shown.returncode == 0, shown.explain()
    assert "gpupool soft GPU" in shown.stdout


def test_show_key(encrypting: PoolServer) -> None:
    command = [sys.executable, "-m", "gpupool_server", "--show-key"]
    command += ["--run-dir", str(encrypting.folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == key_of(encrypting.address)


@pytest.mark.parametrize("first", [True, False], ids=["both", "second"])
def test_gpus_of_several_servers(
    make_server: MakeServer, toolchain: Toolchain, first: bool
) -> None:
    """Whoever listens says whether the bytes between two hosts are encrypted."""
    gpus = {"soft-gpus": "2"}
    servers = [
        make_server(**gpus, **({"curve": ""} if first else {})),
        make_server(**gpus, curve=""),
    ]
    addresses = ",".join(server.address for server in servers)
    program = str(toolchain.driver_program("driver_between"))
    result = servers[0].run([program, "2"], "zmq", GPUPOOL_SERVER=addresses)
    assert (result.returncode, result.stdout) == (0, "PASS driver_between\n"), result.explain()


# Who is refused -----------------------------------------------------------------------


def test_without_the_key(encrypting: PoolServer, vector_add: str) -> None:
    result = encrypting.run([vector_add], GPUPOOL_SERVER=encrypting.url)
    assert_refused(result, "encrypts, and the address has no key", "--show-key")


def test_with_another_key(encrypting: PoolServer, vector_add: str) -> None:
    url = f"{encrypting.url}?key={OTHER}"
    result = encrypting.run([vector_add], GPUPOOL_SERVER=url)
    assert_refused(result, "does not have this key")


@pytest.mark.parametrize("key", ["", "12", OTHER.upper(), OTHER[1:], f"{OTHER}0", "own"])
def test_with_no_key_at_all(encrypting: PoolServer, vector_add: str, key: str) -> None:
    result = encrypting.run([vector_add], GPUPOOL_SERVER=f"{encrypting.url}?key={key}")
    assert_refused(result, "64 digits 0-9 a-f")


def test_with_a_key_where_none_is(server: PoolServer, vector_add: str) -> None:
    result = server.run([vector_add], GPUPOOL_SERVER=f"{server.url}?key={OTHER}")
    assert_refused(result, "does not encrypt")


def test_the_token_is_needed_as_well(encrypting: PoolServer, vector_add: str) -> None:
    assert_refused(encrypting.run([vector_add], GPUPOOL_TOKEN="no"), "token")


@pytest.mark.parametrize("key", ["", OTHER])
def test_a_worker_takes_nobody_without_its_key(encrypting: PoolServer, key: str) -> None:
    """The secret of a session does not help who does not know whom to speak to."""
    session = asked(encrypting)
    right_key = query_of(session["zmq"])["key"]
    wrong = session["zmq"].replace(f"key={right_key}", f"key={key}" if key else "")
    with RawClient({**session, "zmq": wrong}) as stranger:
        assert not stranger.greet(patience=0.5)
    with Worker(session) as right:
        right.begin()
        assert right.synchronize() == 0


@pytest.fixture
def downgrading() -> Iterator[str]:
    """A front end that encrypts and sends its clients on to a worker that does not."""
    context = zmq.Context()
    door = context.socket(zmq.ROUTER)
    public, secret = zmq.curve_keypair()
    door.setsockopt(zmq.CURVE_SERVER, 1)
    door.setsockopt(zmq.CURVE_SECRETKEY, secret)
    port = door.bind_to_random_port("tcp://127.0.0.1")
    answer = "\n".join(
        ["GPUPOOL/1 ok", "session: 0123456789ab", f"secret: {'0' * 32}", "boot-id: x"]
        + [f"zmq: tcp://127.0.0.1:1?door={'0' * 32}", ""]
    )
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            if door.poll(100):
                who, *rest = door.recv_multipart()
                door.send_multipart([who, *rest[:-1], answer.encode()])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{port}?key={z85.decode(public).hex()}"
    stopping.set()
    thread.join(5)
    context.destroy(linger=0)


def test_no_worker_in_clear_behind_a_key(
    encrypting: PoolServer, vector_add: str, downgrading: str
) -> None:
    result = encrypting.run([vector_add], GPUPOOL_SERVER=downgrading)
    assert_refused(result, "it encrypts, but offers a worker that does not")


# What may go wrong ----------------------------------------------------------------------


def test_noise_on_every_port(encrypting: PoolServer) -> None:
    dice = random.Random(5)
    session = asked(encrypting)
    door = session["zmq"].partition("?")[0]
    ports = [door.rpartition(":")[2], encrypting.url.rpartition(":")[2]]
    greeting = bytes((255, 0, 0, 0, 0, 0, 0, 0, 1, 127, 3, 1)) + b"CURVE".ljust(52, b"\0")
    for number in range(60):
        noise = (b"", greeting, greeting + b"\x04\xc8\x05HELLO")[number // 3 % 3]
        noise += dice.randbytes(dice.randrange(300))
        stranger = socket.create_connection(("127.0.0.1", int(ports[number % 2])), PATIENCE)
        with stranger, contextlib.suppress(ConnectionError):  # who has heard enough resets
            stranger.sendall(noise)
    with Worker(session) as right:
        right.begin()
        assert right.synchronize() == 0
    assert len(ask_info(encrypting.address, TOKEN)["devices"]) == 1


def test_killed_server_ends_no_session_and_keeps_its_key(
    make_server: MakeServer, talk: StartTalk, hold: str, vector_add: str
) -> None:
    server = make_server(curve="")
    before = server.address
    program = talk([hold], server.environment("zmq"))
    assert program.line() == "ready"
    server.kill()
    program.say("go")
    assert program.line() == "step 1"
    server.start()
    assert server.address == before
    assert_passes(server.run([vector_add], "zmq"), "vector_add")
    wait_until(lambda: len(server.sessions()) == 1, "the other's session is over")
    program.say("end")
    assert "PASS hold" in program.finish().stdout


def test_killed_worker_gives_errors_and_no_hang(
    make_server: MakeServer, talk: StartTalk, hold: str
) -> None:
    server = make_server(curve="")
    program = talk([hold], server.environment("zmq"))
    assert program.line() == "ready"
    (worker,) = server.worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), "the worker ended")
    program.say("go")
    result = program.finish()
    assert result.returncode == 3, result.explain()
    assert "gone cuda" in result.stdout
    assert len(result.own_lines()) == 1, result.explain()


@pytest.mark.parametrize("way", ["tcp", "zmq"])
def test_workers_encrypt_between_each_other(encrypting: PoolServer, way: str) -> None:
    with worker_of(encrypting) as a, worker_of(encrypting) as b:
        secret = os.urandom(16)
        result, url = a.listen(secret)
        assert (result, url.partition("://")[0]) == (0, "tls")
        if way == "zmq":  # which it takes when it is asked again
            result, url = a.listen(secret)
            assert (result, url.partition("://")[0]) == (0, "tcp")
            assert len(bytes.fromhex(key_of(url))) == 32
        assert b.connect(secret, url) == 0
        data = random.Random(1).randbytes(3 << 20)
        source, target = a.allocate(len(data)), b.allocate(len(data))
        a.write(source, data)
        a.peer_send(LEGACY, 1, source, len(data))
        b.peer_recv(LEGACY, 1, target, len(data))
        assert b.read(target, len(data)) == data


def test_a_pool_hands_out_the_keys(home: paths.Home, vector_add: str) -> None:
    manager = PoolManager()
    servers: list[PoolServer] = []
    try:
        manager.start()
        tenant = manager.tenant("red")
        servers += [manager.server("one", curve="")]
        servers[0].start()
        manager.wait_for("one")
        lease = manager.lease(tenant, gpus=1, memory_bytes=256 << 20, share_permille=500)
        (given,) = lease["servers"]
        address = with_key(given["address"], given["key"])
        assert address == servers[0].address
        program = client_environment(home, address, lease["token"], "zmq")
        assert_passes(run_program([vector_add], program), "vector_add")
        bare = client_environment(home, given["address"], lease["token"], "zmq")
        assert_refused(run_program([vector_add], bare), "the address has no key")
    finally:
        for server in servers:
            server.close()
        manager.close()


# On the wire --------------------------------------------------------------------------


class Tap:
    """Passes connections on, and keeps what went either way."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        self._behind = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._behind)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other direction ended first

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.mark.parametrize("encrypts", [False, True])
def test_token_and_secret_are_not_on_the_wire(
    server: PoolServer, encrypting: PoolServer, vector_add: str, encrypts: bool
) -> None:
    asked = encrypting if encrypts else server
    tap = Tap(asked.url)
    try:
        url = tap.url + asked.address.removeprefix(asked.url)
        assert_passes(asked.run([vector_add], "zmq", GPUPOOL_SERVER=url), "vector_add")
        assert len(tap.seen) > 500
        for words in (TOKEN.encode(), b"secret: ", b"vector_add", b"GPUPOOL/1"):
            assert (words in tap.seen) is not encrypts, words
    finally:
        tap.close()


def test_an_answer_cannot_be_forged(encrypting: PoolServer, vector_add: str) -> None:
    """Who listens at the address but has not the secret half of its key gets no token."""
    context = zmq.Context()
    door = context.socket(zmq.ROUTER)
    try:
        _, secret = zmq.curve_keypair()
        door.setsockopt(zmq.CURVE_SERVER, 1)
        door.setsockopt(zmq.CURVE_SECRETKEY, secret)
        port = door.bind_to_random_port("tcp://127.0.0.1")
        url = f"tcp://127.0.0.1:{port}?key={key_of(encrypting.address)}"
        assert_refused(encrypting.run([vector_add], GPUPOOL_SERVER=url), "does not have this key")
        assert not door.poll(0), "it was told something"
    finally:
        context.destroy(linger=0)
