"""Where workers listen for other machines, and who of them is in the host's network."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpupool_common.errors import ConfigError, InstallError
from gpupool_common.protocol import Message
from gpupool_server import ucx, worker
from gpupool_server.config import Settings, load_settings
from gpupool_server.data_ports import data_place, to_try
from gpupool_server.network import Network
from gpupool_server.session_request import _needs_zmq, _wants_ucx
from gpupool_server.worker import WorkerError
from ports import free_port

PROGRAM = Path("gpupool-worker")


def network(
    monkeypatch: pytest.MonkeyPatch, transports: str = "shm tcp zmq", **settings: object
) -> Network:
    why = "" if "tcp" in transports else "there is no OpenSSL"
    monkeypatch.setattr(ucx, "find", lambda named: named)
    monkeypatch.setattr(worker, "ask_transports", lambda *_: (transports.split(), why))
    values = {"data_listen": "tcp://127.0.0.1:*", **settings}
    return Network(Settings.model_validate(values), PROGRAM, Path())


def schemes(one: Network, needs_zmq: bool) -> tuple[list[str], bool]:
    """What a worker listens by, and whether it is in the host's network."""
    with one.listen(needs_zmq) as ways:
        return [url.partition(":")[0] for url in ways.urls], bool(ways.host)


@pytest.mark.parametrize(
    ("settings", "alone", "with_zmq"),
    [
        ({}, (["plain"], False), (["tcp", "plain"], True)),
        ({"curve": True}, (["tls"], False), (["tcp", "tls"], True)),
        ({"zmq": False}, (["plain"], False), (["plain"], False)),
        ({"tcp": False}, (["tcp"], True), (["tcp"], True)),
        ({"data_listen": "none"}, ([], False), ([], False)),
        ({"transports": "shm zmq"}, (["tcp"], True), (["tcp"], True)),
    ],
)
def test_who_needs_the_hosts_network(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    alone: tuple[list[str], bool],
    with_zmq: tuple[list[str], bool],
) -> None:
    one = network(monkeypatch, **settings)  # type: ignore[arg-type]
    assert schemes(one, False) == alone
    assert schemes(one, True) == with_zmq
    assert bool(one.host_always) == alone[1]
    assert bool(one.host_maybe) == with_zmq[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "*", "[::]"])  # noqa: S104
def test_a_worker_gets_a_socket_that_listens(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    if host == "[::]" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    one = network(monkeypatch, data_listen=f"tcp://{host}:*", insecure_plain=True)
    with one.listen(False) as ways:
        (handed,) = ways.sockets
        assert ways.urls == (f"plain://{host}:*?fd={handed}",)
        with socket.socket(fileno=os.dup(handed)) as listener:
            port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 10).close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handed)


def test_workers_listen_at_ports_of_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        one = network(monkeypatch, data_listen=f"tcp://127.0.0.1:{port}-{port}")
        with pytest.raises(WorkerError, match="ports of which some must be free"), one.listen(True):
            pass
    # Ours now, and nobody else's until it is closed.
    with one.listen(True) as ways:
        assert ways.urls == (
            f"tcp://127.0.0.1:{port}-{port}",  # ZeroMQ's: the worker chooses
            f"plain://127.0.0.1:*?fd={ways.sockets[0]}",
        )
        with socket.socket(fileno=os.dup(ways.sockets[0])) as listener:
            assert listener.getsockname()[1] == port


def test_ports_are_tried_once_each() -> None:
    _, ports = data_place("tcp://[::1]:65526-65535")
    assert sorted(to_try(ports)) == list(range(65526, 65536))
    assert {next(to_try(ports)) for _ in range(1000)} == set(range(65526, 65536))
    assert data_place("tcp://h:*") == ("h", None)
    assert list(to_try(None)) == [0]


UCX = {"ucx": True, "ucx_library": Path("/opt/ucx/lib/libucp.so.0"), "zmq": False}


def test_who_asks_for_ucx_is_met_in_the_hosts_network(monkeypatch: pytest.MonkeyPatch) -> None:
    one = network(monkeypatch, "shm tcp zmq ucx", **UCX)
    assert schemes(one, False) == (["plain"], False)
    with one.listen(False, True) as ways:
        assert [url.partition("?")[0] for url in ways.urls] == [
            "plain://127.0.0.1:*",
            "ucx://127.0.0.1:*",
        ]
        assert len(set(ways.sockets)) == 2 and ways.rdma
        assert "UCX" in ways.host
    assert "UCX" in one.host_maybe and not one.host_always
    without = network(monkeypatch)
    with without.listen(False, True) as ways:
        assert len(ways.urls) == 1 and not ways.rdma and not ways.host


def test_a_server_without_ucx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InstallError, match="no UCX of 1.20 or later.*pip install libucx-cu12"):
        network(monkeypatch, "shm tcp zmq", **UCX)
    with pytest.raises(InstallError, match="no UCX of 1.20 or later"):
        network(monkeypatch, "shm tcp zmq ucx", **{**UCX, "ucx_library": None})


def test_ucx_is_for_servers_that_do_not_encrypt() -> None:
    with pytest.raises(ConfigError, match="UCX does not encrypt.*--insecure-plain"):
        load_settings(None, {"ucx": True, "listen": "tcp://0.0.0.0:7700"}, {})
    with pytest.raises(ConfigError, match="UCX does not encrypt"):
        load_settings(None, {"ucx": True, "curve": True}, {})
    with pytest.raises(ConfigError, match="needs 'data_listen' at tcp://"):
        load_settings(None, {"ucx": True, "data_listen": "none"}, {})
    load_settings(None, {"ucx": True, "listen": "tcp://0.0.0.0:7700", "insecure_plain": True}, {})


def test_a_client_has_to_ask_for_ucx() -> None:
    assert _wants_ucx(Message("hello", {"ways": "ucx"}))
    assert not _wants_ucx(Message("hello", {"ways": "shm tcp zmq"}))
    assert not _wants_ucx(Message("hello", {}))


def test_an_address_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    one = network(monkeypatch, data_listen="tcp://192.0.2.1:*", insecure_plain=True)
    with (
        pytest.raises(WorkerError, match=r"cannot listen at plain://192\.0\.2\.1"),
        one.listen(False),
    ):
        pass


def test_nothing_left_to_listen_by(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InstallError, match="zmq is off, and .* no tcp: there is no OpenSSL"):
        network(monkeypatch, "shm zmq", zmq=False)
    with pytest.raises(ConfigError, match="zmq.*clients need 'tcp'"):
        load_settings(None, {"zmq": False, "tcp": False}, {})


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, True),  # an earlier release
        ({"ways": "shm tcp zmq"}, False),
        ({"ways": "tcp zmq", "servers": "1"}, False),
        ({"ways": "shm"}, False),
        ({"ways": "shm zmq"}, True),
        ({"ways": "shm tcp zmq", "servers": "2"}, True),
        ({"ways": "pigeon"}, False),
    ],
)
def test_what_a_client_needs(fields: dict[str, str], needs: bool) -> None:
    assert _needs_zmq(Message("hello", fields)) is needs
