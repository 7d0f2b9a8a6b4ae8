"""Objects of our own: quotas that are applied, leases and nodes that are shown, and kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml  # type: ignore[import-untyped]

from gpupool_kubernetes import crds, names
from gpupool_kubernetes.crds import TenantQuotaSpec
from gpupool_kubernetes.mirrors import Mirrors, name_of
from gpupool_kubernetes.tenant_quotas import PATH, TenantQuotas
from kubernetes_world import KubernetesWorld, kubernetes_world, pod
from pool_process import environment

ROOT = Path(__file__).resolve().parents[2]
HALF = {names.GPU: "1", names.MEMORY: "2Gi", names.COMPUTE: "50"}
LEASES, NODES = (f"/apis/gpupool.io/v1alpha1/{each}/" for each in ("leases", "nodes"))


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with kubernetes_world(tmp_path) as made:
        await made.pool.join("n1", 2)
        yield made


@pytest.mark.parametrize(("kind", "plural"), names.CLUSTER_SCOPED)
def test_the_chart_defines_what_the_models_say(kind: str, plural: str) -> None:
    text = (ROOT / "kubernetes/chart/crds" / f"{plural}.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    assert found["metadata"]["name"] == f"{plural}.{names.GROUP}"
    spec = found["spec"]
    assert (spec["group"], spec["scope"], spec["names"]["kind"]) == (names.GROUP, "Cluster", kind)
    assert (spec["names"]["plural"], spec["names"]["singular"]) == (plural, kind.lower())
    (version,) = spec["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version["schema"]["openAPIV3Schema"] == crds.schema(kind)
    assert ("subresources" in version) == (kind == "TenantQuota")
    for column in version["additionalPrinterColumns"]:
        _, part, field, *_ = column["jsonPath"].replace("[*]", "").split(".")
        assert field in crds.schema(kind)["properties"][part]["properties"]


# TenantQuota -------------------------------------------------------------------------------


async def quota(world: KubernetesWorld, name: str, **spec: Any) -> dict[str, Any]:
    """The status of a TenantQuota once it was looked at."""
    made = await world.api.put(f"{PATH}/{name}", {"metadata": {"generation": 3}, "spec": spec})
    await TenantQuotas(world.cluster, world.manager).look(made)
    status: dict[str, Any] = world.api.objects[f"{PATH}/{name}"]["status"]
    return status


async def test_a_quota_makes_its_tenant_and_is_changed(world: KubernetesWorld) -> None:
    status = await quota(world, "red", gpus=2, memory="8Gi", compute=150, leases=4, priority=7)
    assert (status["state"], status["observedGeneration"]) == ("Applied", 3)
    kept = world.pool.pool.ledger.quotas["red"]
    assert (kept.gpus, kept.memory_bytes, kept.compute_permille) == (2, 8 << 30, 1500)
    assert (kept.sessions, kept.priority, kept.models) == (4, 7, None)
    version = kept.version
    await quota(world, "red", gpus=2, memory="8Gi", compute=150, leases=4, priority=7)
    assert world.pool.pool.ledger.quotas["red"].version == version, "nothing is written again"
    await quota(world, "red", gpus=3, models=["NVIDIA H*"])
    kept = world.pool.pool.ledger.quotas["red"]
    assert (kept.gpus, kept.memory_bytes, kept.models) == (3, None, ["NVIDIA H*"])


async def test_what_a_quota_cannot_say_stays(world: KubernetesWorld) -> None:
    await world.pool.tenant("red")
    body = {"gpus": 1, "budgets": {"sessions": 9}}
    await world.manager.do("PUT", "/tenants/red/quota", body)
    await quota(world, "team", tenant="red", gpus=5)
    kept = world.pool.pool.ledger.quotas["red"]
    assert kept.gpus == 5 and kept.budgets["sessions"] == 9


async def test_what_is_in_use_is_shown(world: KubernetesWorld) -> None:
    await quota(world, "red", gpus=2)
    await world.make(pod("train", **HALF))
    await world.controller().pods.look(world.pod("train"))
    status = await quota(world, "red", gpus=2)
    in_use = {"gpus": 1, "memoryBytes": 2 << 30, "computePermille": 500, "sessions": 1}
    assert status["inUse"] == in_use


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("red", {"gpus": -1}, "spec.gpus"),
    ("red", {"gpus": "many"}, "spec.gpus"),
    ("red", {"memory": "8GiB"}, "spec.memory"),
    ("red", {"memory": "999999999999Ti"}, "quantity"),
    ("red", {"memory": "9Pi"}, "more than a quota can hold"),
    ("red", {"memory": "0.3"}, "whole number"),
    ("red", {"tenant": "no tenant"}, "spec.tenant"),
    ("red", {"unknown": 1}, "spec.unknown"),
    ("red", {"models": ["\u0000"]}, "cannot take this"),
    ("n" * 40, {}, "cannot take this"),
]


async def test_what_cannot_be_a_quota_is_refused_by_its_status(world: KubernetesWorld) -> None:
    for name, spec, why in WRONG:
        status = await quota(world, name, **spec)
        assert status["state"] == "Refused" and why in status["message"], (spec, status)
    assert "red" not in world.pool.pool.ledger.tenants


def test_quantities_of_a_quota_are_the_managers() -> None:
    read = TenantQuotaSpec.model_validate
    assert read({"memory": "1.5Gi", "compute": 0}).quota()["memory_bytes"] == 3 << 29
    assert read({}).quota()["memory_bytes"] is None


async def test_the_controller_applies_and_shows_by_itself(world: KubernetesWorld) -> None:
    await world.api.put(f"{PATH}/red", {"spec": {"gpus": 1}})
    world.start()
    kept = world.api.objects
    await world.api.until(lambda: kept[f"{PATH}/red"].get("status", {}).get("state") == "Applied")
    await world.api.put(f"{PATH}/red", {"spec": {"gpus": 2}})
    async with asyncio.timeout(60):
        while world.pool.pool.ledger.quotas["red"].gpus != 2:
            await asyncio.sleep(0.01)
    await world.api.until(lambda: NODES + "n1" in kept)


# Mirrors -----------------------------------------------------------------------------------


async def test_leases_and_nodes_are_shown_as_the_manager_has_them(world: KubernetesWorld) -> None:
    await world.pool.tenant("red")
    await world.make(pod("train", **HALF))
    await world.controller().pods.look(world.pod("train"))
    await world.pool.ask("red", gpus=1)
    mirrors = Mirrors(world.cluster, world.manager, "cluster-1")
    await world.api.put(LEASES + "forged", {"status": {"tenant": "mine"}})
    await mirrors.once()
    shown = {path: each for path, each in world.api.objects.items() if path.startswith(LEASES)}
    by_pod = {each["status"]["pod"]: each["status"] for each in shown.values()}
    assert set(by_pod) == {"red/train", ""}
    assert by_pod["red/train"]["state"] == "active"
    assert by_pod["red/train"]["grants"][0]["sharePermille"] == 500
    node = world.api.objects[NODES + "n1"]
    assert node["kind"] == "Node" and node["status"]["gpus"][0]["uuid"] == "GPU-n1-0"
    version = world.api.version
    await mirrors.once()
    assert world.api.version == version, "what has not changed is not written again"
    await world.api.put(NODES + "n1", {**node, "status": {"name": "n1"}})
    await mirrors.once()
    assert world.api.objects[NODES + "n1"]["status"] == node["status"]
    (lease,) = [path for path, each in shown.items() if each["status"]["pod"]]
    await world.manager.do("POST", f"/leases/{lease.removeprefix(LEASES)}/release")
    await mirrors.once()
    assert lease not in world.api.objects


def test_names_of_the_pool_become_names_of_the_cluster() -> None:
    assert name_of("gpu-7.rack") == "gpu-7.rack"
    odd = [name_of(name) for name in ("GPU_7", "gpu_7", "-", "." * 64, "a" * 64)]
    assert len(set(odd)) == 5
    assert all(name_of(name) == name and len(name) <= 63 for name in odd)


# kubectl gpupool inspect -------------------------------------------------------------------

KUBECTL = f"""#!{sys.executable}
import json, sys
words = sys.argv[1:]
if words[:2] == ["--context", "away"]:
    sys.exit("error: context does not exist\\nmore")
print(open(__file__ + "." + words[words.index("get") + 1]).read())
"""


def kubectl_gpupool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = "from gpupool_kubernetes.inspect_command import main; main()"
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-c", script, "inspect", *words],
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_kubectl_gpupool_inspect_shows_the_pool(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    await world.pool.tenant("red")
    await world.make(pod("train", **HALF))
    await world.controller().pods.look(world.pod("train"))
    await Mirrors(world.cluster, world.manager, "cluster-1").once()
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    for folder, plural in ((LEASES, "leases"), (NODES, "nodes")):
        items = [each for path, each in world.api.objects.items() if path.startswith(folder)]
        (tmp_path / f"kubectl.{plural}.gpupool.io").write_text(json.dumps({"items": items}))
    shown = await asyncio.to_thread(kubectl_gpupool, tmp_path)
    assert "n1" in shown.stdout and "(Allocated/Total)" in shown.stdout, shown.stderr
    assert shown.stdout.endswith("In Pool:\n2/19.5 (10%) GiB\n")
    details = await asyncio.to_thread(kubectl_gpupool, tmp_path, "-d")
    assert "red/red/train" in details.stdout
    as_json = await asyncio.to_thread(kubectl_gpupool, tmp_path, "--json")
    assert json.loads(as_json.stdout)["allocated_bytes"] == 2 << 30
    away = await asyncio.to_thread(kubectl_gpupool, tmp_path, "--context", "away")
    assert away.returncode == 1 and away.stderr.count("\n") == 1
    assert "context does not exist" in away.stderr
    (tmp_path / "kubectl.nodes.gpupool.io").write_text('{"items": [{"status": {"name": 1}}]}')
    wrong = await asyncio.to_thread(kubectl_gpupool, tmp_path)
    assert wrong.returncode == 1 and "is none of ours" in wrong.stderr
    (tmp_path / "kubectl.nodes.gpupool.io").write_text("[]")
    wrong = await asyncio.to_thread(kubectl_gpupool, tmp_path)
    assert wrong.returncode == 1 and "gave no list" in wrong.stderr
