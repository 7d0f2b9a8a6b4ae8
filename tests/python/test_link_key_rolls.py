"""The manager's own key on the link: announced, retired, and of no use to who has stolen it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from gpupool_common import keys
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.keys import KeyPairs, make_keys
from gpupool_common.link_proof import is_proof, new_challenge, prove
from gpupool_common.node_protocol import (
    Applied,
    Apply,
    Join,
    Orders,
    Told,
    decode_from_node,
    encode,
)
from gpupool_manager.link_keys import NEXT, LinkKeys
from gpupool_manager.problems import Problem
from gpupool_manager.tokens import join_token
from gpupool_server.join_token import JoinToken
from gpupool_server.manager_keys import NAME, ManagerKeys
from link_end import End, MakeEnd
from link_host import Host, MakePeer, applied, no, report_of
from manager_rest import Rest
from server_harness import eventually

OLD, NEW, OTHER = ("ab" * 32, "cd" * 32, "ef" * 32)
TOKEN = JoinToken("gpn_" + "x" * 43, OLD)

# The manager's file ----------------------------------------------------------------------------


def test_a_manager_that_is_killed_goes_on_from_there(folder: Path) -> None:
    first = LinkKeys.load(folder)
    old = first.current
    assert (first.announced, first.public) == ("", [old.public])
    first.announce()
    announced = LinkKeys.load(folder)
    assert (announced.current, announced.announced) == (old, first.announced)
    assert (folder / NEXT).stat().st_mode & 0o777 == 0o600
    (folder / "curve.next.new").write_text("half a dr")  # of a write that was cut short
    announced.announce()
    assert LinkKeys.load(folder).public == [old.public, first.announced]
    announced.retire()
    retired = LinkKeys.load(folder)
    assert retired.public == [first.announced] and retired.following is None
    assert old.secret not in "".join(path.read_text() for path in folder.iterdir())


def test_a_key_that_cannot_be_kept_is_not_told(folder: Path) -> None:
    pairs = LinkKeys(KeyPairs(make_keys(), folder=folder / "gone", names=(keys.NAME, NEXT)))
    with pytest.raises(GpupoolError, match="cannot be written"):
        pairs.announce()
    assert pairs.announced == ""


# What a node keeps -----------------------------------------------------------------------------


def test_a_node_keeps_what_it_has_learned(folder: Path) -> None:
    known = ManagerKeys(TOKEN, folder)
    assert (known.in_use, known.to_prove, known.newest) == (OLD, "", OLD)
    known.announced("")
    known.announced(OLD)
    assert not (folder / NAME).exists()
    known.announced(NEW)
    again = ManagerKeys(TOKEN, folder)
    assert (again.in_use, again.to_prove, again.newest) == (OLD, NEW, NEW)
    again.joined()  # the link still has the old one
    again.refused()
    assert (again.in_use, again.to_prove) == (NEW, "")
    again.joined()
    last = ManagerKeys(TOKEN, folder)
    assert (last.in_use, last.to_prove, last.newest) == (NEW, "", NEW)
    last.refused()
    assert last.in_use == NEW  # the old one is gone for good


def test_a_second_roll_keeps_the_key_that_the_link_has(folder: Path) -> None:
    known = ManagerKeys(TOKEN, folder)
    known.announced(NEW)
    known.refused()  # retired while the node was away
    known.announced(OTHER)  # with the answer to the join, before joined()
    for kept in (known, ManagerKeys(TOKEN, folder)):
        assert (kept.in_use, kept.newest) == (NEW, OTHER)


def test_another_join_token_counts_for_more(folder: Path) -> None:
    ManagerKeys(TOKEN, folder).announced(NEW)
    given = ManagerKeys(JoinToken("gpn_" + "y" * 43, OTHER), folder)
    assert (given.in_use, given.to_prove) == (OTHER, "")
    both = ManagerKeys(JoinToken("gpn_" + "y" * 43, OTHER, NEW), folder)
    assert (both.in_use, both.to_prove) == (OTHER, NEW)


@pytest.mark.parametrize("text", ["", "\n", OLD, f"{OLD}\n{NEW[1:]}\n", f"{OLD}\n{NEW}\nx\n"])
def test_a_damaged_file_is_named(folder: Path, text: str) -> None:
    (folder / NAME).write_text(text)
    (folder / NAME).chmod(0o600)
    with pytest.raises(ConfigError, match=r"manager\.key does not hold.*gpupool node join"):
        ManagerKeys(TOKEN, folder)


# Proofs ----------------------------------------------------------------------------------------


def test_a_proof_is_for_one_node_one_key_and_one_challenge() -> None:
    manager, node, other = make_keys(), make_keys(), make_keys()
    challenge = new_challenge()
    proof = prove(manager.secret, node.public, challenge)
    assert is_proof(proof, node.secret, manager.public, challenge)
    assert not is_proof(proof, other.secret, manager.public, challenge)
    assert not is_proof(proof, node.secret, other.public, challenge)
    assert not is_proof(proof, node.secret, manager.public, new_challenge())
    assert not is_proof("", node.secret, manager.public, challenge)
    assert not is_proof(proof, node.secret, "00" * 32, challenge)  # a secret that anybody has
    with pytest.raises(ValueError):
        prove(manager.secret, "00" * 32, challenge)


# Rolls -----------------------------------------------------------------------------------------


async def roll(host: Host) -> str:
    rolls = host.pool.link_key_rolls
    await host.pool.commands.do(lambda transaction: rolls.begin(transaction))
    return host.pool.link_keys.announced


async def retire(host: Host, force: bool = False) -> None:
    rolls = host.pool.link_key_rolls
    await host.pool.commands.do(lambda transaction: rolls.retire(transaction, force))
    host.keys = host.pool.link_keys.current


async def told_of(host: Host, end: End) -> None:
    """Until the manager knows that the node has the next key."""
    await eventually(lambda: end.manager_keys.newest == host.pool.link_keys.announced)
    await eventually(lambda: host.pool.link_key_rolls.without() == [])


async def test_a_node_follows_its_manager_to_the_next_key(host: Host, make_end: MakeEnd) -> None:
    end = await make_end()
    await end.link.joined.wait()
    new = await roll(host)
    assert await roll(host) == new  # one at a time
    await told_of(host, end)
    assert end.manager_keys.in_use != new
    await retire(host)
    await eventually(lambda: end.manager_keys.newest == end.manager_keys.in_use == new)
    await eventually(lambda: end.link.joined.is_set())
    with pytest.raises(Problem, match="gpupool key roll --link"):
        await retire(host)


async def test_a_manager_is_started_again_in_between(host: Host, make_end: MakeEnd) -> None:
    """It proves the next key over the link that has the old one, and then has that."""
    end = await make_end()
    await end.link.joined.wait()
    new = await roll(host)
    await told_of(host, end)
    await host.stop()
    await eventually(lambda: not end.link.joined.is_set())
    await host.start()
    await end.link.joined.wait()
    assert end.manager_keys.to_prove == new == host.pool.link_keys.announced
    await told_of(host, end)
    await retire(host)
    await host.stop()
    await host.start()
    await eventually(lambda: end.manager_keys.in_use == new)
    await eventually(lambda: end.link.joined.is_set())


async def test_a_node_without_the_next_key_holds_the_old_one_up(
    host: Host, make_peer: MakePeer
) -> None:
    """One that is away, or of a release that knows nothing of this."""
    old = make_peer()
    applied(await old.join((await host.token(node="old"))[1], "old"))
    new = await roll(host)
    assert applied(await old.told()).manager_key == new
    with pytest.raises(Problem, match=r"1 nodes do not have the next key yet, such as old"):
        await retire(host)
    await old.socket.send(encode(Applied(generation="x", manager_key=new)))
    await eventually(lambda: host.pool.link_key_rolls.without() == [])
    await retire(host)


async def test_who_knows_only_the_old_key_is_out_after_it(
    host: Host, make_peer: MakePeer, make_end: MakeEnd
) -> None:
    _, secret = await host.token()
    await roll(host)
    early = make_peer()
    applied(await early.join(secret))  # its token is older than the roll
    late = make_peer()  # connects with the old key
    await retire(host, force=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(late.join(secret), 1.0)
    after = make_peer(keys=early.keys)
    await eventually(lambda: host.keys == host.pool.link_keys.current)
    applied(await after.join(secret))


async def test_a_token_of_the_overlap_is_good_before_and_after(
    host: Host, make_end: MakeEnd
) -> None:
    new = await roll(host)
    _, secret = await host.token()
    parts = join_token(secret, host.pool.link_keys.public).split(".")
    assert parts == [secret, host.keys.public, new]
    assert join_token("gpp_x", ["a"]) == "gpp_x"
    end = await make_end(secret=secret, next_key=new)
    await end.link.joined.wait()
    await told_of(host, end)
    await retire(host)
    await eventually(lambda: end.manager_keys.in_use == new)
    await eventually(lambda: end.link.joined.is_set())


async def test_only_who_asks_is_given_a_proof(host: Host, make_peer: MakePeer) -> None:
    _, secret = await host.token()
    peer, challenge = make_peer(), new_challenge()
    join = Join(number=1, node="n", token=secret, report=report_of("n"), challenge=challenge)
    told = await peer.ask(join)
    assert isinstance(told, Told) and told.proof == ""  # there is no next key
    new = await roll(host)
    assert (await peer.told()).proof == ""
    peer = make_peer(keys=peer.keys)
    told = await peer.ask(join)
    assert isinstance(told, Told)
    assert is_proof(told.proof, peer.keys.secret, new, challenge)
    # Who passes a challenge of another node's on gets nothing that this one would take.
    other = make_peer()
    no(await other.ask(join), "forbidden")


# A thief of the old key ------------------------------------------------------------------------


class FalseManager:
    """What a thief can be who has the old key: it answers whatever it is asked."""

    def __init__(self, host: Host, secret: str) -> None:
        self._context = zmq.asyncio.Context()
        self._router = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.CURVE_SERVER, 1),
            (zmq.CURVE_SECRETKEY, bytes.fromhex(secret)),
            (zmq.LINGER, 0),
        ):
            self._router.setsockopt(option, value)
        self._router.bind(host.listen)
        self.joins = 0
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            connection, frame = await self._router.recv_multipart()
            message = decode_from_node(frame)
            self.joins += isinstance(message, Join)
            orders = Apply(
                generation="evil",
                mode="draining",
                grants=[],
                gpus=[],
                keys=[NEW],
                offline_seconds=1,
            )
            told = Told(
                number=message.number,
                now=0.0,
                orders=Orders(next_heartbeat=60.0, commands=[orders]),
                proof="ab" * 32,
            )
            await self._router.send_multipart([connection, encode(told)])

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._context.destroy(linger=0)


@pytest_asyncio.fixture
async def told_end(host: Host, make_end: MakeEnd) -> AsyncIterator[End]:
    """A node that knows the next key, and whose manager has gone."""
    end = await make_end()
    await end.link.joined.wait()
    await roll(host)
    await told_of(host, end)
    yield end


async def test_the_old_key_alone_is_no_manager(host: Host, told_end: End) -> None:
    """Before the old one is retired, and to a node that was away when it was."""
    stolen, keys = host.keys.secret, told_end.member.key_ids
    await host.link.close()
    thief = FalseManager(host, stolen)
    try:
        await eventually(lambda: thief.joins > 1)
        assert not told_end.link.joined.is_set()
        assert told_end.member.key_ids == keys  # nothing that it said was taken
    finally:
        await thief.close()


async def test_a_retired_key_opens_nothing(host: Host, told_end: End) -> None:
    stolen, keys = host.keys.secret, told_end.member.key_ids
    await retire(host)
    await eventually(lambda: told_end.manager_keys.in_use == host.keys.public)
    await eventually(lambda: told_end.link.joined.is_set())
    await host.link.close()
    await eventually(lambda: not told_end.link.joined.is_set())
    thief = FalseManager(host, stolen)
    try:
        await asyncio.sleep(1.0)  # several tries, none of which gets as far as a join
        assert thief.joins == 0 and not told_end.link.joined.is_set()
        assert told_end.member.key_ids == keys
    finally:
        await thief.close()


# REST ------------------------------------------------------------------------------------------


async def test_an_operator_rolls_and_retires(rest: Rest) -> None:
    before = await rest.do("GET", "/keys/link")
    assert before["upcoming"] is None and before["without"] == []
    rolled = await rest.do("POST", "/keys/link/roll")
    assert rolled["current"] == before["current"] != rolled["upcoming"]
    assert await rest.do("GET", "/keys/link") == rolled
    retired = await rest.do("POST", "/keys/link/retire", {})
    assert (retired["current"], retired["upcoming"]) == (rolled["upcoming"], None)
    audit = [each["action"] for each in (await rest.do("GET", "/audit"))["items"]]
    assert {"link-key.announced", "link-key.retired"} <= set(audit)
