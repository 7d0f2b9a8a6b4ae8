"""A client that gives its worker addresses of other workers which are none."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import PoolServer, paths_below, wait_until
from peer_client import NOT_PERMITTED, PAIR, UNAVAILABLE, Worker, join, sealed, worker_of
from tenants import MakeServer
from toolchain import Toolchain


@pytest.fixture
def target() -> Iterator[socket.socket]:
    """Something that listens on this machine, and is none of our business."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def nobody_came(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return True
    return False


def test_a_worker_goes_where_a_worker_is_only(server: PoolServer, target: socket.socket) -> None:
    """It connected to any port of any host that its client named."""
    url = f"tcp://127.0.0.1:{target.getsockname()[1]}?door={'00' * 16}"
    with worker_of(server) as worker:
        forged = [
            url,
            url.partition("?")[0],
            f"{url}#",
            f"{url}#{'0' * 16}.{'0' * 64}",
            sealed(url, key=os.urandom(32)),
            sealed(url, key=bytes(32)),
            sealed(url, secret=b"q" * 16),
            sealed(url, at=time.time() - 3600),
            sealed(url, at=time.time() + 3600),
            sealed(url + "1").replace(url + "1", url),
            sealed(url).upper(),
        ]
        for address in forged:
            assert worker.connect(PAIR, address) == NOT_PERMITTED, address
        assert nobody_came(target)
        assert worker.connect(PAIR, sealed(url)) == UNAVAILABLE, "the seal of the test is right"
        assert not nobody_came(target)


def test_a_client_writes_no_lines_of_the_log(server: PoolServer) -> None:
    """What it named with a line's end in it stood there as lines of the worker's own."""
    with worker_of(server) as worker:
        url = "tcp://nowhere\nerror: the GPU is on fire\r\x1b[2J"
        assert worker.connect(PAIR, url) == NOT_PERMITTED
    wait_until(lambda: "on fire" in server.log.read_text(), "it was said")
    said = [line for line in server.log.read_text().splitlines() if "on fire" in line]
    assert all("is refused" in line and "nowhere" in line for line in said), said
    assert not any("\x1b" in line for line in said)


@pytest.mark.parametrize("scheme", ["ipc", "shm"])
def test_sockets_of_the_machine_are_out_of_reach(
    server: PoolServer, tmp_path: Path, scheme: str
) -> None:
    """Another session's worker listens at one."""
    with worker_of(server) as worker:
        paths = [str(tmp_path / "any"), *map(str, paths_below(server.folder / "run/sessions"))]
        for path in paths:
            for address in (f"{scheme}://{path}", sealed(f"{scheme}://{path}")):
                assert worker.connect(PAIR, address) == NOT_PERMITTED, address


def test_a_changed_address_is_refused_and_the_right_one_is_taken(server: PoolServer) -> None:
    with worker_of(server) as one, worker_of(server) as other:
        secret = os.urandom(16)
        result, url = one.listen(secret)
        assert result == 0
        plain, _, seal = url.partition("#")
        head, _, tail = plain.partition("127.0.0.1:")
        for changed in (f"{head}127.0.0.2:{tail}#{seal}", f"{plain}1#{seal}", plain):
            assert other.connect(secret, changed) == NOT_PERMITTED, changed
        assert other.connect(secret, url) == 0


def test_servers_without_a_common_key_are_not_joined(
    make_server: MakeServer, toolchain: Toolchain
) -> None:
    """Nothing says that what one of them has sealed is a worker, so the other does not go."""
    own = make_server(**{"soft-gpus": "1"})
    with open(own.folder / "key", "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write("ab" * 32 + "\n")
    stranger = make_server(**{"soft-gpus": "1", "peer-key": str(own.folder / "key")})
    with worker_of(own) as one, worker_of(stranger) as other:
        secret = os.urandom(16)
        result, url = one.listen(secret)
        assert result == 0
        assert other.connect(secret, url) == NOT_PERMITTED
    # the worker's line comes to the log through the server
    log = stranger.log
    wait_until(lambda: "need the same peer_key" in log.read_text(encoding="utf-8"), "it was said")
    program = str(toolchain.driver_program("driver_between"))
    told = own.run([program, "1"], "tcp", GPUPOOL_SERVER=f"{own.url},{stranger.url}")
    # it asked for ports that a firewall might close
    assert "have the servers the same peer_key" in told.stderr, told.explain()


def workers(server: PoolServer) -> tuple[Worker, Worker]:
    return worker_of(server), worker_of(server)


def test_a_server_without_a_key_file_joins_its_own_workers() -> None:
    alone = PoolServer(**{"soft-gpus": "1"})
    del alone.settings["peer-key"]
    try:
        alone.start()
        one, other = workers(alone)
        with one, other:
            join(one, other)
        key = alone.folder / "run" / "peer.key"
        assert key.stat().st_mode & 0o777 == 0o600
    finally:
        alone.close()
