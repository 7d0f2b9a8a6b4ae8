"""The link: who may join, what a node is told and when, and what becomes of broken peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
import zmq
import zmq.asyncio
from structlog.testing import capture_logs

from gpupool_common import hosts
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.keys import Keys
from gpupool_common.lease import LeaseEnd
from gpupool_common.node_protocol import (
    Again,
    Beat,
    Heartbeat,
    Join,
    Refused,
    ReportedSession,
    Told,
    encode,
)
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.node_server import NodeServer, check_reachable
from gpupool_manager.problems import Problem
from gpupool_server import manager_connection
from gpupool_server.config import Settings
from gpupool_server.manager_connection import JoinToken, ManagerConnection, find_address
from gpupool_server.node_keys import NodeKeys
from gpupool_server.pool_member import PoolMember
from link_host import Host, MakePeer, applied, new_keys, no, report_of
from server_harness import MakeOffice, accepted, eventually, hello


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


# Joining --------------------------------------------------------------------------------------


async def test_a_node_joins_and_is_told_everything(host: Host, make_peer: MakePeer) -> None:
    token, secret = await host.token()
    peer = make_peer()
    told = await peer.join(secret, gpus=2)
    orders = applied(told)
    assert (orders.mode, orders.grants, len(orders.gpus)) == ("open", [], 2)
    assert isinstance(told, Told) and told.number == 1
    assert orders.keys == host.pool.signer.public_keys()
    node = host.node("n")
    assert node is not None and (node.key, node.token) == (peer.keys.public, token.id)
    beat = await peer.ask(Beat(number=2, heartbeat=Heartbeat(applied=orders.generation)))
    assert isinstance(beat, Told) and beat.orders.commands == []


@pytest.mark.parametrize("scope", ["admin", "tenant"])
async def test_only_nodes_tokens_join(host: Host, make_peer: MakePeer, scope: str) -> None:
    await host.tenant()
    _, secret = await host.token(scope, tenant="red" if scope == "tenant" else None)
    no(await make_peer().join(secret), "bad-token", "not a node's")
    no(await make_peer().join("gpn_unknown"), "bad-token", "not a node's")
    assert host.node("n") is None


async def test_a_revoked_token_joins_nobody_and_cuts_off(host: Host, make_peer: MakePeer) -> None:
    token, secret = await host.token()
    await host.token("admin")
    peer = make_peer()
    applied(await peer.join(secret))
    await host.pool.commands.do(
        lambda transaction: host.pool.tenancy.revoke_token(transaction, token.id)
    )
    no(await peer.hear(), "bad-token", "revoked")  # at once, and unasked
    no(await peer.ask(Beat(number=3, heartbeat=Heartbeat())), "unknown-node")
    no(await peer.join(secret), "bad-token", "revoked")


async def test_an_expired_token_is_for_those_who_have_joined(
    host: Host, make_peer: MakePeer
) -> None:
    _, secret = await host.token(expires=host.pool.clock() + 100)
    peer = make_peer()
    applied(await peer.join(secret))
    host.ahead = 200.0
    applied(await make_peer(keys=peer.keys).join(secret))
    no(await make_peer().join(secret), "bad-token", "expired")


async def test_a_token_of_one_node_is_of_no_other(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token(node="mine")
    no(await make_peer().join(secret, "other"), "forbidden", "for the node 'mine'")
    applied(await make_peer().join(secret, "mine"))


async def test_a_name_stays_with_its_key_until_it_is_removed(
    host: Host, make_peer: MakePeer
) -> None:
    _, secret = await host.token()
    first = make_peer()
    applied(await first.join(secret))
    thief = make_peer()
    no(await thief.join(secret), "forbidden", "another key")
    no(await thief.ask(Beat(number=2, heartbeat=Heartbeat())), "unknown-node")
    # Nor who does not prove to have a key.
    token = host.pool.ledger.tokens.of_secret(secret)
    assert token is not None
    with pytest.raises(Exception, match="another key"):
        host.pool.fleet.heartbeat(token, "n", Heartbeat(), 0.0)
    assert isinstance(await first.ask(Beat(number=3, heartbeat=Heartbeat())), Told)
    await host.pool.commands.do(lambda transaction: host.pool.fleet.remove(transaction, "n"))
    no(await thief.join(secret), "bad-token", "was removed from the pool")
    no(await first.hear(), "unknown-node", "was removed")
    no(await first.ask(Again(number=4, report=report_of("n"))), "unknown-node")
    _, fresh = await host.token()
    applied(await thief.join(fresh))


async def test_the_connection_that_joined_last_is_told(host: Host, make_peer: MakePeer) -> None:
    """As after a cable was pulled: the old connection is still there and speaks for nobody."""
    _, secret = await host.token()
    await host.tenant()
    old = make_peer()
    applied(await old.join(secret))
    new = make_peer(keys=old.keys)
    applied(await new.join(secret))
    lease = await host.lease()
    assert [grant.lease for grant in applied(await new.told()).grants] == [lease.id]
    await old.socket.send(encode(Beat(number=9, heartbeat=Heartbeat())))
    answers = [await old.hear(), await old.hear()]  # what it was still told as it was replaced
    no(answers[-1], "unknown-node")


async def test_nobody_joins_in_clear(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    plain = make_peer(curve=False)
    join = encode(Join(number=1, node="n", token=secret, report=report_of("n")))
    with contextlib.suppress(zmq.Again):  # it may have learnt already that it is not wanted
        await plain.socket.send(join, flags=zmq.NOBLOCK)
    # Who is encrypted gets an answer after it: the plain one has had its time.
    _, other = await host.token(node="other")
    applied(await make_peer().join(other, "other"))
    assert not await plain.socket.poll(200)
    assert host.node("n") is None


async def test_a_false_node_takes_nobodys_lease(host: Host, make_peer: MakePeer) -> None:
    """Whoever read a join token made a node of any name, and another tenant's lease went there."""
    await host.tenant()
    _, secret = await host.token(node="n")
    true = make_peer()
    applied(await true.join(secret))
    false = make_peer()
    for name in ("n", "m", "zz"):
        code, part = ("forbidden", "another key") if name == "n" else ("bad-token", "no node")
        for said in (secret, "gpn_" + "x" * 43):
            told = await false.join(said, name)
            assert isinstance(told, Refused) and told.code in ("bad-token", "forbidden"), told
    # Nor can one that has joined, and was taken over since, speak for another, or take its GPUs.
    _, other = await host.token(node="m")
    stolen = report_of("n")
    no(await false.ask(Join(number=2, node="m", token=other, report=stolen)), "bad-request")
    applied(await false.join(other, "m"))
    repoint = Join(number=3, node="n", token=other, report=report_of("m"))
    no(await false.ask(repoint), "forbidden", "for the node 'm'")
    host.ahead = 10_000.0
    await host.pool.tick()  # the true one is lost: even then its GPU is its own
    assert (await false.told()).number == 0  # it is taken for lost, too
    no(await false.ask(Join(number=4, node="m", token=other, report=stolen)), "bad-request")
    node = host.node("n")
    assert node is not None and (node.address, node.key) == ("tcp://n:7700", true.keys.public)
    assert {gpu.node for gpu in host.pool.ledger.gpus.values()} == {"n", "m"}


# Bad messages ---------------------------------------------------------------------------------


async def test_bad_messages_are_answered_and_harm_nobody(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    good, bad = make_peer(), make_peer()
    applied(await good.join(secret))
    for frames, code in (
        ([b""], "bad-request"),
        ([b"\xc1"], "bad-request"),
        ([b"a", b"b"], "bad-request"),
        ([b"", b""], "bad-request"),
        ([b"\x81\xa8protocol\x01"], "version"),
        ([encode(Beat(number=5, heartbeat=Heartbeat()))], "unknown-node"),
        ([encode(Again(number=5, report=report_of("n")))], "unknown-node"),
        ([encode(Refused(code="x", message=""))], "bad-request"),
    ):
        await bad.socket.send_multipart(frames)
        no(await bad.hear(), code)
    assert isinstance(await good.ask(Beat(number=2, heartbeat=Heartbeat())), Told)


async def test_a_bad_report_changes_nothing(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    peer = make_peer()
    applied(await peer.join(secret, gpus=2))
    twice = report_of("n", 2)
    twice.gpus[1] = twice.gpus[0]
    no(await peer.ask(Again(number=7, report=twice)), "bad-request", "twice")
    theirs = make_peer()
    stolen = report_of("m")
    stolen.gpus[0] = twice.gpus[0]
    _, other = await host.token(node="m")
    join = Join(number=8, node="m", token=other, report=stolen)
    no(await theirs.ask(join), "bad-request", "on node 'n'")
    assert host.node("m") is None
    assert len(host.pool.ledger.gpus) == 2


async def test_too_much_ends_only_its_connection(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    good, bad = make_peer(), make_peer()
    applied(await good.join(secret))
    await bad.socket.send(bytes(3 << 20))
    assert isinstance(await good.ask(Beat(number=2, heartbeat=Heartbeat())), Told)
    assert not await bad.socket.poll(200)


# Orders ---------------------------------------------------------------------------------------


async def test_orders_come_before_the_lease_is_known(host: Host, make_peer: MakePeer) -> None:
    await host.tenant()
    peer, other = make_peer(), make_peer()
    for name, node in (("a", peer), ("b", other)):
        _, secret = await host.token(node=name)
        applied(await node.join(secret, name))
    first = await host.lease(gpus=2, hosts="spread")
    orders = [applied(await each.told()) for each in (peer, other)]
    for each in orders:
        (grant,) = each.grants
        assert (grant.lease, grant.tenant, grant.memory_bytes) == (first.id, "red", 64 * MIB)
        assert each.at > 0
    await host.end(first)
    assert [applied(await each.told()).grants for each in (peer, other)] == [[], []]


async def test_changes_of_nodes_and_gpus_are_told_at_once(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    peer = make_peer()
    applied(await peer.join(secret))
    pool = host.pool
    await pool.commands.do(
        lambda transaction: pool.fleet.change(transaction, "n", "draining", None)
    )
    assert applied(await peer.told()).mode == "draining"
    changes = {"policy": "fixed", "max_inst": 5}
    await pool.commands.do(
        lambda transaction: pool.fleet.change_gpu(transaction, "GPU-n-0", changes)
    )
    (gpu,) = applied(await peer.told()).gpus
    assert (gpu.policy, gpu.max_inst) == ("fixed", 5)


async def test_a_node_that_is_away_is_told_when_it_is_back(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    await host.tenant()
    peer = make_peer()
    applied(await peer.join(secret))
    peer.close()
    lease = await host.lease()
    again = make_peer(keys=peer.keys)
    assert [g.lease for g in applied(await again.join(secret)).grants] == [lease.id]


async def test_a_heartbeat_keeps_and_releases(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    await host.tenant()
    peer = make_peer()
    applied(await peer.join(secret))
    lease = await host.lease(until=LeaseEnd.LAST_SESSION)
    orders = applied(await peer.told())
    session = ReportedSession(id="s1", lease=lease.id, program="p")
    before = lease.expires
    host.ahead = 5.0
    busy = Heartbeat(applied=orders.generation, sessions=[session])
    told = await peer.ask(Beat(number=3, heartbeat=busy))
    assert isinstance(told, Told) and told.orders.commands == []
    assert before is not None and lease.expires is not None and lease.expires > before
    idle = Heartbeat(applied=orders.generation, idle=[lease.id, "lease-unknown"])
    await peer.socket.send(encode(Beat(number=4, heartbeat=idle)))
    # The push comes first, then the answer, which has nothing to add or says it again.
    assert applied(await peer.told()).grants == []
    assert (await peer.told()).number == 4
    assert lease.state == "released"


async def test_a_node_that_was_taken_for_lost_reports_again(
    host: Host, make_peer: MakePeer
) -> None:
    _, secret = await host.token()
    peer = make_peer()
    applied(await peer.join(secret))
    host.ahead = 10_000.0
    await host.pool.tick()
    node = host.node("n")
    assert node is not None and node.lost
    told = await peer.ask(Beat(number=2, heartbeat=Heartbeat()))
    while isinstance(told, Told) and told.number == 0:
        told = await peer.hear()
    assert isinstance(told, Told) and [each.do for each in told.orders.commands] == ["report"]
    await peer.socket.send(encode(Again(number=3, report=report_of("n"))))
    while (told := await peer.told()).number != 3:
        pass
    assert applied(told).mode == "open" and not node.lost


# Both ends ------------------------------------------------------------------------------------


class End:
    """A server's end of the link with a real member behind it."""

    def __init__(self, host: Host, member: PoolMember, secret: str, keys: Keys) -> None:
        token = JoinToken(secret, host.keys.public)
        self.member = member
        self.keys = NodeKeys(keys)
        self.link = ManagerConnection(
            host.link.url,
            token,
            self.keys,
            member,
            lambda: member.report("tcp://h:7700", "", {}),
        )


MakeEnd = Callable[..., Awaitable[End]]


@pytest_asyncio.fixture
async def make_end(
    host: Host, make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeEnd]:
    monkeypatch.setattr(manager_connection, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(manager_connection, "LAST_RETRY", 0.1)
    ends: list[End] = []

    async def make(secret: str | None = None, keys: Keys | None = None) -> End:
        office = await make_office()
        member = PoolMember("n", office.run_dir.path, office.gpus, office.supervisor)
        office.handler.join(member)
        end = End(host, member, secret or (await host.token())[1], keys or new_keys())
        end.link.start()
        office.supervisor.on_change = end.link.wake
        end.office = office  # type: ignore[attr-defined]
        ends.append(end)
        return end

    yield make
    for end in ends:
        await end.link.close()
        end.member.close()


async def test_a_lease_is_usable_at_once(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    end = await make_end()
    await end.link.joined.wait()
    lease = await host.lease(gpus=2)
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    handler = end.office.handler  # type: ignore[attr-defined]
    assert accepted(await handler.answer(hello(token=token)))["devices"] == "0,1"
    # The session is told without waiting for the next heartbeat, a minute from now.
    await eventually(lambda: len(host.seen("n")) == 1)
    await host.end(lease)
    await eventually(lambda: len(end.office.supervisor) == 0)  # type: ignore[attr-defined]
    await eventually(lambda: not host.seen("n"))


async def test_clocks_need_not_agree(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    host.ahead = 5000.0
    end = await make_end()
    await end.link.joined.wait()
    lease = await host.lease()
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    accepted(await end.office.handler.answer(hello(token=token)))  # type: ignore[attr-defined]


async def test_the_next_manager_is_joined(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    end = await make_end()
    await end.link.joined.wait()
    lease = await host.lease()
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    handler = end.office.handler  # type: ignore[attr-defined]
    accepted(await handler.answer(hello(token=token)))
    signer = host.pool.signer
    with capture_logs() as logs:
        await host.stop()
        await eventually(lambda: any("not joined" in entry["event"] for entry in logs))
        accepted(await handler.answer(hello(token=token)))
        await host.start()
        host.pool.signer = signer  # the state folder keeps its secret
        await eventually(lambda: any("joined the pool" in entry["event"] for entry in logs))
    await eventually(lambda: len(host.seen("n")) == 2)
    assert [each.id for each in host.pool.ledger.leases.values()] == [lease.id]
    accepted(await handler.answer(hello(token=token)))


async def test_a_refused_server_says_why_once(host: Host, make_end: MakeEnd) -> None:
    with capture_logs() as logs:
        await make_end(secret="gpn_" + "x" * 43)
        await eventually(lambda: sum(entry["event"] == "refused" for entry in logs) >= 3)
    said = [entry for entry in logs if "not joined" in entry["event"]]
    assert len(said) == 1 and "bad-token" in said[0]["reason"]


async def test_a_manager_without_the_key_is_not_trusted(
    host: Host, make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_connection, "ANSWER_SECONDS", 1.0)
    right, host.keys = host.keys, new_keys()
    with capture_logs() as logs:
        end = await make_end()
        await eventually(lambda: any("not joined" in entry["event"] for entry in logs))
    host.keys = right
    assert not end.link.joined.is_set()
    assert host.node("n") is None


async def test_a_manager_of_another_version_is_named(
    folder: Path, host: Host, make_end: MakeEnd
) -> None:
    keys = host.keys
    await host.link.close()
    context = zmq.asyncio.Context()
    try:
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.secret))
        router.setsockopt(zmq.LINGER, 0)
        router.bind(host.listen)
        with capture_logs() as logs:
            await make_end()
            connection, _ = await router.recv_multipart()
            await router.send_multipart([connection, b"\x81\xa8protocol\x09"])
            await eventually(lambda: any("not joined" in entry["event"] for entry in logs))
        reasons = [entry["reason"] for entry in logs if "not joined" in entry["event"]]
        assert "protocol 9" in reasons[-1] and "protocol 2" in reasons[-1]
    finally:
        context.destroy(linger=0)
        host.link = NodeServer(host.pool, keys, "tcp://127.0.0.1:*")
        host.link.open()


async def test_a_server_goes_on_without_any_manager(make_office: MakeOffice) -> None:
    office = await make_office(own_token=True)
    member = PoolMember("n", office.run_dir.path, office.gpus, office.supervisor)
    office.handler.join(member)
    token = JoinToken("gpn_" + "x" * 43, new_keys().public)
    link = ManagerConnection(
        "tcp://127.0.0.1:1",
        token,
        NodeKeys(new_keys()),
        member,
        lambda: member.report("tcp://h:1", "", {}),
    )
    link.start()
    accepted(await office.handler.answer(hello()))
    await asyncio.sleep(0)
    await link.close()
    member.close()


# What operators give ----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "text", ["gpp_" + GOOD[4:], GOOD[:-1], GOOD + "0", GOOD.replace(".", ""), "xyz", GOOD.upper()]
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


async def test_an_address_in_use_is_named(host: Host) -> None:
    second = NodeServer(host.pool, host.keys, host.link.url)
    with pytest.raises(GpupoolError, match=r"--nodes"):
        second.open()
