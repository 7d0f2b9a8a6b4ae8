"""By what nodes are known: proved at every connect, replaced under way, and of no use stolen."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gpupool_common import keys
from gpupool_common.errors import GpupoolError, ProtocolError
from gpupool_common.keys import Keys, load_keys, make_keys
from gpupool_common.lease_token import check
from gpupool_common.node_protocol import Apply, Beat, Heartbeat, Rekey, RollKey, Told
from gpupool_manager.problems import Problem
from gpupool_server.node_keys import CURRENT, NEXT, NodeKeys
from link_end import MakeEnd
from link_host import Host, MakePeer, applied, no
from server_harness import accepted, eventually, hello

# The files -------------------------------------------------------------------------------------


def test_a_node_has_a_key_of_its_own(folder: Path) -> None:
    made = NodeKeys.load(folder)
    assert (folder / CURRENT).stat().st_mode & 0o777 == 0o600
    assert NodeKeys.load(folder).in_use == made.in_use
    assert load_keys(folder).public != made.in_use.public  # the front end's
    assert made.in_use.secret not in repr(made.in_use)


def test_who_joined_with_the_front_ends_key_goes_on_with_it(folder: Path) -> None:
    before = load_keys(folder)
    assert NodeKeys.load(folder).in_use == before
    (folder / keys.NAME).unlink()
    assert NodeKeys.load(folder).in_use == before


def test_the_next_key_is_on_disk_before_it_is_told(folder: Path) -> None:
    node = NodeKeys.load(folder)
    old, new = node.in_use, node.begin()
    assert node.begin() == new and node.in_use == old
    assert (folder / NEXT).stat().st_mode & 0o777 == 0o600
    node.taken()
    node.joined()
    assert node.in_use == NodeKeys.load(folder).in_use == new
    assert not (folder / NEXT).exists()
    assert old.secret not in (folder / CURRENT).read_text()


@pytest.mark.parametrize("taken", [False, True])
def test_a_stop_in_between_leaves_the_right_key(folder: Path, taken: bool) -> None:
    """Whether the manager took the new key before or not, one of the two lets the node in."""
    before = NodeKeys.load(folder)
    old, new = before.in_use, before.begin()
    after = NodeKeys.load(folder)
    assert after.in_use == new
    if taken:
        after.joined()
    else:
        after.refused()
        after.joined()
    assert after.in_use == (new if taken else old)
    after.refused()  # by a manager that does not know it at all
    assert after.in_use in (old, new)


def test_a_key_that_cannot_be_kept_is_named(folder: Path) -> None:
    node = NodeKeys.load(folder)
    node.begin()
    node.taken()
    (folder / NEXT).unlink()
    with pytest.raises(GpupoolError, match=CURRENT):
        node.joined()


# Rolls -----------------------------------------------------------------------------------------


async def roll(host: Host, name: str = "n") -> None:
    rolls = host.pool.fleet.node_keys
    await host.pool.commands.do(lambda transaction: rolls.begin(transaction, name))


async def test_a_server_replaces_its_key_when_it_is_told(
    host: Host,
    make_end: MakeEnd,  # noqa: F811
) -> None:
    end = await make_end()
    await end.link.joined.wait()
    old = end.keys.in_use
    await host.tenant()
    lease = await host.lease()
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    accepted(await end.office.handler.answer(hello(token=token)))  # type: ignore[attr-defined]
    await roll(host)
    await eventually(lambda: end.keys.in_use != old and end.link.joined.is_set())
    node = host.node("n")
    assert node is not None and node.key == end.keys.in_use.public != old.public
    # A program that runs has noticed nothing, and the next one starts.
    await eventually(lambda: len(host.seen("n")) == 1)
    accepted(await end.office.handler.answer(hello(token=token)))  # type: ignore[attr-defined]


async def test_the_key_before_is_refused_at_once(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    peer = make_peer()
    applied(await peer.join(secret))
    await roll(host)
    told = await peer.told()
    assert [each.do for each in told.orders.commands] == ["apply", "roll-key"]
    assert told.orders.commands[1] == RollKey(key=peer.keys.public)
    new = make_keys()
    assert isinstance(await peer.ask(Rekey(number=2, key=new.public)), Told)
    no(await peer.ask(Beat(number=3, heartbeat=Heartbeat())), "unknown-node")
    no(await make_peer(keys=peer.keys).join(secret), "forbidden", "another key")
    told = await make_peer(keys=new).join(secret)  # type: ignore[assignment]
    assert isinstance(applied(told), Apply)  # and is not told to roll again


async def test_a_node_takes_no_other_nodes_key(host: Host, make_peer: MakePeer) -> None:
    peers = {name: make_peer() for name in ("a", "b")}
    for name, peer in peers.items():
        applied(await peer.join((await host.token(node=name))[1], name))
    no(
        await peers["a"].ask(Rekey(number=2, key=peers["b"].keys.public)),
        "bad-request",
        "a node has it already",
    )
    no(await make_peer().ask(Rekey(number=2, key=make_keys().public)), "unknown-node")
    with pytest.raises(Problem, match="there is no node 'c'"):
        await roll(host, "c")


# A thief, and a node that turns hostile ----------------------------------------------------------


async def test_a_thief_of_the_database_is_nobody(host: Host, make_peer: MakePeer) -> None:
    """It has every row: digests of tokens and public keys, and nothing that speaks for anybody."""
    _, secret = await host.token()
    await host.tenant()
    _, tenants = await host.token("tenant", tenant="red")
    peer = make_peer()
    applied(await peer.join(secret))
    lease = await host.lease()
    text = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    assert text is not None
    dump = "\n".join(sqlite3.connect(host.folder / "manager.db").iterdump())
    ring = host.pool.signer.ring
    secrets = [secret, tenants, text, peer.keys.secret, host.keys.secret]
    secrets.append(ring.current.private.private_bytes_raw().hex())
    secrets.append(host.pool.signer.peer_key(lease.id))
    assert [each for each in secrets if each in dump] == []
    node, token = host.node("n"), host.pool.ledger.tokens.of_secret(secret)
    assert node is not None and token is not None
    assert node.key in dump and token.digest in dump  # what it does have
    for shown in (token.digest, token.id, f"gpn_{token.digest}"):
        no(await make_peer().join(shown), "bad-token")
    # Even with the token itself: the secret half of the node's key is on the node alone.
    no(await make_peer().join(secret), "forbidden", "another key")


async def test_the_public_half_of_a_key_opens_nothing(host: Host, make_peer: MakePeer) -> None:
    """Who says to have another's key fails in CURVE's handshake, and is never heard."""
    _, secret = await host.token()
    true = make_peer()
    applied(await true.join(secret))
    false = make_peer(keys=Keys(true.keys.public, make_keys().secret))
    with pytest.raises(TimeoutError):
        import asyncio

        await asyncio.wait_for(false.join(secret), 1.0)
    assert isinstance(await true.ask(Beat(number=2, heartbeat=Heartbeat())), Told)


async def test_all_that_a_node_knows_forges_no_token(host: Host, make_peer: MakePeer) -> None:
    """A node has public keys, peers' keys of its leases, and tokens that it was shown."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    from gpupool_common import lease_token

    await host.tenant()
    peer = make_peer()
    applied(await peer.join((await host.token())[1]))
    lease = await host.lease()
    orders = applied(await peer.told())
    raw = [bytes.fromhex(key) for key in orders.keys]
    known = {lease_token.key_id(key): Ed25519PublicKey.from_public_bytes(key) for key in raw}
    shown = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    assert shown is not None
    genuine = check(shown, known)
    mine = {node: tuple(grants) for node, grants in genuine.nodes.items()}
    more = {node: grants * 2 for node, grants in mine.items()}
    from dataclasses import replace

    wanted = [
        replace(genuine, nodes={"other": mine["n"]}),  # on another node
        replace(genuine, nodes=more),  # on itself, beyond what was granted
        replace(genuine, expires=genuine.expires + 1e6),  # for longer
        replace(genuine, lease="lease-2", tenant="blue"),  # for somebody else
    ]
    seeds = [*raw, bytes.fromhex(orders.grants[0].peer_key), bytes.fromhex(peer.keys.secret)]
    (name,) = known
    for token in wanted:
        for seed in seeds:
            forged = lease_token.issue(token, Ed25519PrivateKey.from_private_bytes(seed))
            head, _, tail = forged.removeprefix(lease_token.PREFIX).partition(".")
            right = shown.removeprefix(lease_token.PREFIX).partition(".")[0]
            for text in (forged, f"{lease_token.PREFIX}{right}.{tail}"):
                with pytest.raises(ProtocolError):
                    check(text, known)
            assert head != right
