"""Quotas: refused with the numbers, changed while in use, and never exceeded by a grant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_common.sizes import format_part, format_size
from gpupool_manager.problems import Problem
from gpupool_manager.records import Lease
from manager_world import World, gpu

#: Each quantity, a quota of it, and a request that is just within.
QUANTITIES: list[tuple[str, int, dict[str, Any]]] = [
    ("gpus", 3, {"gpus": 3}),
    ("memory_bytes", 4001 * MIB, {"memory_bytes": 4001 * MIB}),
    ("compute_permille", 750, {"gpus": 3, "share_permille": 250}),
    ("sessions", 1, {}),
]


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    opened = await World(database).open()
    await opened.join("node-1", 4)
    yield opened
    await opened.close()


async def refused(world: World, tenant: str = "a", **ask: Any) -> Problem:
    before = set(world.pool.ledger.leases)
    with pytest.raises(Problem) as refusal:
        await world.ask(tenant, **ask)
    assert set(world.pool.ledger.leases) == before
    return refusal.value


@pytest.mark.parametrize(("quantity", "quota", "want"), QUANTITIES)
async def test_up_to_the_quota_and_not_one_more(
    world: World, quantity: str, quota: int, want: dict[str, Any]
) -> None:
    await world.tenant("a", **{quantity: quota})
    lease = await world.ask("a", **want)
    problem = await refused(world, wait=60.0)
    asked = {"gpus": 1, "memory_bytes": 1000 * MIB, "compute_permille": 100, "sessions": 1}[
        quantity
    ]
    assert (problem.status, problem.code) == (403, "over-quota")
    assert problem.more["limits"] == [
        {"quantity": quantity, "asked": asked, "in_use": quota, "queued": 0, "quota": quota}
    ]
    shown = {"memory_bytes": format_size(quota), "compute_permille": format_part(quota)}.get(
        quantity, str(quota)
    )
    assert f"{shown} in use, quota {shown}" in problem.detail
    await world.end(lease)
    assert (await world.ask("a")).state == "active"


async def test_all_quantities_that_are_too_much_are_named(world: World) -> None:
    await world.tenant("a", gpus=1, memory_bytes=1 * MIB, compute_permille=10, sessions=0)
    problem = await refused(world, gpus=2)
    found = {limit["quantity"]: limit["asked"] for limit in problem.more["limits"]}
    assert found == {"gpus": 2, "memory_bytes": 2000 * MIB, "compute_permille": 200, "sessions": 1}


async def test_what_waits_counts_for_what_is_asked_for(world: World) -> None:
    await world.tenant("a", gpus=6)
    await world.tenant("b")
    await world.ask("b", gpus=4, memory_bytes=None, share_permille=1000)
    await world.ask("a", gpus=4, wait=60.0)
    problem = await refused(world, gpus=3, wait=60.0)
    assert "0 in use and 4 queued, quota 6" in problem.detail


async def test_of_a_rush_exactly_the_quota_is_granted(world: World) -> None:
    await world.tenant("a", gpus=7, compute_permille=100_000)
    asked = [world.ask("a", memory_bytes=10 * MIB, share_permille=10) for _ in range(40)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Lease) for answer in answers) == 7
    others = [answer for answer in answers if not isinstance(answer, Lease)]
    assert {getattr(other, "code", other) for other in others} == {"over-quota"}
    assert world.pool.ledger.active["a"].gpus == 7


async def test_a_smaller_quota_takes_nothing_back_and_gives_nothing_new(world: World) -> None:
    await world.tenant("a")
    first, second = await world.ask("a", gpus=2), await world.ask("a", gpus=2)
    await world.quota("a", gpus=1)
    assert world.state(first) == world.state(second) == "active"
    assert "4 in use, quota 1" in (await refused(world)).detail
    await world.end(first)
    await world.end(second)
    assert (await world.ask("a")).state == "active"


async def test_who_waits_feels_a_changed_quota_at_once(world: World) -> None:
    await world.tenant("a")
    await world.tenant("b")
    holding = await world.ask("b", gpus=4, memory_bytes=None, share_permille=1000)
    waits = await world.ask("a", gpus=2, wait=1000.0)
    await world.quota("a", gpus=1)
    await world.end(holding)
    assert world.state(waits) == "queued"
    waiting = world.pool.ledger.queue.get(waits.id)
    assert waiting is not None
    assert waiting.reason == "quota: virtual GPUs: 2 asked, 0 in use, quota 1"
    await world.quota("a", gpus=2)
    assert world.state(waits) == "active"


async def test_a_whole_gpu_counts_with_all_its_memory(world: World) -> None:
    await world.join("node-2", [gpu("node-2", 0, 4000 * MIB)])
    await world.tenant("a", memory_bytes=14_000 * MIB)
    small = await world.ask("a", memory_bytes=None, share_permille=1000)
    assert [grant.memory_bytes for grant in small.grants] == [4000 * MIB]
    large = await world.ask("a", memory_bytes=None, share_permille=1000)
    assert [grant.memory_bytes for grant in large.grants] == [10_000 * MIB]
    problem = await refused(world, memory_bytes=None, share_permille=1000, wait=60.0)
    assert problem.more["limits"][0] == {
        "quantity": "memory_bytes",
        "asked": 4000 * MIB,
        "in_use": 14_000 * MIB,
        "queued": 0,
        "quota": 14_000 * MIB,
    }


async def test_a_whole_gpu_that_is_too_large_for_the_quota_left_is_not_taken(world: World) -> None:
    await world.join("node-2", [gpu("node-2", 0, 4000 * MIB)])
    await world.tenant("a", memory_bytes=9999 * MIB)
    await world.tenant("b")
    holding = await world.ask(
        "b", memory_bytes=1 * MIB, share_permille=10, model=None, labels={}, policy="binpack"
    )
    assert holding.grants[0].gpu == "GPU-node-2-0"
    waits = await world.ask("a", memory_bytes=None, share_permille=1000, wait=60.0)
    assert waits.state == "queued"  # four larger ones are free
    await world.end(holding)
    assert [grant.gpu for grant in waits.grants] == ["GPU-node-2-0"]


async def test_models_that_the_quota_does_not_allow_are_not_given(world: World) -> None:
    await world.join("node-2", [gpu("node-2", 0, model="NVIDIA A100")])
    await world.tenant("a", models=["*a100"])
    assert (await world.ask("a")).grants[0].node == "node-2"
    problem = await refused(world, gpus=2, wait=60.0)
    assert (problem.status, problem.code) == (409, "impossible")
    await world.quota("a", models=["NVIDIA*"])
    assert (await world.ask("a", gpus=2)).state == "active"


async def test_quotas_and_what_counts_outlive_the_manager(world: World) -> None:
    await world.tenant("a", gpus=3, priority=2, models=["NVIDIA*"])
    await world.ask("a", gpus=2)
    await world.restart()
    quota = world.pool.ledger.quotas["a"]
    assert (quota.gpus, quota.memory_bytes, quota.priority, quota.models) == (
        *(3, None, 2),
        ["NVIDIA*"],
    )
    assert "2 in use, quota 3" in (await refused(world, gpus=2)).detail
    assert (await world.ask("a", gpus=1)).state == "active"
