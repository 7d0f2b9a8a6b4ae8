"""What operators give a server that joins: its token, and an address for clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupool_common import hosts
from gpupool_common.errors import ConfigError
from gpupool_common.node_protocol import (
    Again,
    Told,
)
from gpupool_manager.node_server import NodeServer, check_reachable
from gpupool_manager.problems import Problem
from gpupool_server.config import Settings
from gpupool_server.join_token import JoinToken
from gpupool_server.manager_connection import find_address
from link_host import Host, MakePeer, no, report_of


def join_settings(**values: Any) -> Settings:
    return Settings.model_validate({"pool": "tcp://m:7781", **values})


GOOD = "gpn_" + "x" * 43 + "." + "ab" * 32


def test_a_join_token_from_its_file(folder: Path) -> None:
    path = folder / "token"
    path.write_text(GOOD + "\n")
    path.chmod(0o600)
    for given in (str(path), GOOD):
        token = join_settings(join_token=given).join_token
        assert token is not None
        assert JoinToken.read(token) == JoinToken("gpn_" + "x" * 43, "ab" * 32)


def test_a_join_token_that_names_the_next_key_too() -> None:
    token = join_settings(join_token=f"{GOOD}.{'cd' * 32}").join_token
    assert token is not None
    assert JoinToken.read(token) == JoinToken("gpn_" + "x" * 43, "ab" * 32, "cd" * 32)


@pytest.mark.parametrize(
    "text",
    [
        "gpp_" + GOOD[4:],
        GOOD[:-1],
        GOOD + "0",
        GOOD + ".",
        GOOD.replace(".", ""),
        "xyz",
        GOOD.upper(),
    ],
)
def test_a_file_without_a_join_token(folder: Path, text: str) -> None:
    path = folder / "token"
    path.write_text(text)
    path.chmod(0o600)
    token = join_settings(join_token=str(path)).join_token
    assert token is not None
    with pytest.raises(ConfigError, match="no token for servers") as caught:
        JoinToken.read(token)
    assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("listen", "advertise", "address"),
    [
        ("tcp://10.0.0.1:7700", None, "tcp://10.0.0.1:7700"),
        ("tcp://0.0.0.0:7700", "tcp://gpu1:9", "tcp://gpu1:9"),
    ],
)
def test_where_clients_go(listen: str, advertise: str | None, address: str) -> None:
    assert find_address(join_settings(advertise=advertise), listen) == address


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:7700", "tcp://*:7700"])
def test_an_address_for_everybody_is_that_towards_the_manager(
    monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    """The host's own name is not asked: it is 'localhost' on many, or 127.0.1.1."""
    ways: dict[str, str | None] = {"m": "10.1.2.3", "192.0.2.1": "10.9.9.9"}
    monkeypatch.setattr(hosts, "source_towards", lambda host, port: ways[host])
    assert find_address(join_settings(), listen) == "tcp://10.1.2.3:7700"
    ways["m"] = "2001:db8::1"
    assert find_address(join_settings(), listen) == "tcp://[2001:db8::1]:7700"
    for nearer in ("127.0.0.1", "::1", None):
        ways["m"] = nearer
        assert find_address(join_settings(), listen) == "tcp://10.9.9.9:7700"


@pytest.mark.parametrize(
    "listen", ["tcp://127.0.0.1:7700", "tcp://localhost:7700", "tcp://[::1]:7700", "tcp://*:7700"]
)
def test_the_loopback_is_advertised_only_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    monkeypatch.setattr(hosts, "source_towards", lambda host, port: "127.0.0.1")
    with pytest.raises(ConfigError, match="cannot reach tcp://.*--advertise tcp://127.0.0.1:7700"):
        find_address(join_settings(), listen)
    told = "tcp://127.0.0.1:7700"
    assert find_address(join_settings(advertise=told), listen) == told


def test_a_node_of_another_host_may_not_advertise_the_loopback() -> None:
    for address in ("tcp://127.0.0.1:7700", "tcp://localhost:1", "tcp://[::1]:1"):
        check_reachable(address, "127.0.0.1")
    with pytest.raises(Problem, match="set its --advertise") as caught:
        check_reachable("tcp://127.0.0.1:7700", "203.0.113.9")
    assert (caught.value.code, caught.value.status) == ("unreachable", 422)
    check_reachable("tcp://10.0.0.1:7700", "203.0.113.9")
    check_reachable("ipc:///run/front.sock", "203.0.113.9")


async def test_who_is_refused_for_its_address_is_told_why(
    host: Host, make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = await host.token(node="localhost")
    peer = make_peer()
    told = await peer.join(secret, node="localhost")
    assert isinstance(told, Told)  # of this machine
    serve = NodeServer._serve

    async def from_elsewhere(
        self: NodeServer, connection: bytes, address: str, key: str, frames: list[bytes]
    ) -> None:
        await serve(self, connection, "203.0.113.9", key, frames)

    monkeypatch.setattr(NodeServer, "_serve", from_elsewhere)
    again = Again(number=2, report=report_of("localhost"))
    no(await peer.ask(again), "unreachable", "tcp://localhost:7700")
    no(await make_peer().join(secret, node="localhost"), "unreachable", "203.0.113.9")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("[::1]", True), ("localhost", True)]
    + [("LOCALHOST.", True), ("a.localhost", True), ("::ffff:127.0.0.1", True)]
    + [("10.0.0.1", False), ("gpu-1", False), ("::", False), ("fe80::1%eth0", False)],
)
def test_what_every_machine_takes_for_itself(host: str, loopback: bool) -> None:
    assert hosts.is_loopback(host) is loopback


def test_addresses_of_this_machine() -> None:
    assert hosts.is_own("127.0.0.1")
    assert not hosts.is_own("203.0.113.9")  # of documents (RFC 5737)
    assert hosts.source_towards("127.0.0.1", 9) == "127.0.0.1"
