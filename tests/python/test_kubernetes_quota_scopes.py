"""ResourceQuotas with scopes: which pods they are about, and that only these count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpupool_kubernetes import quota_scopes
from gpupool_kubernetes.pods import PodError
from kubernetes_world import KubernetesWorld, kubernetes_world, pod

GIB = 1 << 30
HALF = {"gpupool.io/gpu": "1", "gpupool.io/memory": "2Gi", "gpupool.io/compute": "50"}
QUOTAS = "/api/v1/namespaces/red/resourcequotas/"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
AWAY = {PREFERRED: [{"weight": 1, "podAffinityTerm": {"namespaces": ["blue"]}}]}


def by_class(operator: str, *values: str) -> dict[str, Any]:
    wanted = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [wanted]}}


#: What quotas say, by a short name.
SCOPES: dict[str, dict[str, Any]] = {
    "ends": {"scopes": ["Terminating"]},
    "stays": {"scopes": ["NotTerminating"]},
    "best": {"scopes": ["BestEffort"]},
    "not best": {"scopes": ["NotBestEffort"]},
    "far": {"scopes": ["CrossNamespacePodAffinity"]},
    "any class": by_class("Exists"),
    "no class": by_class("DoesNotExist"),
    "gold": by_class("In", "gold", "silver"),
    "not gold": by_class("NotIn", "gold"),
    "gold that ends": {"scopes": ["Terminating"], **by_class("In", "gold")},
    "of volumes": {"scopes": ["VolumeAttributesClass"]},
    "of tomorrow": {"scopes": ["Beautiful"]},
    "of tomorrow's classes": by_class("Like", "gold"),
    "all": {},
}

#: What a pod says, and the quotas that are about it, beside "all" and "not best".
ABOUT: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"stays", "no class", "not gold"}),
    ({"activeDeadlineSeconds": 60}, {"ends", "no class", "not gold"}),
    ({"priorityClassName": "gold"}, {"stays", "any class", "gold"}),
    (
        {"priorityClassName": "gold", "activeDeadlineSeconds": 0},
        {"ends", "any class", "gold", "gold that ends"},
    ),
    ({"priorityClassName": "low"}, {"stays", "any class", "not gold"}),
    (
        {
            "affinity": {
                "podAntiAffinity": {PREFERRED: [{"podAffinityTerm": {"namespaces": ["b"]}}]}
            }
        },
        {"stays", "no class", "not gold", "far"},
    ),
    (
        {"affinity": {"podAffinity": {REQUIRED: [{}, {"namespaceSelector": {}}]}}},
        {"stays", "no class", "not gold", "far"},
    ),
    (
        {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}},
        {"stays", "no class", "not gold"},
    ),
]


def asking(name: str = "train", **spec: Any) -> dict[str, Any]:
    made = pod(name, **HALF)
    made["spec"].update(spec)
    return made


@pytest.mark.parametrize(("spec", "about"), ABOUT)
def test_which_pods_a_quota_is_about(spec: dict[str, Any], about: set[str]) -> None:
    found = {
        name for name, says in SCOPES.items() if quota_scopes.covers({"spec": says}, asking(**spec))
    }
    assert found == about | {"all", "not best"}


def test_an_affinity_that_is_none_is_refused() -> None:
    with pytest.raises(PodError, match="'podAffinity' is no object"):
        quota_scopes.covers({"spec": SCOPES["far"]}, asking(affinity={"podAffinity": [1]}))


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with kubernetes_world(tmp_path) as made:
        await made.pool.tenant("red", gpus=8, memory_bytes=32 * GIB)
        await made.pool.join("n1")
        yield made


async def why(world: KubernetesWorld, asked: dict[str, Any]) -> str:
    """Why a pod is refused; empty: it is not."""
    found = await world.review(object=asked)
    return "" if found["allowed"] else str(found["status"]["message"])


async def test_pods_count_for_the_quotas_that_are_about_them(world: KubernetesWorld) -> None:
    hard = {"requests.gpupool.io/memory": "3Gi"}
    await world.api.put(QUOTAS + "gold", {"spec": {"hard": hard, **SCOPES["gold"]}})
    await world.api.put(QUOTAS + "stays", {"spec": {"hard": hard, **SCOPES["stays"]}})
    await world.make(asking("one", activeDeadlineSeconds=60))
    await world.make(asking("two", activeDeadlineSeconds=60))
    await world.make(asking("three"))
    assert "exceeded quota: stays, " in await why(world, asking("four"))
    golden = asking("four", activeDeadlineSeconds=60, priorityClassName="gold")
    await world.make(golden)
    message = await why(world, {**golden, "metadata": {**golden["metadata"], "name": "five"}})
    assert message == (
        "gpupool: exceeded quota: gold, requested: requests.gpupool.io/memory=2Gi,"
        " used: requests.gpupool.io/memory=2147483648,"
        " limited: requests.gpupool.io/memory=3221225472"
    )
    assert await why(world, asking("five", activeDeadlineSeconds=60)) == ""


async def test_what_a_running_pod_asks_more_counts_alike(world: KubernetesWorld) -> None:
    hard = {"requests.gpupool.io/memory": "3Gi"}
    await world.api.put(QUOTAS + "stays", {"spec": {"hard": hard, **SCOPES["stays"]}})
    for name, more, refusal in (("a", {"activeDeadlineSeconds": 60}, ""), ("b", {}, "stays")):
        old = world.api.objects[await world.make(asking(name, **more))]
        notes = {**old["metadata"]["annotations"], "gpupool.io/memory": "4Gi"}
        new = {**old, "metadata": {**old["metadata"], "annotations": notes}}
        found = await world.review(operation="UPDATE", object=new, old=old)
        assert found["allowed"] is (refusal == "")
        assert refusal in found.get("status", {}).get("message", "")
