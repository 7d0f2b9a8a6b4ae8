"""Leases that give GPUs back while they go on: what the manager tells, counts and frees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gpupool.lease import _print_lease
from gpupool_common import lease_token
from gpupool_common.node_protocol import Apply, LeavingGrant
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.problems import Problem
from gpupool_manager.quotas import Use, use_of
from gpupool_manager.records import Lease
from manager_rest import Rest
from manager_world import ACTOR, WANT, World, gpu

GRACE = 60.0


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    made = await World(database, lost_after=1e9).open()
    await made.tenant("red", gpus=3)
    await made.tenant("blue")
    await made.join("n1", 4)
    yield made
    await made.close()


def live(world: World, lease: Lease) -> Lease:
    return world.pool.ledger.leases[lease.id]


async def shrink(world: World, lease: Lease, gpus: int) -> None:
    pool = world.pool
    await pool.commands.do(
        lambda transaction: pool.shrinking.shrink(transaction, live(world, lease), gpus), ACTOR
    )


async def grow(world: World, lease: Lease, gpus: int) -> None:
    pool = world.pool
    await pool.commands.do(
        lambda transaction: pool.growth.grow(transaction, live(world, lease), gpus), ACTOR
    )


async def no(world: World, lease: Lease, gpus: int, code: str = "in-use") -> str:
    def known() -> Any:
        now = live(world, lease)
        leaves = [(grant.gpu, grant.leaves) for grant in now.grants]
        return now.version, now.request, leaves, world.pool.ledger.active

    before = known()
    with pytest.raises(Problem) as refused:
        await shrink(world, lease, gpus)
    assert (refused.value.code, known()) == (code, before)
    return refused.value.detail


def leaving(world: World, lease: Lease) -> list[str]:
    return [grant.gpu for grant in live(world, lease).leaving]


async def told(world: World, node: str = "n1") -> tuple[list[str], list[LeavingGrant]]:
    """By its orders: what leases have, and what goes."""
    (apply,) = (c for c in (await world.beat(node)).commands if isinstance(c, Apply))
    return [grant.gpu for grant in apply.grants], apply.leaving


async def says(world: World, lease: Lease, gpu: str, reason: str = "", **more: Any) -> None:
    """A server's word of a GPU that goes."""
    number = more.pop("number", live(world, lease).version)
    said = {"lease": lease.id, "gpu": gpu, "number": number, "reason": reason}
    await world.beat(more.pop("node", "n1"), changes=[said], **more)


def counted(world: World) -> tuple[int, int]:
    """GPUs that the tenant's quota counts, and grants on GPUs."""
    ledger = world.pool.ledger
    holders = sum(slot.holders for slot in ledger.index.slots.values())
    return ledger.use(ledger.active, "red").gpus, holders


async def test_those_that_no_session_sees_go_first(world: World) -> None:
    """And whoever asks for less again meanwhile changes nothing of those that are going."""
    lease = await world.ask("red", gpus=3)
    first, second, third = [grant.gpu for grant in lease.grants]
    session = {"id": "s-1", "lease": lease.id, "gpus": [first, third]}
    other = {"id": "s-2", "lease": "lease-of-others", "gpus": [second]}
    await world.beat("n1", sessions=[session, other])
    await shrink(world, lease, 2)
    assert leaving(world, lease) == [second]
    await world.beat("n1", sessions=[{**session, "gpus": [second]}])
    await shrink(world, lease, 2)
    assert leaving(world, lease) == [second]
    await shrink(world, lease, 1)
    assert leaving(world, lease) == [second, third]
    await shrink(world, lease, 2)
    assert leaving(world, lease) == [third]


async def test_the_last_go_once_their_server_says_so(world: World) -> None:
    lease = await world.ask("red", gpus=3)
    stays, *going = [grant.gpu for grant in lease.grants]
    await shrink(world, lease, 1)
    assert leaving(world, lease) == going
    assert (counted(world), live(world, lease).request.gpus) == ((3, 3), 1)
    has, goes = await told(world)
    assert has == [stays]
    assert [(each.gpu, each.number, each.over) for each in goes] == [
        (uuid, 2, False) for uuid in going
    ]
    assert {each.at for each in goes} == {world.clock.now + GRACE}
    await says(world, lease, going[0], "1 session has GPU 1 yet")
    assert counted(world) == (3, 3)
    await says(world, lease, going[1])
    assert (counted(world), leaving(world, lease)) == ((2, 2), going[:1])
    await says(world, lease, going[0])
    assert (counted(world), leaving(world, lease)) == ((1, 1), [])
    assert use_of(live(world, lease)) == Use(1, 1000 * MIB, 100, 1)
    assert (await told(world))[1] == []
    await world.end(lease)
    assert counted(world) == (0, 0)


async def test_nobody_has_it_before(world: World) -> None:
    lease = await world.ask("red", gpus=2, memory_bytes=9000 * MIB, ttl=6000.0)
    waiting = await world.ask("blue", gpus=3, memory_bytes=9000 * MIB, wait=600.0)
    gone = lease.grants[1].gpu
    await shrink(world, lease, 1)
    await world.later(GRACE + 1)
    assert world.state(waiting) == "queued"
    await says(world, lease, gone, number=1)  # of another change
    await says(world, lease, "GPU-n1-9")
    await says(world, lease, lease.grants[0].gpu)  # which stays
    await world.join("n2", [])
    await says(world, lease, gone, node="n2")  # it speaks of its own alone
    assert world.state(waiting) == "queued"
    await says(world, lease, gone)
    assert world.state(waiting) == "active"


async def test_when_the_time_is_over_its_server_is_told(world: World) -> None:
    lease = await world.ask("red", gpus=2, ttl=6000.0)
    await shrink(world, lease, 1)
    await told(world)
    generation = world.pool.ledger.generation("n1")
    await world.later(GRACE - 1)
    assert world.pool.ledger.generation("n1") == generation
    await world.later(1)
    assert world.pool.ledger.generation("n1") != generation
    assert [each.over for each in (await told(world))[1]] == [True]
    assert not world.pool.shrinking.any_due(world.clock.now), "it is told once"
    assert "its time to keep them is over" in await no(world, lease, 2)
    assert counted(world) == (2, 2)


async def test_until_then_they_can_be_kept(world: World) -> None:
    lease = await world.ask("red", gpus=3)
    await shrink(world, lease, 1)
    await world.later(10.0)
    await shrink(world, lease, 2)
    last = live(world, lease).grants[2]
    assert (leaving(world, lease), last.leaves) == ([last.gpu], world.clock.now - 10 + GRACE)
    await shrink(world, lease, 2)
    assert live(world, lease).version == 3, "the same again changes nothing"
    await shrink(world, lease, 3)
    assert (leaving(world, lease), world.pool.ledger.leaving) == ([], {})
    assert (live(world, lease).request.gpus, len((await told(world))[0])) == (3, 3)


async def test_a_new_manager_goes_on_with_it(world: World) -> None:
    """And gives programs the whole time again, as they may not have heard of it yet."""
    lease = await world.ask("red", gpus=2, ttl=6000.0)
    gone = lease.grants[1].gpu
    await shrink(world, lease, 1)
    await world.later(GRACE + 1)
    await world.restart()
    ((each,)) = (await told(world))[1]
    assert (each.gpu, each.number, each.over) == (gone, 2, False)
    assert (each.at, counted(world)) == (world.clock.now + GRACE, (2, 2))
    await says(world, lease, gone)
    await world.restart()
    assert (counted(world), live(world, lease).request.gpus) == ((1, 1), 1)


async def test_one_change_at_a_time(world: World) -> None:
    lease = await world.ask("red", gpus=2)
    await grow(world, lease, 3)
    assert "another change" in await no(world, lease, 1)
    pool, number = world.pool, live(world, lease).version
    for grant in live(world, lease).grants:
        await says(world, lease, grant.gpu, number=number)
    await shrink(world, lease, 2)
    assert "just going back" in await no(world, lease, 4)
    with pytest.raises(Problem, match="limits can change afterwards"):
        await pool.commands.do(
            lambda transaction: pool.resizes.change(
                transaction, live(world, lease), {"memory_bytes": 500 * MIB}
            )
        )
    await says(world, lease, live(world, lease).grants[2].gpu)
    await grow(world, lease, 3)
    assert [grant.ordinal for grant in live(world, lease).grants] == [0, 1, 2]


async def test_a_lease_on_several_hosts_keeps_one_on_each(world: World) -> None:
    """A program that begins later asks all of them."""
    await world.join("n2", 2)
    lease = await world.ask("blue", gpus=6)
    first, second = lease.grants[0].node, lease.grants[-1].node
    assert {first, second} == {"n1", "n2"}
    assert f"nothing left on its host '{second}'" in await no(world, lease, 1, "impossible")
    await shrink(world, lease, 5)
    assert len(leaving(world, lease)) == 1


async def test_who_waits_asks_anew(world: World) -> None:
    taken = await world.ask("blue", gpus=4, memory_bytes=9500 * MIB)
    waiting = await world.ask("red", gpus=2, wait=60.0)
    assert "a lease that waits" in await no(world, waiting, 1, "impossible")
    await world.end(taken)


async def test_what_is_gone_goes_first(world: World) -> None:
    """And needs no server's word; the others move up."""
    lease = await world.ask("red", gpus=3)
    first, second, third = [grant.gpu for grant in lease.grants]
    left = [uuid for uuid in world.pool.ledger.gpus if uuid != first]
    await world.join("n1", [each for each in _reported(world) if each.uuid in left])
    await shrink(world, lease, 2)
    grants = [(grant.ordinal, grant.gpu) for grant in live(world, lease).grants]
    assert (grants, counted(world)) == ([(0, second), (1, third)], (2, 2))
    await shrink(world, lease, 1)
    left = [uuid for uuid in left if uuid != second]
    await world.join("n1", [each for each in _reported(world) if each.uuid in left])
    await says(world, lease, third)
    assert (world.state(lease), counted(world)) == ("gone", (0, 0))


def _reported(world: World) -> list[Any]:
    return [gpu("n1", index) for index in range(4)]


async def test_one_that_goes_and_is_gone_holds_nothing_up(world: World) -> None:
    lease = await world.ask("red", gpus=2)
    gone = lease.grants[1].gpu
    await shrink(world, lease, 1)
    await world.join("n1", [each for each in _reported(world) if each.uuid != gone])
    await world.later(1.0)
    assert (counted(world), leaving(world, lease)) == ((1, 1), [])


async def test_a_server_that_is_away_is_waited_for(database: str) -> None:
    world = await World(database).open()
    await world.tenant("red")
    await world.join("n1", 2)
    lease = await world.ask("red", gpus=2, ttl=6000.0)
    gone = lease.grants[1].gpu
    await world.later(100.0)
    assert world.pool.ledger.nodes["n1"].lost
    await shrink(world, lease, 1)
    assert not world.pool.shrinking.awaits(lease.id, 2)
    await world.later(GRACE + 1)
    assert counted(world) == (2, 2), "its programs may still have it"
    await world.join("n1", 2)
    assert [(each.gpu, each.over) for each in (await told(world))[1]] == [(gone, True)]
    await says(world, lease, gone)
    assert counted(world) == (1, 1)
    await world.close()


async def test_the_end_of_the_lease_gives_all_of_it_back(world: World) -> None:
    lease = await world.ask("red", gpus=2, ttl=30.0)
    gone = lease.grants[1].gpu
    await shrink(world, lease, 1)
    await says(world, lease, gone, "1 session has GPU 1 yet")
    await world.later(31.0)
    ledger = world.pool.ledger
    assert (counted(world), ledger.leaving, ledger.said) == ((0, 0), {}, {})
    said = {"lease": lease.id, "gpu": gone, "number": 2}
    await world.beat("n1", changes=[said])
    assert counted(world) == (0, 0)


async def test_named_and_borrowed_leases_shrink_too(world: World) -> None:
    named = await world.ask("red", uuids=["GPU-n1-2", "GPU-n1-0"], gpus=2)
    await shrink(world, named, 1)
    await says(world, named, "GPU-n1-0")
    assert live(world, named).request.uuids == ("GPU-n1-2",)
    await world.end(named)
    await world.quota("red", gpus=1, borrow=True)
    lease = await _borrow(world, 2)
    assert live(world, lease).borrowed
    await shrink(world, lease, 1)
    assert live(world, lease).borrowed, "it has both yet"
    await says(world, lease, lease.grants[1].gpu)
    assert not live(world, lease).borrowed, "what is left fits into the quota"
    ledger = world.pool.ledger
    assert ledger.use(ledger.borrowed, "red") == Use()


async def _borrow(world: World, gpus: int) -> Lease:
    want = PlacementRequest.parse({**WANT, "gpus": gpus})
    asked = LeaseRequest("red", want, beyond="borrow", ttl=600.0)
    return await world.pool.commands.do(
        lambda transaction: world.pool.leases.admit(transaction, asked), ACTOR
    )


async def test_a_reservation_has_what_went_back(world: World) -> None:
    """A lease that gave GPUs back is not in its way, and does not grow into it again."""
    lease = await world.ask("red", gpus=3)
    pool, start = world.pool, world.clock.now + 3600
    want = PlacementRequest.parse({**WANT, "gpus": 3, "memory_bytes": 9500 * MIB})
    await shrink(world, lease, 1)
    for grant in list(live(world, lease).leaving):
        await says(world, lease, grant.gpu)
    await pool.commands.do(
        lambda transaction: pool.reservations.make(transaction, "blue", want, start, 3600.0), ACTOR
    )
    with pytest.raises(Problem, match="has 0 others"):
        await grow(world, lease, 2)


async def test_tokens_and_servers_name_what_stays(world: World) -> None:
    lease = await world.ask("red", gpus=2)
    await shrink(world, lease, 1)
    pool = world.pool
    text = pool.signer.issue(pool.ledger, live(world, lease), world.clock.now)
    assert text is not None
    keys = {key.id: key.private.public_key() for key in pool.signer.ring.keys}
    token = lease_token.check(text, keys)
    assert [grant.gpu for grant in token.nodes["n1"]] == [lease.grants[0].gpu]


async def test_usage_ends_where_the_server_says_so(world: World) -> None:
    lease = await world.ask("red", gpus=2, ttl=6000.0)
    gone = lease.grants[1].gpu
    await told(world)
    world.clock.now += 10.0
    await shrink(world, lease, 1)
    world.clock.now += 10.0
    busy = [{"lease": lease.id, "gpu": gone, "busy_ms": 7000}]
    await says(world, lease, gone, busy=busy)
    world.clock.now += 10.0
    await world.beat("n1", busy=[{"lease": lease.id, "gpu": gone, "busy_ms": 8000}])
    await world.end(lease)
    rows = list(world.pool.ledger.meter._rows.values())
    assert sum(row.gpu_seconds for row in rows) == pytest.approx(2 * 20 + 10)
    assert sum(row.busy_seconds for row in rows) == pytest.approx(8.0)
    await world.restart()  # what was heard late has left no row of a grant that is none
    found = await world.pool.store.load()
    assert found.leases == []


async def test_by_rest(rest: Rest, capsys: pytest.CaptureFixture[str]) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("red")
    lease = await rest.lease("red", gpus=2)
    path = f"/leases/{lease['id']}"
    rest.world.pool.rules = rest.world.rules.__class__(confirm_seconds=0.05)
    answer = await rest.ask("PATCH", path, {"gpus": 1}, by="red", If_Match='"1"')
    assert (answer.status_code, answer.headers["ETag"]) == (202, '"2"'), answer.text
    first, last = answer.json()["grants"]
    assert first["leaves"] is None and last["leaves"] is not None
    assert answer.json()["servers"][0]["devices"] == [0]
    assert answer.json()["request"]["gpus"] == 1
    _print_lease(answer.json(), False)
    assert "device 1 goes back, in " in capsys.readouterr().out
    metrics = (await rest.ask("GET", "/metrics")).text
    assert "gpupool_manager_leases_resizing 1.0" in metrics
    kept = await rest.ask("PATCH", path, {"gpus": 2}, by="red")
    assert (kept.status_code, kept.json()["grants"][1]["leaves"]) == (200, None)
    await rest.ask("PATCH", path, {"gpus": 1}, by="red")
    await says(rest.world, rest.world.pool.ledger.leases[lease["id"]], last["gpu"])
    again = await rest.ask("PATCH", path, {"gpus": 1}, by="red")
    assert (again.status_code, len(again.json()["grants"])) == (200, 1)
    actions = [item["action"] for item in await rest.pages("/audit")]
    assert [each for each in actions if each.startswith("lease.")] == [
        "lease.granted",
        "lease.shrinking",
        "lease.kept",
        "lease.shrinking",
        "lease.shrunk",
    ]
