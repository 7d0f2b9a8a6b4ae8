"""The link: who may join, what a node is told and when, and what becomes of broken peers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import zmq
import zmq.asyncio

from gpupool_common.errors import GpupoolError
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
from gpupool_manager.node_server import NodeServer
from link_host import Host, MakePeer, applied, no, report_of

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


async def test_wrong_tokens_hold_up_no_neighbour_that_has_joined(
    host: Host, make_peer: MakePeer
) -> None:
    """A removed node that goes on asking silenced all servers behind the same address."""
    _, secret = await host.token()
    peer, stranger = make_peer(), make_peer()
    applied(await peer.join(secret))
    for _ in range(60):
        no(await stranger.join("gpn_unknown"), "bad-token")
    for number in range(2, 12):  # of these one a second would get through
        await peer.socket.send(encode(Beat(number=number, heartbeat=Heartbeat())))
    async with asyncio.timeout(30):
        assert [(await peer.told()).number for _ in range(10)] == list(range(2, 12))


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


async def test_an_address_in_use_is_named(host: Host) -> None:
    second = NodeServer(host.pool, host.link.url)
    with pytest.raises(GpupoolError, match=r"--nodes"):
        second.open()
