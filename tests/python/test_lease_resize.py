"""Leases whose limits change while they are wanted: what the manager counts and grants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gpupool_common.node_protocol import Apply, Orders
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.problems import Problem
from gpupool_manager.quotas import use_of
from gpupool_manager.records import Lease
from manager_rest import Rest
from manager_world import ACTOR, World


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    made = await World(database).open()
    await made.tenant("red", memory_bytes=12_000 * MIB, compute_permille=2000, priority=5)
    await made.join("n1", 1)
    yield made
    await made.close()


async def resize(
    world: World, lease: Lease, force: bool = False, with_numbers: bool = False, **limits: int
) -> None:
    """Ask for other limits; the lease of this world is the one that counts."""
    pool = world.pool
    await pool.commands.do(
        lambda transaction: pool.resizes.change(
            transaction, pool.ledger.leases[lease.id], limits, force, with_numbers
        ),
        ACTOR,
    )


async def no(
    world: World, lease: Lease, code: str, with_numbers: bool = False, **limits: int
) -> str:
    before = _counted(world, lease)
    with pytest.raises(Problem) as refused:
        await resize(world, lease, False, with_numbers, **limits)
    assert refused.value.code == code
    assert _counted(world, lease) == before
    return refused.value.detail


def _counted(world: World, lease: Lease) -> Any:
    ledger = world.pool.ledger
    now = ledger.leases[lease.id]
    slots = [(s.used_bytes, s.used_permille, s.holders) for s in ledger.index.slots.values()]
    return now.limits, now.version, use_of(now), ledger.use(ledger.active, "red"), slots


def used(world: World, uuid: str = "GPU-n1-0") -> tuple[int, int]:
    slot = world.pool.ledger.index.slots[uuid]
    return slot.used_bytes // MIB, slot.used_permille


def ordered(orders: Orders) -> list[tuple[int, int, int]]:
    """Of each grant: memory in MiB, share, number of the change."""
    (apply,) = (each for each in orders.commands if isinstance(each, Apply))
    return [(g.memory_bytes // MIB, g.share_permille, g.number) for g in apply.grants]


async def says(world: World, node: str, lease: Lease, number: int, **what: Any) -> Orders:
    """A node's word of a change on its first GPU."""
    change = {"lease": lease.id, "gpu": f"GPU-{node}-0", "number": number, **what}
    return await world.beat(node, changes=[change])


async def test_what_grows_counts_at_once_and_what_shrinks_later(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB, share_permille=400)
    await resize(world, lease, memory_bytes=6000 * MIB, share_permille=200)
    assert used(world) == (6000, 400)
    assert ordered(await world.beat("n1")) == [(6000, 200, 2)]
    assert world.pool.ledger.leases[lease.id].change is not None
    after = await says(world, "n1", lease, 2)
    assert (lease.resize, used(world)) == (None, (6000, 200))
    assert ordered(after) == [(6000, 200, 0)]
    assert (lease.grants[0].memory_bytes, lease.limits.memory_bytes) == (6000 * MIB, 6000 * MIB)
    await world.end(lease)
    assert used(world) == (0, 0)


async def test_what_is_not_given_back_yet_is_not_granted(world: World) -> None:
    lease = await world.ask("red", memory_bytes=8000 * MIB)
    waiting = await world.ask("red", memory_bytes=4000 * MIB, wait=600.0)
    await resize(world, lease, memory_bytes=2000 * MIB)
    assert world.state(waiting) == "queued"
    await says(world, "n1", lease, 2, reason="its arbiter is being started again")
    assert (world.state(waiting), used(world)) == ("queued", (8000, 100))
    await says(world, "n1", lease, 2)
    assert (world.state(waiting), used(world)) == ("active", (6000, 200))


async def test_a_server_that_refuses_undoes_all_of_it(world: World) -> None:
    await world.join("n2", 1)
    lease = await world.ask("red", gpus=2, hosts="spread", memory_bytes=4000 * MIB)
    await resize(world, lease, memory_bytes=1000 * MIB, share_permille=300)
    await says(world, "n1", lease, 2)
    assert used(world) == (4000, 300)  # the other one has not
    orders = await says(
        world, "n2", lease, 2, reason="3GiB in use, more than 1000MiB", refused=True
    )
    assert ordered(orders) == [(4000, 100, 3)]
    change = lease.resize
    assert change is not None and "node 'n2': 3GiB in use" in change.refused
    assert (lease.limits.memory_bytes, lease.limits.share_permille) == (4000 * MIB, 100)
    # What was promised in between is free when it is not promised any more.
    assert used(world, "GPU-n2-0") == (4000, 300)
    for node in ("n1", "n2"):
        await says(world, node, lease, 3)
    assert used(world) == used(world, "GPU-n2-0") == (4000, 100)
    assert lease.resize is not None and not lease.resize.open
    await resize(world, lease, memory_bytes=3000 * MIB)
    assert lease.resize is not None and not lease.resize.refused


async def test_it_stays_within_quota_and_room(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB, share_permille=400)
    other = await world.ask("red", memory_bytes=5000 * MIB, share_permille=500)
    detail = await no(world, lease, "over-quota", memory_bytes=8000 * MIB)
    assert "memory: 4000MiB asked, 9000MiB in use, quota 12000MiB" in detail
    # What others have of the GPU is for operators to know.
    detail = await no(world, lease, "full", memory_bytes=6000 * MIB)
    assert detail == (
        "memory: device 0 of the lease, on node 'n1', has not so much free, asked 2000MiB more"
    )
    detail = await no(world, lease, "full", True, memory_bytes=6000 * MIB)
    assert "has 1000MiB free, asked 2000MiB more" in detail
    detail = await no(world, lease, "full", True, share_permille=600)
    assert "compute: " in detail and "10% free, asked 20% more" in detail
    await no(world, lease, "over-quota", priority=6)
    await no(world, lease, "bad-request", ceiling_permille=399)
    await world.end(other)
    await world.quota("red", memory_bytes=20_000 * MIB)
    assert "10000MiB, asked 11000MiB" in await no(
        world, lease, "impossible", memory_bytes=11_000 * MIB
    )
    # Over a quota that was lowered there is still less to be had.
    await world.quota("red", memory_bytes=1000 * MIB, compute_permille=2000)
    await resize(world, lease, memory_bytes=3000 * MIB)
    assert lease.limits.memory_bytes == 3000 * MIB


async def test_nobody_who_has_waited_too_long_is_overtaken(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB, ttl=6000.0)
    await world.tenant("blue")
    waiting = await world.ask("blue", memory_bytes=7000 * MIB, wait=6000.0)
    await resize(world, lease, memory_bytes=4500 * MIB)
    await says(world, "n1", lease, 2)
    world.clock.now += 61.0
    await world.beat("n1")
    assert "has waited long" in await no(world, lease, "full", memory_bytes=5000 * MIB)
    await resize(world, lease, memory_bytes=3000 * MIB)
    await says(world, "n1", lease, 3)
    assert world.state(waiting) == "active"


async def test_the_same_again_changes_nothing(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB)
    for _ in range(2):
        await resize(world, lease, memory_bytes=5000 * MIB)
        assert lease.version == 2
    await says(world, "n1", lease, 2)
    await resize(world, lease, memory_bytes=5000 * MIB)
    assert (lease.version, lease.resize) == (2, None)


async def test_two_at_once_hold_one_after_the_other(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB)
    await resize(world, lease, memory_bytes=8000 * MIB)
    await resize(world, lease, memory_bytes=2000 * MIB)
    assert used(world)[0] == 8000
    await says(world, "n1", lease, 2)  # it is late: that is not what is asked any more
    assert used(world)[0] == 8000
    # It had made the first one, and uses what that gave: no less can hold again.
    await says(world, "n1", lease, 3, reason="7GiB in use", refused=True)
    assert lease.limits.memory_bytes == 8000 * MIB
    await resize(world, lease, memory_bytes=2000 * MIB, force=True)
    await says(world, "n1", lease, 5, reason="7GiB in use")
    assert (used(world)[0], lease.change is not None) == (8000, True)
    await says(world, "n1", lease, 5)
    assert (used(world)[0], lease.change) == (2000, None)


async def test_a_change_outlives_the_manager(world: World) -> None:
    lease = await world.ask("red", memory_bytes=8000 * MIB)
    await resize(world, lease, memory_bytes=2000 * MIB, ceiling_permille=500)
    await world.restart()
    assert used(world)[0] == 8000
    with pytest.raises(Problem):
        await world.ask("red", memory_bytes=3000 * MIB)
    assert ordered(await world.beat("n1")) == [(2000, 100, 2)]
    await says(world, "n1", lease, 2)
    again = world.pool.ledger.leases[lease.id]
    assert (again.resize, again.ceiling_permille, used(world)[0]) == (None, 500, 2000)
    await world.ask("red", memory_bytes=3000 * MIB)
    await world.restart()
    assert (used(world)[0], world.pool.ledger.leases[lease.id].version) == (5000, 2)


async def test_the_end_of_a_lease_gives_all_of_it_back(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB, ttl=30.0)
    await resize(world, lease, memory_bytes=6000 * MIB)
    await resize(world, lease, memory_bytes=1000 * MIB)
    await world.later(31.0)
    assert (world.state(lease), used(world)) == ("gone", (0, 0))
    ledger = world.pool.ledger
    assert ledger.use(ledger.active, "red").nothing and not ledger.said
    await says(world, "n1", lease, 3)
    with pytest.raises(KeyError):
        await resize(world, lease, memory_bytes=1000 * MIB)


async def test_a_lost_node_is_waited_for(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB, ttl=6000.0)
    await world.later(100.0)
    assert world.pool.ledger.nodes["n1"].lost
    await resize(world, lease, memory_bytes=2000 * MIB)
    assert not world.pool.resizes.awaits(lease.id, 2)
    assert used(world)[0] == 4000
    await world.join("n1", 1)
    assert ordered(await world.beat("n1")) == [(2000, 100, 2)]
    await says(world, "n1", lease, 2)
    assert used(world)[0] == 2000


async def test_a_gpu_that_is_gone_holds_nothing_up(world: World) -> None:
    await world.join("n2", 1)
    lease = await world.ask("red", gpus=2, hosts="spread", memory_bytes=4000 * MIB)
    await resize(world, lease, memory_bytes=2000 * MIB)
    await says(world, "n1", lease, 2)
    await world.join("n2", [])
    await world.later(1.0)
    assert (lease.change, used(world)[0]) == (None, 2000)


async def test_nodes_speak_for_themselves(world: World) -> None:
    await world.join("n2", 1)
    lease = await world.ask("red", memory_bytes=4000 * MIB)
    await resize(world, lease, memory_bytes=2000 * MIB)
    here = lease.grants[0].node
    other = "n2" if here == "n1" else "n1"
    told = {"lease": lease.id, "gpu": lease.grants[0].gpu, "number": 2}
    await world.beat(other, changes=[told])
    for wrong in ({"number": 1}, {"number": 3}, {"gpu": "GPU-x"}, {"lease": "lease-x"}):
        await world.beat(here, changes=[{**told, **wrong}])
    assert lease.change is not None
    await world.beat(here, changes=[told])
    assert lease.change is None


async def test_usage_is_split_where_it_changes(world: World) -> None:
    lease = await world.ask("red", memory_bytes=4000 * MIB, share_permille=100, ttl=6000.0)
    world.clock.now += 10.0
    await resize(world, lease, memory_bytes=8000 * MIB, share_permille=500)
    world.clock.now += 10.0
    await resize(world, lease, memory_bytes=2000 * MIB)
    world.clock.now += 10.0
    await says(world, "n1", lease, 3)
    world.clock.now += 10.0
    await world.end(lease)
    meter = world.pool.ledger.meter
    rows = meter._rows.values()
    seconds = (4000 + 8000 + 8000 + 2000) * MIB * 10.0
    assert sum(row.memory_byte_seconds for row in rows) == pytest.approx(seconds)
    assert sum(row.compute_seconds for row in rows) == pytest.approx(0.1 * 10 + 0.5 * 30)


async def test_who_waits_keeps_its_place(world: World) -> None:
    first = await world.ask("red", memory_bytes=9000 * MIB)
    await world.tenant("blue", priority=9)
    names = [await world.ask("blue", memory_bytes=3000 * MIB, wait=600.0) for _ in range(3)]
    await resize(world, names[1], memory_bytes=4000 * MIB)
    assert world.queue() == [lease.id for lease in names]
    assert names[1].request.memory_bytes == 4000 * MIB
    await resize(world, names[2], priority=9)
    assert world.queue()[0] == names[2].id
    assert "10000MiB" in await no(world, names[1], "impossible", memory_bytes=11_000 * MIB)
    await world.quota("blue", memory_bytes=11_000 * MIB)
    await no(world, names[1], "over-quota", memory_bytes=5500 * MIB)
    await resize(world, names[0], memory_bytes=1000 * MIB)  # there is room for that at once
    assert world.state(names[0]) == "active"
    await world.end(first)
    assert world.queue() == []
    ledger = world.pool.ledger
    assert ledger.use(ledger.queued, "blue").nothing


# Over REST --------------------------------------------------------------------------------------


async def test_a_change_by_rest(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("red", memory_bytes=8000 * MIB)
    await rest.tenant("blue")
    lease = await rest.lease("red")
    path = f"/leases/{lease['id']}"
    read = await rest.ask("GET", path, by="red")
    assert (read.headers["ETag"], read.json()["resize"]) == ('"1"', None)
    rest.world.pool.rules = rest.world.rules.__class__(confirm_seconds=0.05)
    change = {"memory_bytes": 2000 * MIB, "share_permille": 300, "ceiling_permille": 600}
    answer = await rest.ask("PATCH", path, change, by="red", If_Match='"1"', Idempotency_Key="k")
    assert (answer.status_code, answer.headers["ETag"]) == (202, '"2"')
    shown = answer.json()["resize"]
    assert shown["state"] == "pending" and shown["asked"] == {**change, "priority": 0}
    assert shown["reason"] == "node 'n1': it has not said that it has them"
    await says(rest.world, "n1", rest.world.pool.ledger.leases[lease["id"]], 2)
    again = await rest.ask("PATCH", path, change, by="red", If_Match='"1"', Idempotency_Key="k")
    assert (again.status_code, again.json()["resize"]) == (200, None)
    assert again.json()["request"]["memory_bytes"] == 2000 * MIB
    await rest.no(412, "changed", "PATCH", path, {"priority": 0}, by="red", If_Match='"1"')
    await rest.no(404, "not-found", "PATCH", path, change, by="blue")
    await rest.no(422, "bad-request", "PATCH", path, {"memory_bytes": 1}, by="red")
    await rest.no(422, "bad-request", "PATCH", path, {"gpus": 0}, by="red")
    await rest.no(409, "full", "PATCH", path, {"gpus": 2}, by="red")
    problem = await rest.no(
        403, "over-quota", "PATCH", path, {"memory_bytes": 9000 * MIB}, by="red"
    )
    assert problem["limits"][0]["asked"] == 7000 * MIB
    actions = [item["action"] for item in await rest.pages("/audit?action=lease.resizing")]
    assert actions == ["lease.resizing"]
    metrics = (await rest.ask("GET", "/metrics")).text
    assert 'gpupool_manager_lease_resizes_total{outcome="made"} 1.0' in metrics
    await rest.do("POST", f"{path}/release", by="red")
    await rest.no(409, "ended", "PATCH", path, change, by="red")


async def test_a_refusal_has_the_figure(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("red")
    lease = await rest.lease("red")
    path = f"/leases/{lease['id']}"
    ledger = rest.world.pool.ledger
    rest.world.pool.rules = rest.world.rules.__class__(confirm_seconds=0.05)
    await rest.ask("PATCH", path, {"memory_bytes": 500 * MIB}, by="red", Idempotency_Key="k")
    what = {"reason": "'red/x' on GPU 0 has 700MiB in use, more than 500MiB", "refused": True}
    await says(rest.world, "n1", ledger.leases[lease["id"]], 2, **what)
    answer = await rest.ask(
        "PATCH", path, {"memory_bytes": 500 * MIB}, by="red", Idempotency_Key="k"
    )
    assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (409, "in-use")
    assert "node 'n1': 'red/x' on GPU 0 has 700MiB in use" in answer.json()["detail"]
    read = await rest.do("GET", path, by="red")
    assert (read["resize"]["state"], read["request"]["memory_bytes"]) == ("refused", 1000 * MIB)
