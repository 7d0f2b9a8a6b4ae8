"""The queue: order, priority, patience, time-outs, and that nobody is forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.problems import Problem
from gpupool_manager.records import Lease
from manager_world import World, gpu

WAIT = 10_000.0


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    """Two tenants, a node with four GPUs, and patience for 60 seconds."""
    opened = await World(database, lost_after=1e9, longest_queue=50).open()
    for name in ("a", "b"):
        await opened.tenant(name, priority=10)
    await opened.join("node-1", 4)
    yield opened
    await opened.close()


async def whole(world: World, tenant: str = "a", **more: object) -> Lease:
    """Asks for whole GPUs."""
    return await world.ask(tenant, memory_bytes=None, share_permille=1000, ttl=1e6, **more)  # type: ignore[arg-type]


def reason(world: World, lease: Lease) -> str:
    waiting = world.pool.ledger.queue.get(lease.id)
    assert waiting is not None
    return waiting.reason


async def test_a_full_pool_queues_and_says_where_and_why(world: World) -> None:
    await whole(world, gpus=4)
    first, second = await whole(world, wait=WAIT), await whole(world, "b", wait=WAIT)
    assert (first.state, second.state) == ("queued", "queued")
    line = world.pool.ledger.queue
    assert (line.position(first), line.position(second)) == (1, 2)
    assert "fits on 0 GPUs, asked 1" in reason(world, first)


async def test_who_does_not_want_to_wait_is_told_how_many_do(world: World) -> None:
    await whole(world, gpus=4)
    await whole(world, wait=WAIT)
    with pytest.raises(Problem) as refusal:
        await whole(world)
    assert (refusal.value.status, refusal.value.code) == (409, "full")
    assert refusal.value.more["queue_length"] == 1
    assert len(world.pool.ledger.leases) == 2


async def test_turns_are_by_priority_then_by_arrival(world: World) -> None:
    holding = [await whole(world) for _ in range(4)]
    low = await whole(world, wait=WAIT)
    high = await whole(world, "b", wait=WAIT, priority=9)
    middle = await whole(world, wait=WAIT, priority=5)
    late = await whole(world, "b", wait=WAIT, priority=5)
    assert world.queue() == [high.id, middle.id, late.id, low.id]
    for expected in (high, middle, late, low):
        await world.end(holding.pop(0))
        assert world.state(expected) == "active"
        holding.append(expected)
    assert world.queue() == []


async def test_more_priority_than_the_quota_has_is_refused(world: World) -> None:
    with pytest.raises(Problem) as refusal:
        await whole(world, priority=11)
    assert refusal.value.status == 403
    assert refusal.value.more["limits"] == [{"quantity": "priority", "asked": 11, "quota": 10}]


async def test_a_small_request_passes_a_large_one_until_patience_ends(world: World) -> None:
    holding = [await whole(world) for _ in range(4)]
    large = await whole(world, gpus=4, wait=WAIT)
    await world.end(holding.pop())
    small = await whole(world, "b")  # there is room for it and not for the large one
    assert small.state == "active"
    await world.end(small)
    await world.later(61.0)
    with pytest.raises(Problem, match="has waited long and goes first"):
        await whole(world, "b")
    waits = await whole(world, "b", wait=WAIT)
    assert "goes first" in reason(world, waits)
    while holding:
        await world.end(holding.pop())
    assert (world.state(large), world.state(waits)) == ("active", "queued")
    await world.end(large)
    assert world.state(waits) == "active"


async def test_a_steady_stream_of_small_requests_starves_nobody(world: World) -> None:
    """Always one ends and another asks: without patience the large one would never go."""
    small = [await whole(world) for _ in range(4)]
    large = await whole(world, gpus=2, hosts="same", wait=WAIT)
    for _turn in range(30):
        await world.later(5.0)
        small.append(await whole(world, "b", wait=WAIT))
        active = [lease for lease in small if world.state(lease) == "active"]
        if not active:
            break
        await world.end(active[0])
        if world.state(large) == "active":
            break
    assert world.state(large) == "active"


async def test_who_waits_for_other_gpus_holds_nobody_up(world: World) -> None:
    await world.join("node-2", [gpu("node-2", 0, 5000 * MIB, model="NVIDIA A100")])
    await whole(world, model="*A100")
    late = await whole(world, model="*A100", wait=WAIT)
    await world.later(61.0)
    assert (await whole(world, model="*H200")).state == "active"
    assert world.state(late) == "queued"


async def test_who_waits_for_its_own_quota_holds_nobody_up(world: World) -> None:
    for quota in ({"gpus": 1}, {"memory_bytes": 10_000 * MIB}):
        await world.quota("a")
        holds = await whole(world)
        late = await whole(world, wait=WAIT, gpus=4)
        await world.quota("a", **quota)
        assert reason(world, late).startswith("quota: ")
        await world.later(61.0)
        small = await whole(world, "b")
        assert small.state == "active"
        for lease in (late, small, holds):
            await world.end(lease)


async def test_who_waits_for_a_lost_node_holds_nobody_up(world: World) -> None:
    await world.join("node-2", 5)
    await whole(world, gpus=5, hosts="same")
    late = await whole(world, gpus=5, hosts="same", wait=WAIT)
    await world.later(61.0)
    with pytest.raises(Problem, match="goes first"):
        await whole(world, "b")
    await world.pool.commands.do(
        lambda transaction: world.pool.fleet.change(transaction, "node-2", "draining", None)
    )
    assert (await whole(world, "b")).state == "active"
    assert world.state(late) == "queued"


async def test_waiting_ends_with_its_time(world: World) -> None:
    await whole(world, gpus=4)
    short, long = await whole(world, wait=30.0), await whole(world, wait=31.0)
    await world.later(30.0)
    assert (world.state(short), world.state(long)) == ("gone", "queued")
    assert (short.state, short.reason) == ("timed-out", "no room within 30 s")
    assert world.pool.ledger.queued["a"].gpus == 1
    await world.later(1.0)
    assert world.queue() == []
    assert world.pool.ledger.queued["a"].nothing


async def test_who_is_not_heard_of_leaves_the_queue(database: str) -> None:
    world = await World(database, lost_after=1e9, unasked=90.0).open()
    try:
        await world.tenant("a")
        await world.join("node-1", 1)
        await whole(world)
        dead, alive = await whole(world, wait=WAIT), await whole(world, wait=WAIT)
        await world.later(80.0)
        world.pool.leases.hear(alive, world.clock.now)
        await world.later(9.0)
        assert world.queue() == [dead.id, alive.id]
        await world.later(1.0)
        assert world.queue() == [alive.id]
        assert (dead.state, dead.reason) == ("timed-out", "nobody asked for it for 90 s")
        assert world.pool.ledger.queued["a"].gpus == 1
        # Nobody could ask while the manager was away, so that time does not count.
        world.clock.now += 1000.0
        await world.restart()
        await world.later(89.0)
        assert world.queue() == [alive.id]
        await world.later(1.0)
        assert world.queue() == []
        assert world.pool.ledger.queued["a"].nothing
    finally:
        await world.close()


async def test_a_queue_outlives_its_manager(world: World) -> None:
    holding = [await whole(world) for _ in range(4)]
    first = await whole(world, wait=WAIT)
    high = await whole(world, "b", wait=WAIT, priority=3)
    short = await whole(world, wait=5.0)
    await world.later(1.0)
    world.clock.now += 10.0
    await world.restart()
    assert world.queue() == [high.id, first.id]
    assert world.state(short) == "gone"
    assert "fits on 0 GPUs" in reason(world, high)
    await world.end(holding[0])
    assert (world.state(high), world.state(first)) == ("active", "queued")


async def test_a_new_node_lets_people_go_and_so_does_one_that_opens(world: World) -> None:
    fleet = world.pool.fleet
    await whole(world, gpus=4)
    waits = [await whole(world, wait=WAIT) for _ in range(2)]
    await world.join("node-2", 1)
    assert [world.state(lease) for lease in waits] == ["active", "queued"]
    await world.pool.commands.do(
        lambda transaction: fleet.change(transaction, "node-2", "cordoned", None)
    )
    await world.end(waits[0])
    assert world.state(waits[1]) == "queued"
    await world.pool.commands.do(
        lambda transaction: fleet.change(transaction, "node-2", "open", None)
    )
    assert world.state(waits[1]) == "active"


async def test_so_do_labels_and_more_grants_for_a_gpu(world: World) -> None:
    fleet, labels = world.pool.fleet, {"zone": "x"}
    await world.join("node-2", [gpu("node-2", 0, max_inst=1)], labels=labels)
    await world.ask("a", labels=labels)
    waits = [await world.ask("b", labels=labels, wait=WAIT) for _ in range(2)]
    setting = {"max_inst": 2}
    await world.pool.commands.do(
        lambda transaction: fleet.change_gpu(transaction, "GPU-node-2-0", setting)
    )
    assert [world.state(lease) for lease in waits] == ["active", "queued"]
    await world.pool.commands.do(
        lambda transaction: fleet.change(transaction, "node-1", None, labels)
    )
    assert world.state(waits[1]) == "active"


async def test_the_longest_queue_is_bounded(world: World) -> None:
    await whole(world, gpus=4)
    for _ in range(50):
        await whole(world, wait=WAIT)
    with pytest.raises(Problem) as refusal:
        await whole(world, wait=WAIT)
    assert (refusal.value.status, refusal.value.code) == (503, "unavailable")
    assert len(world.pool.ledger.leases) == 51


async def test_a_disabled_tenant_keeps_its_place_and_gets_nothing(world: World) -> None:
    tenancy = world.pool.tenancy
    holding = await whole(world, gpus=4)
    lease = await whole(world, wait=WAIT)
    await world.pool.commands.do(
        lambda transaction: tenancy.change(transaction, "a", {"disabled": True})
    )
    await world.end(holding)
    assert reason(world, lease) == "tenant: disabled"
    with pytest.raises(Problem) as refusal:
        await whole(world)
    assert (refusal.value.status, refusal.value.code) == (403, "disabled")
    await world.pool.commands.do(
        lambda transaction: tenancy.change(transaction, "a", {"disabled": False})
    )
    assert world.state(lease) == "active"
