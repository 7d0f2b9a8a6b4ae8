"""How two workers are joined, and who is not."""

from __future__ import annotations

import os
import re
import struct

import pytest

from harness import PoolServer, wait_until
from peer_client import (
    CHUNK,
    INVALID_VALUE,
    LEGACY,
    NOT_PERMITTED,
    UNAVAILABLE,
    Worker,
    assert_works,
    join,
    noise,
    sealed,
    worker_of,
)
from raw_client import RawClient
from tenants import MakeServer
from toolchain import Toolchain


def test_workers_are_joined_at_a_port_of_the_servers_range(make_server: MakeServer) -> None:
    server = make_server(**{"data-listen": "tcp://127.0.0.1:42000-42999"})
    with worker_of(server) as a, worker_of(server) as b:
        secret = os.urandom(16)
        result, url = a.listen(secret)
        assert result == 0
        assert re.search(r"^plain://127\.0\.0\.1:42[0-9]{3}\?door=", url)
        assert b.connect(secret, url) == 0
        source, target = a.allocate(8), b.allocate(8)
        a.write(source, noise(8))
        a.peer_send(LEGACY, 7, source, 8)
        b.peer_recv(LEGACY, 7, target, 8)
        assert b.read(target, 8) == noise(8)


def listen_by_zmq(worker: Worker, secret: bytes) -> tuple[str, str]:
    """Where it listens when it is asked once and, since the other did not come, again."""
    result, first = worker.listen(secret)
    assert (result, first.partition("://")[0]) == (0, "plain")
    result, url = worker.listen(secret)
    assert (result, url.partition("://")[0]) == (0, "tcp")
    return first, url


def test_a_worker_that_has_no_tcp_of_ours_is_met_by_zeromq(server: PoolServer) -> None:
    """One of an earlier release refuses the address; its client asks the first one again."""
    with worker_of(server) as a, worker_of(server) as b:
        secret = os.urandom(16)
        first, url = listen_by_zmq(a, secret)
        assert b.connect(secret, first) == UNAVAILABLE  # nobody is there any more
        assert b.connect(secret, url) == 0
        assert_works(a, b, 9)
        assert a.listen(secret)[0] == INVALID_VALUE  # it is in use
        size = 9 * CHUNK + 77
        source, target = a.allocate(size), b.allocate(size)
        a.write(source, noise(size))
        a.peer_send(LEGACY, 10, source, size)
        b.peer_recv(LEGACY, 10, target, size)
        assert b.read(target, size) == noise(size)


def test_who_listens_may_be_asked_to_connect_instead(server: PoolServer) -> None:
    """What it listens at is given up: so a client turns the two round."""
    with worker_of(server) as a, worker_of(server) as b:
        secret = os.urandom(16)
        assert a.listen(b"1" * 16)[0] == 0
        result, url = b.listen(secret)
        assert result == 0
        assert a.connect(secret, "plain://127.0.0.1:1") == NOT_PERMITTED
        assert a.connect(secret, url) == 0
        assert_works(a, b, 9)


def test_an_encrypted_link(make_server: MakeServer) -> None:
    """As the clients' own connections are; whoever has not the key is let in by nobody."""
    server = make_server(curve="")
    with worker_of(server) as a, worker_of(server) as b:
        secret = os.urandom(16)
        result, url = a.listen(secret)
        assert result == 0
        place, _, seal = url.partition("?")
        assert place.startswith("tls://")
        word = seal.partition("#")[0]
        for address in (f"{place}?door={os.urandom(16).hex()}", f"plain{place[3:]}?{word}"):
            assert b.connect(secret, sealed(address, secret)) == UNAVAILABLE, address
        assert b.connect(secret, url) == 0
        size = 9 * CHUNK + 77
        source, target = a.allocate(size), b.allocate(size)
        a.write(source, noise(size))
        a.peer_send(LEGACY, 10, source, size)
        b.peer_recv(LEGACY, 10, target, size)
        assert b.read(target, size) == noise(size)


def test_the_wrong_secret(server: PoolServer) -> None:
    """Neither is joined; the one who listens goes on listening for the right one."""
    with worker_of(server) as a, worker_of(server) as b:
        result, url = a.listen(b"1" * 16)
        assert result == 0
        assert b.connect(b"2" * 16, sealed(url.partition("#")[0], b"2" * 16)) == UNAVAILABLE
        b.peer_send(LEGACY, 1)
        assert b.wait_for_error() == ("gp_peer_send", INVALID_VALUE)
        assert b.connect(b"1" * 16, url) == 0
        assert_works(a, b, 9)
    word = url.partition("door=")[2].partition("#")[0]
    assert len(word) == 32
    log = server.log
    wait_until(lambda: "is not the worker that should" in log.read_text(), "it was said")
    assert word not in log.read_text(encoding="utf-8")


def test_the_right_one_comes_while_a_wrong_one_is_looked_at(server: PoolServer) -> None:
    """Nobody listens then: the connection is refused, and tried again."""
    with worker_of(server) as a, worker_of(server) as b:
        secret = os.urandom(16)
        _, url = listen_by_zmq(a, secret)
        with RawClient({"zmq": url.partition("#")[0]}) as stranger:
            assert stranger.greet()  # and says nothing more
            asked = b.start_connect(secret, url)
            assert not b.answers(0.5)
        assert struct.unpack_from("<i", b.reply_to(asked)) == (0,)
        assert_works(a, b, 9)


def test_work_may_be_submitted_before_the_other_has_come(server: PoolServer) -> None:
    with worker_of(server) as a, worker_of(server) as b:
        secret = os.urandom(16)
        result, url = a.listen(secret)
        assert result == 0
        source, target = a.allocate(64), b.allocate(64)
        a.write(source, noise(64))
        a.peer_send(LEGACY, 1, source, 64)
        a.peer_send(LEGACY, 2)
        assert a.busy(LEGACY)
        assert b.connect(secret, url) == 0
        b.peer_recv(LEGACY, 2)
        b.peer_recv(b.stream(), 1, target, 64)
        assert b.result("cuCtxSynchronize") == 0
        assert b.read(target, 64) == noise(64)


def test_numbers_and_addresses_that_are_none(server: PoolServer) -> None:
    with worker_of(server) as a, worker_of(server) as b:
        join(a, b)
        no_link_at_these(a, b)
        assert_works(a, b, 9)


def no_link_at_these(a: Worker, b: Worker) -> None:
    assert a.listen(b"1" * 16, 0)[0] == INVALID_VALUE  # is in use
    assert a.listen(b"1" * 16, 16)[0] == INVALID_VALUE
    for url in (
        "",
        "nothing",
        "tcp://*:1,2",
        "tcp://",
        "gopher://x",
        "tcp://127.0.0.1:1",
        "x" * 600,
    ):
        assert b.connect(b"1" * 16, url, 1) in (INVALID_VALUE, NOT_PERMITTED), url
        address = sealed(url, b"1" * 16)
        refused = (INVALID_VALUE, NOT_PERMITTED, UNAVAILABLE)
        assert b.connect(b"1" * 16, address, 1) in refused, address
    assert a.listen(b"1" * 16, 15)[0] == 0


@pytest.mark.parametrize("without", [0, 1])
def test_servers_of_which_one_has_no_tcp(
    make_server: MakeServer, toolchain: Toolchain, without: int
) -> None:
    """Whichever of the two listens, they meet by ZeroMQ."""
    servers = [
        make_server(**{"soft-gpus": "2"}, **({"no-tcp": ""} if place == without else {}))
        for place in range(2)
    ]
    program = str(toolchain.driver_program("driver_between"))
    urls = ",".join(server.url for server in servers)
    result = servers[0].run([program, "2"], "shm", GPUPOOL_SERVER=urls)
    assert (result.returncode, result.stdout) == (0, "PASS driver_between\n"), result.explain()
    assert "cannot reach each other" not in result.stderr
