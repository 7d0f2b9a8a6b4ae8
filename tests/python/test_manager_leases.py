"""Leases from grant to end: what they hold, how long, and what is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import select

from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_common.node_protocol import Heartbeat, ReportedSession
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager import tables
from gpupool_manager.problems import Problem
from gpupool_manager.records import Lease
from gpupool_manager.transaction import Transaction
from manager_world import ACTOR, World, gpu


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    """Tenants a and b, and a node with two GPUs of 10,000 MiB."""
    opened = await World(database).open()
    await opened.tenant("a")
    await opened.tenant("b")
    await opened.join("node-1")
    yield opened
    await opened.close()


def free(world: World, uuid: str) -> tuple[int, int]:
    slot = world.pool.ledger.index.slots[uuid]
    return slot.free_bytes, slot.free_permille


async def refused(work: object) -> Problem:
    with pytest.raises(Problem) as refusal:
        await work  # type: ignore[misc]
    return refusal.value


async def history(world: World, lease: Lease) -> Lease:
    """As the database has it."""
    question = select(tables.leases).where(tables.leases.c.id == lease.id)
    return (await world.pool.store.find_leases(question))[0]


async def test_a_lease_holds_what_was_asked_for_and_says_why_there(world: World) -> None:
    lease = await world.ask("a", gpus=2, memory_bytes=3000 * MIB, share_permille=250, ttl=90.0)
    assert [(g.gpu, g.node, g.memory_bytes, g.share_permille) for g in lease.grants] == [
        ("GPU-node-1-0", "node-1", 3000 * MIB, 250),
        ("GPU-node-1-1", "node-1", 3000 * MIB, 250),
    ]
    assert free(world, "GPU-node-1-0") == free(world, "GPU-node-1-1") == (7000 * MIB, 750)
    assert (lease.expires or 0) - (lease.granted or 0) == 90.0
    assert lease.request_id == ACTOR.request_id
    assert "one node" in lease.placement["rule"]
    first = lease.placement["gpus"][0]
    assert (first["free_bytes_before"], first["free_bytes_after"]) == (10_000 * MIB, 7000 * MIB)
    assert await history(world, lease) == lease
    await world.end(lease)
    assert free(world, "GPU-node-1-0") == (10_000 * MIB, 1000)
    assert (await history(world, lease)).state == "released"


async def test_one_thousandth_and_one_mib_are_the_smallest_parts(world: World) -> None:
    await world.ask("a", memory_bytes=9999 * MIB, share_permille=999)
    await world.ask("a", memory_bytes=1 * MIB, share_permille=1)
    assert free(world, "GPU-node-1-0") == (0, 0)
    assert free(world, "GPU-node-1-1") == (10_000 * MIB, 1000)


async def test_a_whole_gpu_is_shared_with_nobody(world: World) -> None:
    whole = await world.ask("a", memory_bytes=None, share_permille=1000)
    assert whole.grants[0].memory_bytes == 10_000 * MIB
    await world.ask("b", memory_bytes=1 * MIB, share_permille=10)
    problem = await refused(world.ask("b", memory_bytes=None, share_permille=1000))
    assert (problem.status, problem.code) == (409, "full")


async def test_what_can_never_be_is_not_queued(world: World) -> None:
    for want in (
        {"gpus": 3},
        {"gpus": 2, "hosts": "spread"},
        {"memory_bytes": 10_001 * MIB},
        {"model": "NVIDIA B200"},
        {"capability": "10.0"},
        {"min_driver": "13.1"},
        {"labels": {"zone": "x"}},
    ):
        problem = await refused(world.ask("a", wait=100.0, **want))
        assert (problem.status, problem.code) == (409, "impossible"), want
    assert world.queue() == []


async def test_of_many_at_once_only_as_many_get_room_as_there_is(world: World) -> None:
    asked = [world.ask("ab"[n % 2], memory_bytes=1000 * MIB, share_permille=70) for n in range(60)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    granted = [answer for answer in answers if isinstance(answer, Lease)]
    assert len(granted) == 2 * 10  # 10 times 1000 MiB; 14 times 7 % would do
    others = [answer for answer in answers if not isinstance(answer, Lease)]
    assert all(isinstance(other, Problem) and other.code == "full" for other in others)
    assert world.pool.commands.commits < 60  # in batches, not one by one
    assert len((await world.pool.store.load()).leases) == 20


async def test_who_goes_away_while_asking_leaves_no_lease_behind_for_long(world: World) -> None:
    asking = asyncio.create_task(world.ask("a", memory_bytes=None, share_permille=1000, ttl=30.0))
    await asyncio.sleep(0)  # it has asked
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await world.pool.commands.settle()
    (lease,) = world.pool.ledger.leases.values()
    await world.later(31.0)
    assert (await history(world, lease)).state == "expired"
    assert free(world, "GPU-node-1-0") == (10_000 * MIB, 1000)


# Time --------------------------------------------------------------------------------------


async def test_a_lease_lasts_from_renewal_to_renewal(world: World) -> None:
    lease, other = await world.ask("a", ttl=30.0), await world.ask("b", ttl=30.0)
    for _ in range(5):
        await world.later(20.0)
        if lease.id in world.pool.ledger.leases:
            world.pool.leases.renew(world.pool.ledger.leases[lease.id], world.clock.now)
        world.pool.fleet.heartbeat(
            await world.node_token("node-1"), "node-1", Heartbeat(), world.clock.now
        )
    assert (world.state(lease), world.state(other)) == ("active", "gone")
    ended = await history(world, other)
    assert (ended.state, ended.reason) == ("expired", "not renewed for 30 s")
    await world.later(30.0)
    assert (await history(world, lease)).state == "expired"
    assert world.pool.ledger.leases_on["node-1"] == set()


async def test_sessions_renew_the_lease_that_they_use(world: World) -> None:
    lease = await world.ask("a", ttl=30.0)
    session = ReportedSession(id="s-1", lease=lease.id)
    for _ in range(4):
        world.clock.now += 20.0
        beat = Heartbeat(sessions=[session])
        await world.pool.heartbeat(await world.node_token("node-1"), "node-1", beat, ACTOR)
        await world.pool.tick()
    assert world.state(lease) == "active"


async def test_a_lease_ends_with_its_last_session_if_that_was_asked_for(world: World) -> None:
    await world.join("node-2")
    ends = await world.ask("a", gpus=3, until=LeaseEnd.LAST_SESSION)
    stays = await world.ask("a")
    beat = Heartbeat(sessions=[ReportedSession(id="s-1", lease=ends.id)])
    await world.pool.heartbeat(await world.node_token("node-2"), "node-2", beat, ACTOR)
    idle = Heartbeat(idle=[ends.id, stays.id, "lease-unknown"])
    await world.pool.heartbeat(await world.node_token("node-1"), "node-1", idle, ACTOR)
    assert world.state(ends) == "active"  # the other node serves a session of it
    await world.pool.heartbeat(await world.node_token("node-2"), "node-2", idle, ACTOR)
    assert (world.state(ends), world.state(stays)) == ("gone", "active")
    assert (await history(world, ends)).reason == "its last session ended"


async def test_a_clock_that_is_set_back_shortens_and_renames_nothing(world: World) -> None:
    first = await world.ask("a", ttl=60.0)
    expires = first.expires
    world.clock.now -= 3600
    second = await world.ask("a")
    assert second.id > first.id
    live = world.pool.ledger.leases[first.id]
    world.pool.leases.renew(live, world.clock.now)
    assert live.expires == expires
    await world.restart()
    assert (await world.ask("a")).id > second.id


# Restarts, lost GPUs -----------------------------------------------------------------------


async def test_a_restart_changes_nothing_but_gives_everybody_a_whole_period(world: World) -> None:
    active = await world.ask("a", memory_bytes=None, share_permille=1000, ttl=30.0)
    full = await world.ask("b", memory_bytes=None, share_permille=1000, ttl=30.0)
    queued = await world.ask("a", gpus=2, wait=1000.0)
    world.clock.now += 3000 - 2100
    await world.restart()
    assert {world.state(active), world.state(full), world.state(queued)} == {"active", "queued"}
    ledger = world.pool.ledger
    assert ledger.leases[active.id].grants == active.grants
    assert ledger.leases[active.id].expires == world.clock.now + 30
    assert free(world, "GPU-node-1-0") == (0, 0)
    assert world.queue() == [queued.id]
    await world.end(active)
    await world.end(full)
    assert world.state(queued) == "active"


async def test_a_lease_goes_on_with_the_gpus_it_has_left(world: World) -> None:
    lease = await world.ask("a", gpus=2)
    await world.join("node-1", [gpu("node-1", 0)])
    assert [grant.lost for grant in world.pool.ledger.leases[lease.id].grants] == [False, True]
    orders = world.pool.fleet.orders("node-1", "", world.clock.now)
    assert [grant.ordinal for grant in orders.commands[0].grants] == [0]  # type: ignore[union-attr]
    await world.join("node-1", [gpu("node-1", 0, uuid="GPU-other")])
    assert world.state(lease) == "gone"
    ended = await history(world, lease)
    assert (ended.state, [grant.lost for grant in ended.grants]) == ("lost", [True, True])


async def test_nobody_who_waits_gets_a_gpu_that_is_just_going(world: World) -> None:
    await world.ask("a", memory_bytes=None, share_permille=1000)
    await world.ask("a", memory_bytes=None, share_permille=1000)
    queued = await world.ask("b", memory_bytes=None, share_permille=1000, wait=100.0)
    await world.join("node-1", [gpu("node-1", 0, uuid="GPU-new")])
    assert [grant.gpu for grant in world.pool.ledger.leases[queued.id].grants] == ["GPU-new"]


async def test_gpus_may_change_their_numbers(world: World) -> None:
    lease = await world.ask("a")
    swapped = [gpu("node-1", 1 - n, uuid=f"GPU-node-1-{n}") for n in (0, 1)]
    await world.join("node-1", swapped)
    assert [world.pool.ledger.gpus[f"GPU-node-1-{n}"].number for n in (0, 1)] == [1, 0]
    assert world.state(lease) == "active"
    await world.end(lease)


async def test_a_node_that_is_lost_gets_nothing_new_and_keeps_what_it_has(world: World) -> None:
    lease = await world.ask("a", ttl=600.0)
    await world.later(41.0)
    problem = await refused(world.ask("b"))
    assert (problem.code, world.state(lease)) == ("full", "active")
    await world.join("node-1")
    assert (await world.ask("b")).state == "active"
    await world.later(600.0)
    assert world.state(lease) == "gone"


async def test_an_operation_that_fails_half_way_leaves_nothing_of_itself(world: World) -> None:
    """Nor of its changes to what others in its batch have written."""
    lease = await world.ask("a")

    def fail(transaction: Transaction) -> None:
        world.pool.leases.end(
            transaction, world.pool.ledger.leases[lease.id], LeaseState.RELEASED, ""
        )
        for other in world.pool.ledger.leases.values():
            other.label = "spoilt"
        raise RuntimeError("a mistake")

    commands = world.pool.commands
    before, failed, after = await asyncio.gather(
        world.ask("b"), commands.do(fail), world.ask("b"), return_exceptions=True
    )
    assert isinstance(failed, RuntimeError)
    assert isinstance(before, Lease) and isinstance(after, Lease)
    leases = {one.id: one for one in (await world.pool.store.load()).leases}
    assert set(leases) == set(world.pool.ledger.leases) == {lease.id, before.id, after.id}
    assert {one.label for one in leases.values()} == {""}
    assert {one.label for one in world.pool.ledger.leases.values()} == {""}


async def test_use_is_counted_by_tenant_and_hour(world: World) -> None:
    world.clock.now = 1_800_000_000.0  # a full hour
    lease = await world.ask("a", gpus=2, memory_bytes=1000 * MIB, share_permille=300, ttl=1e6)
    world.clock.now += 3000
    await world.restart()
    world.clock.now += 1200
    await world.end(world.pool.ledger.leases[lease.id])
    world.clock.now += 5000
    await world.restart()
    table = tables.usage.c
    counted = (table.gpu_seconds, table.memory_byte_seconds, table.compute_seconds, table.leases)
    question = select(table.tenant, table.hour, *counted).order_by(table.hour)
    rows = await world.pool.store.fetch(question)
    hour = 1_800_000_000 // 3600
    assert [tuple(row) for row in rows] == [
        ("a", hour, 2 * 3600.0, 2000.0 * MIB * 3600, 0.6 * 3600, 1),
        ("a", hour + 1, 2 * 600.0, 2000.0 * MIB * 600, 0.6 * 600, 0),
    ]


async def test_every_change_is_in_the_audit_log_with_who_asked(world: World) -> None:
    lease = await world.ask("a")
    await world.end(lease)
    rows = await world.pool.store.fetch(
        select(tables.audit).where(tables.audit.c.object == lease.id).order_by(tables.audit.c.id)
    )
    assert [(row.action, row.actor, row.request_id, row.tenant) for row in rows] == [
        ("lease.granted", "a test", "request-1", "a"),
        ("lease.released", "a test", "request-1", "a"),
    ]
