"""Leases for GPUs that another scheduler has chosen: the pool only checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.problems import Problem
from gpupool_manager.records import Lease
from manager_rest import Rest
from manager_world import World, gpu

WAIT = 10_000.0

FIRST, SECOND, THIRD = (f"GPU-n1-{index}" for index in range(3))


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    """Tenants a and b, and a node with three GPUs of 10,000 MiB, the last an A100."""
    opened = await World(database, lost_after=1e9).open()
    for name in ("a", "b"):
        await opened.tenant(name)
    await opened.join("n1", [gpu("n1", 0), gpu("n1", 1), gpu("n1", 2, model="NVIDIA A100")])
    yield opened
    await opened.close()


def gpus(lease: Lease) -> list[str]:
    return [grant.gpu for grant in lease.grants]


async def refused(work: object) -> Problem:
    with pytest.raises(Problem) as refusal:
        await work  # type: ignore[misc]
    return refusal.value


async def test_named_gpus_are_taken_in_their_order_whatever_the_policy_likes(world: World) -> None:
    await world.ask("a")  # binpack would go on here, on the first
    lease = await world.ask("b", gpus=2, uuids=[THIRD, SECOND])
    assert gpus(lease) == [THIRD, SECOND]
    assert lease.placement["rule"] == "the request named the GPUs"
    await world.restart()
    assert world.pool.ledger.leases[lease.id].request.uuids == (THIRD, SECOND)


async def test_a_named_gpu_without_room_is_refused_with_the_reason(world: World) -> None:
    await world.ask("a", uuids=[FIRST], memory_bytes=9000 * MIB)
    problem = await refused(world.ask("b", uuids=[FIRST], memory_bytes=2000 * MIB))
    assert (problem.status, problem.code) == (409, "full")
    assert problem.detail.endswith(f"fit on {FIRST}: not enough of its memory is free")
    assert "9000" not in problem.detail  # what others have there
    problem = await refused(world.ask("b", uuids=[FIRST], share_permille=950))
    assert problem.detail.endswith("not enough of its compute is free")
    problem = await refused(world.ask("b", uuids=[FIRST], memory_bytes=None, share_permille=1000))
    assert "a whole GPU does not fit" in problem.detail
    # One of two without room: nothing is taken of the other.
    await refused(world.ask("b", gpus=2, uuids=[SECOND, FIRST], memory_bytes=2000 * MIB))
    assert world.pool.ledger.index.slots[SECOND].whole


async def test_what_can_never_be_is_impossible(world: World) -> None:
    problem = await refused(world.ask("a", uuids=["GPU-else"], wait=WAIT))
    assert (problem.code, problem.detail) == ("impossible", "the pool has no GPU 'GPU-else'")
    problem = await refused(world.ask("a", uuids=[THIRD], model="*H200*", wait=WAIT))
    assert problem.detail == f"{THIRD}: model: it is 'NVIDIA A100', asked for '*H200*'"
    problem = await refused(world.ask("a", uuids=[FIRST], memory_bytes=10_001 * MIB, wait=WAIT))
    assert problem.code == "impossible"
    await world.quota("a", models=["NVIDIA A100"])
    problem = await refused(world.ask("a", uuids=[FIRST], wait=WAIT))
    assert problem.detail == f"{FIRST}: model: the quota does not allow 'NVIDIA H200'"


async def test_the_quota_counts_named_gpus_by_their_own_size(world: World) -> None:
    await world.join("n2", [gpu("n2", 0, memory_bytes=1000 * MIB)])
    await world.quota("a", memory_bytes=11_000 * MIB)
    whole: dict[str, Any] = {"memory_bytes": None, "share_permille": 1000}
    both = await world.ask("a", gpus=2, uuids=[FIRST, "GPU-n2-0"], **whole)
    assert sum(grant.memory_bytes for grant in both.grants) == 11_000 * MIB
    await world.end(both)
    problem = await refused(world.ask("a", gpus=2, uuids=[FIRST, SECOND], **whole))
    assert (problem.status, problem.code) == (403, "over-quota")
    assert problem.more["limits"][0]["asked"] == 20_000 * MIB


async def test_a_named_gpu_of_a_closed_node_is_waited_for(world: World) -> None:
    for slot in list(world.pool.ledger.index):
        world.pool.ledger.index.close(slot.uuid, "node: it is lost: no heartbeat")
    problem = await refused(world.ask("a", uuids=[FIRST]))
    assert problem.detail.endswith(f"on {FIRST}: node: it is lost")
    queued = await world.ask("a", uuids=[FIRST], wait=WAIT)
    await world.join("n1", [gpu("n1", 0)])
    world.pool.ledger.index.close(FIRST, None)
    await world.end(await world.ask("b", uuids=[FIRST]))
    assert world.state(queued) == "active"


async def test_who_waits_for_one_gpu_keeps_nobody_from_others_like_it(world: World) -> None:
    holder = await world.ask("a", uuids=[FIRST], memory_bytes=None, share_permille=1000, ttl=1e6)
    late = await world.ask("b", uuids=[FIRST], memory_bytes=None, share_permille=1000, wait=WAIT)
    await world.later(61)
    assert (await world.ask("a", uuids=[SECOND])).state == "active"
    assert (await world.ask("a", model="*H200*")).state == "active"
    # Of its own GPU it is the next one.
    small = await world.ask("a", uuids=[FIRST], wait=WAIT)
    assert small.state == "queued"
    await world.end(holder)
    assert (world.state(late), world.state(small)) == ("active", "queued")


async def test_naming_a_gpu_does_not_overtake_who_has_waited_long(world: World) -> None:
    held = [await world.ask("a", uuids=[uuid], ttl=1e6) for uuid in (FIRST, SECOND)]
    late = await world.ask(
        "b", gpus=2, memory_bytes=None, share_permille=1000, model="*H200*", wait=WAIT
    )
    await world.later(61)
    assert (await refused(world.ask("a", uuids=[FIRST]))).detail.endswith("goes first")
    assert (await world.ask("a", uuids=[THIRD])).state == "active"  # of another kind
    for lease in held:
        await world.end(world.pool.ledger.leases[lease.id])
    assert world.state(late) == "active"


async def test_a_manager_that_only_checks_places_nothing_itself(world: World) -> None:
    await world.ask("a", uuids=[FIRST], memory_bytes=None, share_permille=1000)
    queued = await world.ask("a", gpus=3, memory_bytes=None, share_permille=1000, wait=WAIT)
    world.rules = type(world.rules)(lost_after=1e9, unasked=1e9, only_checks=True)
    await world.restart()
    problem = await refused(world.ask("a", wait=WAIT))
    assert (problem.status, problem.more["errors"][0]["field"]) == (422, "body.uuids")
    lease = await world.ask("a", uuids=[SECOND])
    assert gpus(lease) == [SECOND]
    await world.end(lease)
    waiting = world.pool.ledger.queue.get(queued.id)
    assert waiting is not None and "another scheduler places" in waiting.reason


async def test_the_api_takes_as_many_gpus_as_are_named(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    lease = await rest.lease("a", uuids=[SECOND, FIRST])
    assert [grant["gpu"] for grant in lease["grants"]] == [SECOND, FIRST]
    assert (lease["request"]["gpus"], lease["request"]["uuids"]) == (2, [SECOND, FIRST])
    free = {"memory_bytes": 1 * MIB, "share_permille": 10}
    for body, field in (
        ({"uuids": [FIRST, FIRST]}, "body.uuids"),
        ({"uuids": [FIRST], "gpus": 2}, "body.gpus"),
        ({"uuids": [FIRST], "hosts": "same"}, "body.hosts"),
        ({"uuids": [""]}, "body.uuids.0"),
        ({"uuids": ["../x"]}, "body.uuids.0"),
        ({"uuids": [f"GPU-{number}" for number in range(65)]}, "body.uuids"),
        ({"uuids": "GPU-n1-0"}, "body.uuids"),
    ):
        problem = await rest.no(422, "bad-request", "POST", "/leases", free | body, by="a")
        assert [error["field"] for error in problem["errors"]] == [field], body


async def test_an_explanation_says_gpu_by_gpu_what_was_not_named(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    body = {"memory_bytes": 1 * MIB, "share_permille": 10, "uuids": [SECOND]}
    told = await rest.do("POST", "/leases/explain", body)
    assert told["summary"] == {"fits": 1, "uuid": 1}
    assert [(one["gpu"], one["fits"]) for one in told["gpus"]] == [(SECOND, True), (FIRST, False)]
    told = await rest.do("POST", "/leases/explain", body, by="a")
    assert told["summary"] == {"fits": 1, "uuid": 1} and told["gpus"] == []
