"""Leases that get more GPUs of their host: what the manager counts, grants and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from gpupool_common.node_protocol import Apply
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.problems import Problem
from gpupool_manager.quotas import Use, use_of
from gpupool_manager.records import Lease
from manager_rest import Rest
from manager_world import ACTOR, WANT, World, gpu


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    made = await World(database).open()
    await made.tenant("red", gpus=3)
    await made.tenant("blue")
    await made.join("n1", 4)
    yield made
    await made.close()


async def grow(world: World, lease: Lease, gpus: int) -> None:
    pool = world.pool
    await pool.commands.do(
        lambda transaction: pool.growth.grow(transaction, pool.ledger.leases[lease.id], gpus), ACTOR
    )


def _counted(world: World, lease: Lease) -> Any:
    ledger = world.pool.ledger
    now = ledger.leases[lease.id]
    slots = [(s.used_bytes, s.used_permille, s.holders) for s in ledger.index.slots.values()]
    return now.version, now.request, use_of(now), ledger.use(ledger.active, "red"), slots


async def no(world: World, lease: Lease, gpus: int, code: str) -> str:
    before = _counted(world, lease)
    with pytest.raises(Problem) as refused:
        await grow(world, lease, gpus)
    assert refused.value.code == code
    assert _counted(world, lease) == before
    return refused.value.detail


async def settle(world: World, lease: Lease) -> None:
    """Its server says that it has the orders."""
    live = world.pool.ledger.leases[lease.id]
    said = [{"lease": live.id, "gpu": g.gpu, "number": live.version} for g in live.grants]
    await world.beat("n1", changes=said)
    assert live.change is None


async def test_it_has_another_gpu_of_its_host(world: World) -> None:
    lease = await world.ask("red")
    await grow(world, lease, 2)
    live = world.pool.ledger.leases[lease.id]
    assert [grant.ordinal for grant in live.grants] == [0, 1]
    assert len({grant.gpu for grant in live.grants}) == 2
    assert world.pool.ledger.use(world.pool.ledger.active, "red") == Use(2, 2000 * MIB, 200, 1)
    (apply,) = (c for c in (await world.beat("n1")).commands if isinstance(c, Apply))
    assert [(g.ordinal, g.number) for g in apply.grants] == [(0, 2), (1, 2)]
    await settle(world, lease)
    await grow(world, lease, 2)  # it has
    assert live.version == 2
    await world.end(lease)
    assert all(slot.holders == 0 for slot in world.pool.ledger.index.slots.values())
    assert world.pool.ledger.use(world.pool.ledger.active, "red") == Use()


async def test_a_new_manager_has_it_too(world: World) -> None:
    lease = await world.ask("red")
    await grow(world, lease, 3)
    await world.restart()
    live = world.pool.ledger.leases[lease.id]
    assert (len(live.grants), live.request.gpus) == (3, 3)
    assert sum(slot.holders for slot in world.pool.ledger.index.slots.values()) == 3
    await settle(world, lease)


async def test_the_quota_holds(world: World) -> None:
    lease = await world.ask("red")
    assert "virtual GPUs: 3 asked, 1 in use, quota 3" in await no(world, lease, 4, "over-quota")


async def test_no_gpu_twice_and_none_that_is_full(world: World) -> None:
    other = await world.ask("blue", gpus=3, memory_bytes=9500 * MIB)
    lease = await world.ask("red")
    assert "has 0 others" in await no(world, lease, 2, "full")
    await world.end(other)
    await grow(world, lease, 2)


async def test_what_is_reserved_stays(world: World) -> None:
    """The lease may still be there when the reservation begins."""
    lease = await world.ask("red")
    pool = world.pool
    want = PlacementRequest.parse({**WANT, "gpus": 3, "memory_bytes": 9500 * MIB})
    start = world.clock.now + 3600
    kept = await pool.commands.do(
        lambda transaction: pool.reservations.make(transaction, "blue", want, start, 3600.0), ACTOR
    )
    assert "has 0 others" in await no(world, lease, 2, "full")
    await pool.commands.do(
        lambda transaction: pool.reservations.cancel(transaction, kept.id), ACTOR
    )
    await grow(world, lease, 2)


async def test_who_has_waited_too_long_goes_first(world: World) -> None:
    lease = await world.ask("red")
    await world.ask("blue", gpus=4, memory_bytes=9500 * MIB, wait=1e6)
    world.clock.now += 1e5
    assert "has waited long" in await no(world, lease, 2, "full")


async def test_when_it_is_refused(world: World) -> None:
    lease = await world.ask("red")
    await grow(world, lease, 2)
    assert "another change" in await no(world, lease, 3, "in-use")
    await settle(world, lease)
    await world.end(lease)
    await world.join("n2", 1)
    spread = await world.ask("red", gpus=2, hosts="spread")
    assert "only a lease on one host" in await no(world, spread, 3, "impossible")
    whole = await world.ask("blue", gpus=5, wait=60.0, memory_bytes=10_000 * MIB)
    assert "a lease that waits" in await no(world, whole, 6, "impossible")
    await world.end(spread)
    await world.end(whole)
    named = await world.ask("red", uuids=["GPU-n1-2"])
    assert "which named none" in await no(world, named, 2, "impossible")


async def both(*growths: Coroutine[Any, Any, None]) -> str:
    """The code of the refusal, of which there is one."""
    said = await asyncio.gather(*growths, return_exceptions=True)
    (problem,) = (each for each in said if isinstance(each, Problem))
    return problem.code


async def test_of_two_that_race_for_a_quota_one_gets_it(world: World) -> None:
    first, second = await world.ask("red"), await world.ask("red")
    assert await both(grow(world, first, 2), grow(world, second, 2)) == "over-quota"
    assert world.pool.ledger.use(world.pool.ledger.active, "red").gpus == 3


async def test_of_two_at_once_for_one_lease_the_first_holds(world: World) -> None:
    lease = await world.ask("red")
    assert await both(grow(world, lease, 2), grow(world, lease, 3)) == "in-use"
    assert world.pool.ledger.use(world.pool.ledger.active, "red").gpus == 2


async def test_a_node_that_goes_meanwhile_is_waited_for(world: World) -> None:
    """What was promised stays reserved, and is made when it is back."""
    lease = await world.ask("red", ttl=6000.0)
    await grow(world, lease, 2)
    await world.later(100.0)
    ledger = world.pool.ledger
    assert ledger.nodes["n1"].lost and ledger.leases[lease.id].change is not None
    assert ledger.use(ledger.active, "red").gpus == 2
    assert "another change" in await no(world, lease, 3, "in-use")
    await world.join("n1", 4)
    await settle(world, lease)
    await world.join("n1", 1)  # it is back with other GPUs: what is gone counts as lost
    assert "all of whose GPUs are there" in await no(world, lease, 3, "impossible")


async def test_what_is_borrowed_or_ends_gets_no_more(world: World) -> None:
    await world.quota("red", gpus=1, borrow=True)
    pool = world.pool
    asked = LeaseRequest("red", PlacementRequest.parse({**WANT, "gpus": 2}), beyond="borrow")
    lease = await pool.commands.do(lambda transaction: pool.leases.admit(transaction, asked), ACTOR)
    assert pool.ledger.leases[lease.id].borrowed
    await no(world, lease, 3, "over-quota")
    await world.ask("blue", gpus=4, memory_bytes=9500 * MIB, wait=600.0)
    assert pool.ledger.leases[lease.id].ending is not None
    assert "it is ending" in await no(world, lease, 3, "in-use")


async def test_instances_go_alone(world: World) -> None:
    """CUDA shows a program one of them (MIG) and nothing beside it: it would have none at all."""
    kinds = ["NVIDIA H200 MIG 1g.18gb"] * 2 + ["NVIDIA H200"]
    await world.join("n1", [gpu("n1", index, model=kind) for index, kind in enumerate(kinds)])
    part = await world.ask("red", model="*MIG 1g.*")
    assert "has one alone" in await no(world, part, 2, "impossible")
    whole = await world.ask("red", model="NVIDIA H200")
    assert "has 0 others" in await no(world, whole, 2, "full")


async def test_who_asked_for_a_host_each_gets_no_second_on_one(world: World) -> None:
    lease = await world.ask("red", hosts="spread")
    assert "not asked to be on several" in await no(world, lease, 2, "impossible")


async def test_another_scheduler_chooses_itself(database: str) -> None:
    """What it has not named, the pool does not give."""
    made = await World(database).open()
    await made.tenant("red")
    await made.join("n1", 2)
    lease = await made.ask("red")
    made.rules = replace(made.rules, only_checks=True)
    await made.restart()
    assert "another scheduler" in await no(made, lease, 2, "bad-request")
    await made.close()


async def test_by_rest(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("red")
    path = f"/leases/{(await rest.lease('red'))['id']}"
    both = {"gpus": 2, "memory_bytes": MIB}
    problem = await rest.no(422, "bad-request", "PATCH", path, both, by="red")
    assert "a change of its own" in problem["detail"]
    rest.world.pool.rules = rest.world.rules.__class__(confirm_seconds=0.05)
    answer = await rest.ask("PATCH", path, {"gpus": 2}, by="red")
    assert (answer.status_code, len(answer.json()["grants"])) == (202, 2), answer.text
