"""The keys of lease tokens: kept in one file, rolled under way, and told to nodes before use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gpupool_common import lease_token
from gpupool_common.errors import GpupoolError, ProtocolError
from gpupool_common.node_protocol import Applied, Beat, Heartbeat, Told, encode
from gpupool_manager.records import Lease
from gpupool_manager.signing_keys import GRACE_SECONDS, MOST_KEYS, KeyRing
from link_host import Host, MakePeer, NodeConnection, applied
from server_harness import eventually

# The file --------------------------------------------------------------------------------------


def test_a_ring_is_made_once_and_kept_to_ourselves(folder: Path) -> None:
    path = folder / "signing.keys"
    ring = KeyRing.load(path, 5.0)
    assert path.stat().st_mode & 0o777 == 0o600
    again = KeyRing.load(path, 9.0)
    assert [key.id for key in again.keys] == [ring.current.id]
    seed = ring.current.private.private_bytes_raw().hex()
    assert seed in path.read_text() and seed not in repr(ring.current)


def test_the_ages_of_keys(folder: Path) -> None:
    ring = KeyRing.load(folder / "keys", 0.0)
    first = ring.current
    second = ring.announce(10.0)
    assert ring.announce(11.0) is second  # one at a time
    assert (ring.current.id, second.age) == (first.id, "upcoming")
    ring.promote(20.0, 100.0)
    ring.promote(21.0, 100.0)  # there is none to promote any more
    assert (ring.current.id, ring.keys[0].age) == (second.id, "old")
    last = 20.0 + 100.0 + GRACE_SECONDS
    assert ring.drop(last - 1) == []
    assert [key.id for key in KeyRing.load(folder / "keys", 0.0).keys] == [first.id, second.id]
    assert ring.drop(last) == [first.id]
    assert [key.id for key in KeyRing.load(folder / "keys", 0.0).keys] == [second.id]


def test_no_more_keys_than_nodes_are_told() -> None:
    ring = KeyRing.make(0.0)
    for n in range(MOST_KEYS - 1):
        ring.announce(float(n))
        ring.promote(float(n), 1e6)
    with pytest.raises(GpupoolError, match="8 keys are in use"):
        ring.announce(9.0)
    assert len(ring.start_anew(9.0)) == MOST_KEYS
    ring.announce(9.0)


def test_a_thief_of_an_upcoming_key_has_nothing_either() -> None:
    """It lies in the file that was stolen, and was promoted."""
    ring = KeyRing.make(0.0)
    stolen = [ring.current.id, ring.announce(1.0).id]
    assert ring.start_anew(2.0) == stolen
    assert [key.id for key in ring.keys] == [ring.current.id]
    assert ring.current.id not in stolen


ONE = {"seed": "0a" * 32, "made": 1.0, "signs": 1.0, "until": None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"keys": []}',
        '{"keys": 3}',
        json.dumps({"keys": [ONE, ONE]}),
        json.dumps({"keys": [{**ONE, "seed": "0a"}]}),
        json.dumps({"keys": [{**ONE, "seed": "no hex"}]}),
        json.dumps({"keys": [{**ONE, "signs": None}]}),
        json.dumps({"keys": [{**ONE, "made": "soon"}]}),
        json.dumps({"keys": [ONE, *[{**ONE, "until": 3.0}] * MOST_KEYS]}),
    ],
)
def test_a_damaged_file_is_named_and_left(folder: Path, text: str) -> None:
    path = folder / "signing.keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(GpupoolError, match=r"signing\.keys: holds no keys of ours; restore it"):
        KeyRing.load(path, 0.0)
    assert path.read_text() == text


def test_a_file_that_others_read_is_refused(folder: Path) -> None:
    path = folder / "signing.keys"
    KeyRing.load(path, 0.0)
    path.chmod(0o640)
    with pytest.raises(GpupoolError, match="chmod 600"):
        KeyRing.load(path, 0.0)


# Rolls -----------------------------------------------------------------------------------------


async def begin(host: Host) -> str:
    rolls = host.pool.key_rolls
    return (await host.pool.commands.do(lambda transaction: rolls.begin(transaction))).id


def token_of(host: Host, lease: Lease) -> str:
    text = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    assert text is not None
    return text


def reads(token: str, keys: list[str]) -> bool:
    raw = [bytes.fromhex(key) for key in keys]
    known = {lease_token.key_id(key): Ed25519PublicKey.from_public_bytes(key) for key in raw}
    try:
        lease_token.check(token, known)
    except ProtocolError:
        return False
    return True


async def say_applied(host: Host, peer: NodeConnection, node: str, keys: list[str]) -> None:
    ids = [lease_token.key_id(bytes.fromhex(key)) for key in keys]
    await peer.socket.send(encode(Applied(generation="x", keys=ids)))
    await eventually(lambda: host.pool.fleet.keys.get(node) == set(ids))


async def told_other(peer: NodeConnection, keys: list[str]) -> list[str]:
    """The keys that it is told next beside these: orders from before may be on their way."""
    while (told := applied(await peer.told()).keys) == keys:
        pass
    return told


async def test_a_key_signs_after_every_node_has_it(host: Host, make_peer: MakePeer) -> None:
    await host.tenant()
    peers: dict[str, NodeConnection] = {}
    for name in ("a", "b"):
        peers[name] = make_peer()
        first = applied(await peers[name].join((await host.token(node=name))[1], name)).keys
        await say_applied(host, peers[name], name, first)
    lease = await host.lease()
    old = token_of(host, lease)
    new = await begin(host)
    told = {name: await told_other(peer, first) for name, peer in peers.items()}
    assert told["a"] == told["b"]
    await say_applied(host, peers["a"], "a", told["a"])
    await host.pool.tick()
    assert host.pool.signer.ring.current.id != new  # b has not said that it has it
    assert not reads(token_of(host, lease), told["a"][1:])
    await say_applied(host, peers["b"], "b", told["b"])
    await host.pool.tick()
    assert host.pool.signer.ring.current.id == new
    assert reads(token_of(host, lease), told["a"]) and not reads(token_of(host, lease), first)
    assert reads(old, told["a"])  # until the last token of the old key has expired
    host.ahead = host.pool.signer.lifetime + GRACE_SECONDS + 1
    await host.pool.tick()
    keys = host.pool.signer.public_keys()
    assert len(keys) == 1 and not reads(old, keys)


async def test_a_node_that_is_lost_or_stubborn_holds_no_key_up(
    host: Host, make_peer: MakePeer
) -> None:
    for name in ("gone", "stubborn"):
        applied(await make_peer().join((await host.token(node=name))[1], name))
    node = host.node("gone")
    assert node is not None
    node.lost = True
    new = await begin(host)
    key = host.pool.signer.ring.upcoming
    assert key is not None and host.pool.key_rolls.without(key) == ["gone", "stubborn"]
    await host.pool.tick()
    assert host.pool.signer.ring.current.id != new
    host.ahead = 601.0  # lost_after of the tests
    await host.pool.tick()
    assert host.pool.signer.ring.current.id == new


async def test_a_roll_goes_on_with_the_next_manager(host: Host, make_peer: MakePeer) -> None:
    ring = KeyRing.load(host.folder / "signing.keys", host.pool.clock())
    host.pool.signer.ring = ring
    _, secret = await host.token()
    peer = make_peer()
    applied(await peer.join(secret))
    new = await begin(host)
    await host.stop()
    await host.start()
    host.pool.signer.ring = KeyRing.load(host.folder / "signing.keys", host.pool.clock())
    again = make_peer(keys=peer.keys)
    keys = applied(await again.join(secret)).keys
    await say_applied(host, again, "n", keys)
    await host.pool.tick()
    assert host.pool.signer.ring.current.id == new


async def test_after_a_theft_nothing_old_is_taken(host: Host, make_peer: MakePeer) -> None:
    await host.tenant()
    peer = make_peer()
    before = applied(await peer.join((await host.token())[1])).keys
    lease = await host.lease()
    applied(await peer.told())
    stolen = token_of(host, lease)
    rolls = host.pool.key_rolls
    await host.pool.commands.do(lambda transaction: rolls.replace(transaction))
    keys = applied(await peer.told()).keys
    assert len(keys) == 1 and keys != before
    assert reads(token_of(host, lease), keys) and not reads(stolen, keys)


async def test_a_heartbeat_says_which_keys_are_there(host: Host, make_peer: MakePeer) -> None:
    peer = make_peer()
    applied(await peer.join((await host.token())[1]))
    beat = Heartbeat(keys=["0123456789abcdef"])
    assert isinstance(await peer.ask(Beat(number=2, heartbeat=beat)), Told)
    assert host.pool.fleet.keys["n"] == {"0123456789abcdef"}


def test_a_name_of_a_key_follows_from_it() -> None:
    keys = [Ed25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(2)]
    assert lease_token.key_id(keys[0]) == lease_token.key_id(keys[0])
    assert lease_token.key_id(keys[0]) != lease_token.key_id(keys[1])
