"""The DRA driver on a small API server and the manager's real app: GPUs out, leases in."""

from __future__ import annotations

import base64
import contextlib
import importlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from dra_world import FIRST, NAMESPACE, SECOND, DraWorld, claim, dra_world, result
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_kubernetes.dra import claims, slices
from gpupool_kubernetes.dra.driver import GROUP, SLICES, ClusterError, check_api, secret_path
from gpupool_kubernetes.names import DRA_DRIVER
from kubernetes_schemas import releases, wrong

GIB = 1024 * MIB

#: Without types here.
yaml: Any = importlib.import_module("yaml")


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[DraWorld]:
    async with dra_world(tmp_path) as found:
        yield found


async def test_gpus_are_devices_that_every_node_reaches(world: DraWorld) -> None:
    await world.driver.step()
    (spec,) = world.published()
    assert spec["allNodes"] is True and "nodeName" not in spec
    assert spec["pool"] == {"name": "gpupool", "generation": 1, "resourceSliceCount": 1}
    first = spec["devices"][0]
    assert first["attributes"]["uuid"] == {"string": FIRST}
    assert first["attributes"]["computeCapability"] == {"version": "9.0.0"}
    assert first["capacity"]["memory"]["value"] == "10000Mi"
    policy = first["capacity"]["compute"]["requestPolicy"]
    assert policy == {"default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}}
    assert first["allowMultipleAllocations"] is True
    version = world.api.version
    await world.driver.step()
    assert world.api.version == version, "what stands there is not written again"


async def test_what_others_lease_of_a_gpu_is_not_offered(world: DraWorld) -> None:
    await world.given(result())
    other = await world.pool.ask("blue", uuids=[FIRST], memory_bytes=1000 * MIB, share_permille=300)
    await world.pool.ask("blue", uuids=[SECOND], memory_bytes=None, share_permille=1000)
    await world.driver.step()
    (spec,) = world.published()
    (left,) = spec["devices"]  # the second is taken whole
    assert left["attributes"]["uuid"] == {"string": FIRST}
    # Kubernetes itself counts what its claims have.
    assert left["capacity"]["memory"]["value"] == "9000Mi"
    assert left["capacity"]["compute"]["value"] == "70"
    assert spec["pool"]["generation"] == 2
    await world.pool.end(other)
    await world.driver.step()
    assert world.published()[0]["devices"][0]["capacity"]["memory"]["value"] == "10000Mi"


async def test_a_closed_node_is_taken_off_and_many_gpus_are_several_slices(
    world: DraWorld,
) -> None:
    for number in range(2, 12):
        await world.pool.join(f"n{number}", 8)
    await world.driver.step()
    assert sorted(len(spec["devices"]) for spec in world.published()) == [18, 64]
    for slot in list(world.pool.pool.ledger.index):
        if slot.node != "n1":
            world.pool.pool.ledger.index.close(slot.uuid, "node: it is cordoned")
            world.pool.pool.ledger.nodes[slot.node].mode = "cordoned"
    await world.driver.step()
    (spec,) = world.published()
    assert len(spec["devices"]) == 2 and spec["pool"]["resourceSliceCount"] == 1


async def test_an_allocation_becomes_a_lease_on_that_gpu(world: DraWorld) -> None:
    made = await world.given(result(SECOND))
    (lease,) = world.leases()
    assert [grant.gpu for grant in lease.grants] == [SECOND]
    assert (lease.tenant, lease.request.memory_bytes) == ("red", 4 * GIB)
    assert lease.request.share_permille == 500
    assert world.status(made)[slices.ACTIVE][0] == "True"
    assert world.status(made)[slices.REFUSED][0] == "False"
    path = secret_path(NAMESPACE, made["metadata"]["uid"])
    data = world.api.objects[path]["data"]
    assert base64.b64decode(data["servers"]) == b"tcp://n1:7700"
    assert base64.b64decode(data["token"]).startswith(b"gpl_")
    version = world.api.version
    await world.driver.step()
    assert len(world.leases()) == 1 and world.api.version == version


async def test_a_driver_that_starts_anew_finds_its_leases(world: DraWorld) -> None:
    await world.given()
    (before,) = world.leases()
    world.driver = world.another()
    await world.driver.step()
    assert [lease.id for lease in world.leases()] == [before.id]


async def test_another_cluster_keeps_its_leases_of_the_same_pool(world: DraWorld) -> None:
    await world.given()
    (lease,) = world.leases()
    await world.api.remove(claims.path_of("red", "train-gpu"))
    await world.another(cluster_id="cluster-2").step()
    assert [each.id for each in world.leases()] == [lease.id]
    (spec,) = world.published()  # the other one has what that lease leaves
    assert spec["devices"][0]["capacity"]["compute"]["value"] == "50"


async def test_a_lease_that_was_resized_stays_its_claims(world: DraWorld) -> None:
    await world.given()
    (lease,) = world.leases()
    body = {"memory_bytes": 5 * GIB}
    await world.world.manager.do("PATCH", f"/leases/{lease.id}", body)
    await world.driver.step()
    assert [each.id for each in world.leases()] == [lease.id]
    # Claimed anew on the same GPU with another part of it: another lease.
    made = claim(result(consumedCapacity={"memory": "2Gi", "compute": "10"}))
    before = world.api.objects[claims.path_of("red", "train-gpu")]
    made["metadata"]["uid"] = before["metadata"]["uid"]
    await world.put(made)
    await world.driver.step()
    (other,) = world.leases()
    assert other.id != lease.id and other.request.memory_bytes == 2 * GIB


async def test_a_claim_that_is_gone_gives_its_lease_back(world: DraWorld) -> None:
    made = await world.given()
    await world.api.remove("/apis/resource.k8s.io/v1/namespaces/red/resourceclaims/train-gpu")
    await world.driver.step()
    assert (world.leases(), world.secrets()) == ([], [])
    # Deallocated, and allocated anew elsewhere: another lease.
    made = await world.given()
    (first,) = world.leases()
    made["status"]["allocation"]["devices"]["results"] = [result(SECOND)]
    await world.put(made)
    await world.driver.step()
    (second,) = world.leases()
    assert second.id != first.id and second.grants[0].gpu == SECOND
    del made["status"]["allocation"]
    await world.put(made)
    await world.driver.step()
    assert world.leases() == []


async def test_of_two_schedulers_that_choose_the_same_one_is_told(world: DraWorld) -> None:
    await world.pool.ask("blue", uuids=[FIRST], memory_bytes=None, share_permille=1000)
    made = await world.given(result(FIRST))
    state, message = world.status(made)[slices.REFUSED]
    assert state == "True" and f"does not fit on {FIRST}" in message
    assert world.status(made)[slices.ACTIVE][0] == "False"
    await world.pool.quota("red", gpus=0)
    over = await world.given(result(SECOND), name="over")
    assert "virtual GPUs: 1 asked, 0 in use, quota 0" in world.status(over)[slices.REFUSED][1]
    assert [lease.tenant for lease in world.leases()] == ["blue"]


async def test_a_cluster_without_binding_conditions_waits_in_the_queue(world: DraWorld) -> None:
    whole = await world.pool.ask("blue", uuids=[FIRST], memory_bytes=None, share_permille=1000)
    made = await world.given(result(bindingConditions=None))
    state, message = world.status(made)[slices.ACTIVE]
    assert state == "False" and message.startswith("position 1 in the queue")
    await world.pool.end(whole)
    await world.driver.step()
    assert world.status(made)[slices.ACTIVE][0] == "True"


async def test_a_cluster_without_consumable_capacity_gives_whole_gpus(world: DraWorld) -> None:
    await world.given(result(consumedCapacity=None, shareID=None))
    (lease,) = world.leases()
    assert (lease.request.memory_bytes, lease.grants[0].memory_bytes) == (None, 10_000 * MIB)


async def test_gates_that_are_off_are_named(world: DraWorld) -> None:
    await world.driver.step()
    (path,) = [path for path in world.api.objects if path.startswith(SLICES)]
    kept = world.api.objects[path]
    assert slices.missing_gates(kept) == []
    for device in kept["spec"]["devices"]:
        del device["allowMultipleAllocations"], device["bindingConditions"]
    capacity, binding = slices.missing_gates(kept)
    assert "DRAConsumableCapacity is off" in capacity and "as a whole" in capacity
    assert "DRADeviceBindingConditions is off" in binding
    # What the cluster drops is not written again and again.
    version = world.api.version
    await world.driver.step()
    assert world.api.version == version


async def test_an_old_cluster_is_told_what_is_missing(world: DraWorld) -> None:
    with pytest.raises(ClusterError, match="needs Kubernetes 1.34"):
        await check_api(world.world.cluster)
    await world.api.put(GROUP, {"versions": [{"version": "v1beta1"}]})
    with pytest.raises(ClusterError, match="in v1beta1, and this driver needs v1"):
        await check_api(world.world.cluster)
    await world.api.put(GROUP, {"versions": [{"version": "v1"}, {"version": "v1beta1"}]})
    await check_api(world.world.cluster)


async def test_one_bad_claim_holds_up_no_other(world: DraWorld) -> None:
    bad = await world.put(claim(result(consumedCapacity={"memory": "x"}), name="a-bad"))
    stranger = claim(result(), name="b-stranger")
    stranger["metadata"]["namespace"] = "green"
    await world.put(stranger)
    good = await world.given(name="z-good")
    assert world.status(good)[slices.ACTIVE][0] == "True"
    assert "the capacity that it consumes" in world.status(bad)[slices.REFUSED][1]
    assert len(world.leases()) == 1
    # A device that is named twice has one entry in the status.
    twice = await world.given(result(), result(), name="twice")
    assert "the same GPU twice" in world.status(twice)[slices.REFUSED][1]
    path = claims.path_of("red", "twice")
    assert len(world.api.objects[path]["status"]["devices"]) == 1


async def test_a_manager_that_is_away_costs_no_lease(world: DraWorld) -> None:
    made = await world.given()
    world.api.away = 1
    with pytest.raises(Exception, match="503"):
        await world.driver.step()
    await world.driver.step()
    assert len(world.leases()) == 1 and world.status(made)[slices.ACTIVE][0] == "True"


async def test_a_tenant_that_labels_its_lease_as_ours_gains_nothing(world: DraWorld) -> None:
    made = await world.put(claim(result()))
    allocation = claims.read(made)
    assert allocation is not None
    label = f"{world.driver.label}{allocation.uid} {allocation.digest}"
    await world.world.manager.do(
        "POST", "/leases", {"tenant": "blue", "uuids": [SECOND], "label": label}
    )
    await world.driver.step()
    assert [lease.tenant for lease in world.leases()] == ["red"]


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([result(pool="other")], "of a pool 'other'"),
        ([result(device="../../x")], "no name that can be one"),
        ([result(request="")], "no name that can be one"),
        ([result(adminAccess=True)], "admin access"),
        ([result(), result()], "the same GPU twice"),
        ([result(), result(SECOND, consumedCapacity=None)], "different parts"),
        ([result(consumedCapacity={"memory": "4Gi"})], "is no quantity"),
        ([result(consumedCapacity={"memory": "1", "compute": "5"})], "1Mi is the least"),
        ([result(consumedCapacity={"memory": "1e99", "compute": "5"})], "quantity"),
        ([result(consumedCapacity={"memory": "1Gi", "compute": "101"})], "0.1 to 100"),
        ([result(consumedCapacity={"memory": "1Gi", "compute": "0.05"})], "0.1 to 100"),
        ([result(consumedCapacity=[1])], "is no object"),
        ([result(f"GPU-{number}") for number in range(65)], "at most 64"),
    ],
)
def test_an_allocation_that_cannot_be_is_refused(results: list[Any], why: str) -> None:
    with pytest.raises(claims.ClaimError) as refused:
        claims.read(claim(*results))
    assert why in str(refused.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(_JSON, st.sampled_from(sorted(result())), _JSON)
def test_no_claim_breaks_the_reader(junk: Any, field: str, value: Any) -> None:
    """Whatever a status holds, it is an allocation, nothing of ours, or a ClaimError."""
    one = result(**{field: value})
    results = {"devices": {"results": [one, junk]}}
    for status in (junk, {"allocation": junk}, {"allocation": results}):
        with contextlib.suppress(claims.ClaimError):
            claims.read({**claim(), "status": status})


async def test_all_that_is_written_fits_the_schemas(world: DraWorld) -> None:
    """And what the cluster wrote in these tests, and the page's example."""
    made = await world.given()
    page = Path(__file__).resolve().parents[2] / "docs" / "dra.md"
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    things = [*yaml.safe_load_all(text)]
    for path in (
        f"{SLICES}/{DRA_DRIVER}-0",
        claims.path_of("red", "train-gpu"),
        secret_path(NAMESPACE, made["metadata"]["uid"]),
    ):
        kind = {"resourceslices": "ResourceSlice", "secrets": "Secret"}
        assert world.api.objects[path]["kind"] == kind.get(path.split("/")[-2], "ResourceClaim")
        things.append(world.api.objects[path])
    known = [each for each in releases() if tuple(map(int, each.split("."))) >= (1, 34)]
    assert known
    for release in known:
        for thing in things:
            assert wrong(release, thing) == [], (release, thing["kind"])


def test_what_is_not_ours_is_left_alone() -> None:
    assert claims.read(claim(result(driver="gpu.nvidia.com"))) is None
    assert claims.read({**claim(), "status": {}}) is None
    assert claims.read(claim(result(), deletionTimestamp="2026-01-01T00:00:00Z")) is None
    broken: Any
    for broken in ({"metadata": {"uid": "../x"}}, {"metadata": []}, {}):
        with pytest.raises(claims.ClaimError):
            claims.read(broken)
    status: Any
    for status in ([], {"allocation": 1}, {"allocation": {"devices": {"results": {"a": 1}}}}):
        with pytest.raises(claims.ClaimError):
            claims.read({**claim(), "status": status})
    assert claims.read(claim(*([1, None, "x"]))) is None  # type: ignore[arg-type]


def test_device_names_are_dns_labels() -> None:
    uuid = "GPU-5d2bd3f1-0c1e-4a9b-8f2d-0123456789ab"
    assert slices.device_name(uuid) == "gpu-5d2bd3f1-0c1e-4a9b-8f2d-0123456789ab"
    for odd in ("GPU_Odd.Name", FIRST, uuid.upper(), "x" * 64):
        assert claims.NAME.fullmatch(slices.device_name(odd))
    assert slices.device_name("A") != slices.device_name("a")


async def test_the_example_of_the_page_fits_what_is_published(world: DraWorld) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "dra.md"
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    kind, template, pod = yaml.safe_load_all(text)
    assert DRA_DRIVER in kind["spec"]["selectors"][0]["cel"]["expression"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == kind["metadata"]["name"]
    asked = request["exactly"]["capacity"]["requests"]
    await world.driver.step()
    assert set(asked) == set(world.published()[0]["devices"][0]["capacity"])
    name = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    assert name == template["metadata"]["name"]
    consumed = {key: str(value) for key, value in asked.items()}
    found = claims.read(claim(result(consumedCapacity=consumed)))
    assert found is not None
    assert (found.memory_bytes, found.share_permille) == (8 * GIB, 500)
