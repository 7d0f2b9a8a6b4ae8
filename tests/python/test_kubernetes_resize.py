"""Pods that are given more or less of their GPU while they run, by their annotations."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from gpupool_kubernetes import names, pods
from kubernetes_world import KubernetesWorld, kubernetes_world, patched, path_of, pod

GIB = 1 << 30
HALF = {names.GPU: "1", names.MEMORY: "2Gi", names.COMPUTE: "50"}


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with kubernetes_world(tmp_path, {"confirm_seconds": 0.05}) as made:
        await made.pool.tenant("red")
        await made.pool.join("n1", 1)
        await made.make(pod("train", **HALF))
        await made.controller().pods.look(made.pod("train"))
        yield made


async def annotate(world: KubernetesWorld, name: str = "train", **notes: str) -> dict[str, Any]:
    """As ``kubectl annotate --overwrite``: what the webhook answers; what it allows is kept."""
    before = world.pod(name)
    after = copy.deepcopy(before)
    after["metadata"]["annotations"] |= {f"gpupool.io/{key}": text for key, text in notes.items()}
    found = await world.review(object=after, old=before, operation="UPDATE", user="alice")
    if found["allowed"]:
        made = patched(after, found)
        again = await world.review(object=made, old=before, operation="UPDATE", user="alice")
        assert again["allowed"] and "patch" not in again, "it may be asked again"
        await world.api.put(path_of(name), made)
    return found


def request(world: KubernetesWorld) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pods.notes(world.pod("train"))[names.REQUEST])
    return found


def events(world: KubernetesWorld, reason: str) -> list[str]:
    kept = [each for path, each in world.api.objects.items() if "/events/" in path]
    return [each["message"] for each in kept if each["reason"] == reason]


def limits(world: KubernetesWorld) -> tuple[int | None, int]:
    (lease,) = world.pool.pool.ledger.leases.values()
    return lease.limits.memory_bytes, lease.limits.share_permille


async def test_a_lease_follows_its_pods_annotations(world: KubernetesWorld) -> None:
    assert (await annotate(world, memory="4Gi", compute="80"))["allowed"]
    asked = request(world)
    assert (asked["memory_bytes"], asked["share_permille"]) == (4 * GIB, 800)
    assert asked["resources"] == {names.GPU: "1", names.MEMORY: "4Gi", names.COMPUTE: "80"}
    await world.controller().pods.look(world.pod("train"))
    assert limits(world) == (4 * GIB, 800)
    told = events(world, "Resizing") + events(world, "Resized")
    assert [each.partition(": ")[2] for each in told] == ["4GiB and 80% of each GPU"]
    await annotate(world, compute="12500m")
    await world.controller().pods.look(world.pod("train"))
    assert limits(world) == (4 * GIB, 125)


async def test_what_the_pool_refuses_is_told_and_its_programs_go_on(
    world: KubernetesWorld,
) -> None:
    await world.pool.quota("red", memory_bytes=3 * GIB)
    assert (await annotate(world, memory="4Gi"))["allowed"]
    await world.controller().pods.look(world.pod("train"))
    assert limits(world) == (2 * GIB, 500)
    (told,) = events(world, "ResizeRefused")
    assert "over the quota" in told and "3GiB" in told
    assert world.condition("train") == "Active"
    await world.pool.quota("red", memory_bytes=4 * GIB)
    await world.controller().pods.look(world.pod("train"))
    assert limits(world) == (4 * GIB, 500)


async def test_the_namespaces_quota_counts_what_is_more(world: KubernetesWorld) -> None:
    hard = {"requests.gpupool.io/memory": "4Gi", "requests.gpupool.io/compute": "50"}
    quota = "/api/v1/namespaces/red/resourcequotas/compute"
    await world.api.put(quota, {"spec": {"hard": hard}})
    found = await annotate(world, memory="5Gi")
    assert "requested: requests.gpupool.io/memory=3221225472" in found["status"]["message"]
    assert not (await annotate(world, compute="50500m"))["allowed"]
    assert (await annotate(world, memory="4Gi", compute="10"))["allowed"]


async def test_what_cannot_be_is_refused_at_once(world: KubernetesWorld) -> None:
    for notes, why in (
        ({"memory": "much"}, "is no quantity"),
        ({"memory": "1k"}, "allowed are 1MiB"),
        ({"compute": "0"}, "0.1..100"),
        ({"compute": "101"}, "0.1..100"),
        ({"request": "{}"}, "only gpupool's controller"),
    ):
        found = await annotate(world, **notes)
        assert not found["allowed"] and why in found["status"]["message"], notes
    assert request(world)["memory_bytes"] == 2 * GIB
    await world.make(pod("whole", **{names.GPU: "1"}))
    found = await annotate(world, "whole", memory="1Gi")
    assert "whole GPUs have all of it" in found["status"]["message"]


async def test_who_waits_keeps_its_place(world: KubernetesWorld) -> None:
    await world.make(pod("second", **{**HALF, names.MEMORY: "9Gi"}))
    await world.controller().pods.look(world.pod("second"))
    assert world.leases() == {"train": "active", "second": "queued"}
    assert (await annotate(world, "second", memory="7Gi"))["allowed"]
    await world.controller().pods.look(world.pod("second"))
    await world.controller().pods.look(world.pod("second"))
    assert world.leases() == {"train": "active", "second": "active"}
    assert len(world.pool.pool.ledger.leases) == 2


async def test_a_new_pod_may_have_them_too(world: KubernetesWorld) -> None:
    """As one that is made of what another was written out to."""
    copied = pod("copy", **HALF)
    copied["metadata"]["annotations"] = {names.MEMORY: "3Gi"}
    made = await world.admitted(copied)
    assert json.loads(pods.notes(made)[names.REQUEST])["memory_bytes"] == 3 * GIB
