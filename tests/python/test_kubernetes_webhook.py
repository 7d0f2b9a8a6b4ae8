"""Pods as the API server shows them to the webhook, and what becomes of them."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_kubernetes import names, pods, reviews
from gpupool_kubernetes.resources import Defaults
from kubernetes_world import CONTROLLER, KubernetesWorld, kubernetes_world, patched, pod, review

GIB = 1024 * MIB
HALF = {"gpupool.io/gpu": "1", "gpupool.io/memory": "2Gi", "gpupool.io/compute": "50"}


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with kubernetes_world(tmp_path) as made:
        await made.pool.tenant("red", gpus=2, memory_bytes=8 * GIB)
        await made.pool.join("n1")
        yield made


def refused(found: dict[str, Any]) -> str:
    assert found["allowed"] is False, found
    assert "patch" not in found
    message: str = found["status"]["message"]
    assert message.startswith("gpupool: ") and "\n" not in message
    return message


def main(made: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = made["spec"]["containers"][0]
    return container


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


async def test_a_pod_that_asks_gets_all_it_needs(world: KubernetesWorld) -> None:
    made = await world.admitted(pod(**HALF))
    assert main(made)["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    asked = json.loads(made["metadata"]["annotations"][names.REQUEST])
    assert asked["container"] == "main" and asked["resources"] == HALF
    assert (asked["gpus"], asked["memory_bytes"], asked["share_permille"]) == (1, 2 * GIB, 500)
    assert made["metadata"]["labels"] == {"app": "train", names.MANAGED: "true"}
    assert made["metadata"]["finalizers"] == [names.FINALIZER]
    assert made["spec"]["schedulingGates"] == [{"name": names.GATE}]
    volumes = {each["name"]: each for each in made["spec"]["volumes"]}
    assert set(volumes) > {"kube-api-access-7x2mq", "gpupool", "gpupool-lease"}
    (source,) = volumes["gpupool-credential"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "gpupool.io"
    (helper,) = made["spec"]["initContainers"]
    assert helper["restartPolicy"] == "Always" and helper["securityContext"]["runAsNonRoot"]
    given = variables(main(made))
    assert given["GPUPOOL_SERVER"]["fieldRef"]["fieldPath"].endswith("['gpupool.io/servers']")
    assert given["GPUPOOL_TOKEN_FILE"] == "/var/run/gpupool-lease/token"
    assert given["LD_LIBRARY_PATH"].startswith("/gpupool/lib:/usr/local/nvidia/lib")
    assert given["LD_PRELOAD"] == (
        "/gpupool/lib/libcupti.so.13:/gpupool/lib/libcupti.so.12:/gpupool/lib/libnccl.so.2"
    )
    secret = [each["name"] for each in main(made)["volumeMounts"]]
    assert "gpupool-credential" not in secret


async def test_a_pod_without_a_request_is_untouched_and_asks_nobody(world: KubernetesWorld) -> None:
    world.api.away = 1000
    world.manager.close()
    found = await world.review(object=pod())
    assert found == {"uid": found["uid"], "allowed": True}
    assert world.api.away == 1000
    zero: Any
    for zero in ("0", 0):
        assert "patch" not in await world.review(object=pod(**{names.GPU: zero}))


async def test_to_ask_again_changes_nothing(world: KubernetesWorld) -> None:
    made = await world.admitted(pod(**HALF))
    found = await world.review(object=made)
    assert found == {"uid": found["uid"], "allowed": True}


async def test_a_container_that_another_webhook_adds_meanwhile_is_kept(
    world: KubernetesWorld,
) -> None:
    made = await world.admitted(pod(**HALF))
    made["spec"]["initContainers"].insert(0, {"name": "mesh", "image": "mesh:1"})
    again = await world.admitted(made)
    assert [each["name"] for each in again["spec"]["initContainers"]] == ["gpupool", "mesh"]


async def test_a_dry_run_is_answered_alike_and_takes_nothing(world: KubernetesWorld) -> None:
    dry = await world.review(object=pod(**HALF), dry_run=True)
    assert dry == await world.review(object=pod(**HALF))
    assert not world.pool.pool.ledger.leases


async def test_init_containers_may_ask_instead(world: KubernetesWorld) -> None:
    asking = pod()
    init = copy.deepcopy(main(asking)) | {"name": "prepare", "resources": {"limits": HALF}}
    asking["spec"]["initContainers"] = [init]
    made = await world.admitted(asking)
    helper, prepared = made["spec"]["initContainers"]
    assert helper["name"] == "gpupool" and prepared["resources"] == {"limits": {}}
    assert "GPUPOOL_TOKEN_FILE" in variables(prepared)
    assert "env" not in main(made)


async def test_its_own_variables_stay_and_ours_win(world: KubernetesWorld) -> None:
    asking = pod(**HALF)
    main(asking)["env"] = [
        {"name": "GPUPOOL_SERVER", "value": "tcp://elsewhere:1"},
        {"name": "LD_LIBRARY_PATH", "value": "/opt/own:/gpupool/lib"},
        {"name": "LD_PRELOAD", "value": "libjemalloc.so.2"},
        {"name": "EPOCHS", "value": "3"},
    ]
    given = variables(main(await world.admitted(asking)))
    assert "fieldRef" in given["GPUPOOL_SERVER"] and given["EPOCHS"] == "3"
    assert given["LD_LIBRARY_PATH"] == "/gpupool/lib:/opt/own"
    assert given["LD_PRELOAD"].endswith("libnccl.so.2:libjemalloc.so.2")


async def test_image_volumes_and_preloading_are_settings(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "image_volumes": True,
        "libraries": "preload",
        "image": "registry/gpupool:1",
    }
    async with kubernetes_world(tmp_path, **more) as world:
        await world.pool.tenant("red")
        made = await world.admitted(pod(**HALF))
    volumes = {each["name"]: each for each in made["spec"]["volumes"]}
    assert volumes["gpupool"]["image"]["reference"] == "registry/gpupool:1"
    mounts = {each["mountPath"]: each for each in main(made)["volumeMounts"]}
    assert mounts["/etc/ld.so.preload"]["subPath"] == "ld.so.preload"
    assert not {"LD_LIBRARY_PATH", "LD_PRELOAD"} & set(variables(main(made)))
    assert "--libraries" not in made["spec"]["initContainers"][0]["command"]


async def test_over_the_quota_it_is_refused_with_the_numbers(world: KubernetesWorld) -> None:
    found = await world.review(object=pod(**{names.GPU: "3", names.MEMORY: "1Gi"}))
    assert "virtual GPUs: 3 asked, 0 in use, quota 2" in refused(found)
    assert found["status"]["code"] == 403
    await world.pool.quota("red", gpus=3)
    assert (await world.review(object=pod(**{names.GPU: "3", names.MEMORY: "1Gi"})))["allowed"]


async def test_a_quota_of_the_namespace_counts_what_was_taken_off(world: KubernetesWorld) -> None:
    hard = {"requests.gpupool.io/memory": "5Gi", "pods": "10"}
    quota = "/api/v1/namespaces/red/resourcequotas/"
    await world.api.put(quota + "compute", {"spec": {"hard": hard}})
    await world.make(pod("one", **HALF))
    path = await world.make(pod("two", **HALF))
    message = refused(await world.review(object=pod("three", **HALF)))
    assert message == (
        "gpupool: exceeded quota: compute, requested: requests.gpupool.io/memory=2Gi,"
        " used: requests.gpupool.io/memory=4294967296,"
        " limited: requests.gpupool.io/memory=5368709120"
    )
    finished = world.api.objects[path] | {"status": {"phase": "Succeeded"}}
    await world.api.put(path, finished)
    assert (await world.review(object=pod("three", **HALF)))["allowed"]


async def test_a_namespace_without_a_tenant_is_refused(world: KubernetesWorld) -> None:
    found = await world.review(object=pod(**HALF), namespace="green")
    assert "the namespace 'green' has no tenant" in refused(found)
    found = await world.review(object=pod(**HALF), namespace="blue-1")
    assert "there is no tenant 'blue'" in refused(found).lower() or "blue" in refused(found)


async def test_without_manager_or_api_it_is_allowed_with_a_warning(world: KubernetesWorld) -> None:
    world.api.away = 1
    world.manager._url = "http://127.0.0.1:1"
    found = await world.review(object=pod(**HALF))
    assert found["allowed"] and "patch" in found
    first, second = found["warnings"]
    assert "the namespace's quota was not looked at" in first
    assert "the pool's quota was not looked at" in second


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"annotations": {names.LEASE: "lease-of-another"}}}, "only gpupool writes"),
    ({"metadata": {"annotations": {names.SERVERS: "tcp://mine:1"}}}, "only gpupool writes"),
    ({"metadata": {"annotations": {names.REQUEST: "{}"}}}, "cannot be read: container"),
    ({"metadata": {"annotations": {names.REQUEST: "["}}}, "cannot be read: JSON"),
    ({"metadata": {"annotations": {"gpupool.io/policy": "best"}}}, "gpupool.io/policy: 'best'"),
    ({"metadata": {"annotations": {"gpupool.io/priority": "-1"}}}, "is not 0..100"),
    ({"metadata": {"annotations": {"gpupool.io/priority": "101"}}}, "gpupool.io/priority"),
    ({"metadata": {"annotations": {"gpupool.io/model": "\u0007"}}}, "gpupool.io/model"),
    ({"metadata": {"annotations": []}}, "'annotations' is no object"),
    ({"metadata": {"annotations": {"a": 1}}}, "a value of 'annotations' is no text"),
    ({"spec": {"nodeName": "n1"}}, "cannot have 'nodeName'"),
    ({"spec": {"volumes": [{"name": "gpupool"}]}}, "the volume 'gpupool'"),
    ({"spec": {"initContainers": [{"name": "gpupool"}]}}, "the container 'gpupool'"),
    ({"spec": {"initContainers": [1]}}, "something that is no object"),
    ({"spec": {"initContainers": {}}}, "'initContainers' is no list"),
]


async def test_what_a_hostile_pod_says_is_refused(world: KubernetesWorld) -> None:
    for change, why in HOSTILE:
        asking = pod(**HALF)
        for part, values in change.items():
            if names.REQUEST in values.get("annotations", {}):
                asking = pod()
            asking[part].update(values)
        assert why in refused(await world.review(object=asking))


@pytest.mark.parametrize(
    "mark",
    [
        {"labels": {names.MANAGED: "true"}},
        {"finalizers": [names.FINALIZER]},
        {"annotations": {names.INJECT: "false", names.REQUEST: '{"container": "main"}'}},
    ],
)
async def test_who_asks_for_nothing_cannot_look_as_if(
    world: KubernetesWorld, mark: dict[str, Any]
) -> None:
    plain = pod()
    plain["metadata"].update(mark)
    assert "only gpupool writes that" in refused(await world.review(object=plain))
    gated = pod()
    gated["spec"]["schedulingGates"] = [{"name": names.GATE}]
    assert "the scheduling gate" in refused(await world.review(object=gated))


async def test_an_annotation_of_ours_by_hand_gives_what_resources_would(
    world: KubernetesWorld,
) -> None:
    """Else who writes it would have more than the quota."""
    forged = pod()
    text = {"container": "main", "resources": HALF, "gpus": 64, "memory_bytes": 8 << 40}
    forged["metadata"]["annotations"] = {names.REQUEST: json.dumps(text)}
    made = await world.admitted(forged)
    asked = json.loads(made["metadata"]["annotations"][names.REQUEST])
    assert (asked["gpus"], asked["memory_bytes"]) == (1, 2 * GIB)
    text["resources"] = {"cpu": "1"}
    forged["metadata"]["annotations"] = {names.REQUEST: json.dumps(text)}
    assert "ask in resources" in refused(await world.review(object=forged))


async def test_two_containers_cannot_both_ask(world: KubernetesWorld) -> None:
    asking = pod(**HALF)
    asking["spec"]["containers"].append(copy.deepcopy(main(asking)) | {"name": "second"})
    message = refused(await world.review(object=asking))
    assert "the containers 'main', 'second' ask for GPUs" in message


async def test_who_opts_out_is_left_alone(world: KubernetesWorld) -> None:
    asking = pod(**HALF)
    asking["metadata"]["annotations"] = {names.INJECT: "false"}
    assert "patch" not in await world.review(object=asking)


# Changes -----------------------------------------------------------------------------------


async def test_only_the_controller_changes_what_is_ours(world: KubernetesWorld) -> None:
    before = await world.admitted(pod(**HALF))
    changes = {
        "annotations": {**before["metadata"]["annotations"], names.LEASE: "of-another"},
        "finalizers": [],
        "labels": {"app": "train"},
    }
    for part, value in changes.items():
        after = copy.deepcopy(before)
        after["metadata"][part] = value
        asked: dict[str, Any] = {"object": after, "old": before, "operation": "UPDATE"}
        assert "only gpupool's controller" in refused(await world.review(**asked, user="alice"))
        assert (await world.review(**asked, user=CONTROLLER))["allowed"]
        assert (await world.review(**asked, user="a", groups=("system:masters",)))["allowed"]
    after = copy.deepcopy(before)
    after["spec"]["schedulingGates"] = []
    asked = {"object": after, "old": before, "operation": "UPDATE", "user": "alice"}
    assert "the scheduling gate" in refused(await world.review(**asked))
    after = copy.deepcopy(before)
    after["metadata"]["annotations"]["own"] = "note"
    asked["object"] = after
    assert (await world.review(**asked))["allowed"]


async def test_ephemeral_containers_ask_for_nothing(world: KubernetesWorld) -> None:
    before = pod()
    after = copy.deepcopy(before)
    debug = {"name": "debug", "image": "busybox", "resources": {"limits": HALF}}
    after["spec"]["ephemeralContainers"] = [debug]
    asked = {"object": after, "old": before, "operation": "UPDATE"}
    found = await world.review(**asked, subresource="ephemeralcontainers")
    assert "an ephemeral container cannot ask" in refused(found)


# What is no review -------------------------------------------------------------------------


def without(path: str) -> dict[str, Any]:
    found = review(pod())
    *parts, last = path.split(".")
    inner = found
    for part in parts:
        inner = inner[part]
    del inner[last]
    return found


NO_REVIEWS = [
    (b"", "no JSON"),
    (b"\xff\xfe", "no JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b"[]", "the review"),
    (json.dumps(without("request")).encode(), "request"),
    (json.dumps(without("request.uid")).encode(), "request.uid"),
    (json.dumps(without("request.operation")).encode(), "request.operation"),
    (json.dumps({**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"}).encode(), "apiV"),
    (json.dumps(review("pod")).encode(), "request.object"),
]


async def test_what_is_no_review_is_400(world: KubernetesWorld) -> None:
    for body, why in (*NO_REVIEWS, (b" " * (reviews.MOST_BYTES + 1), "more than")):
        answer = await world.webhook.post("/admit", content=body)
        assert answer.status_code == 400
        assert why in answer.text


async def test_a_review_without_its_object_is_refused(world: KubernetesWorld) -> None:
    assert "has no 'object'" in refused(await world.review(object=None))
    found = await world.review(object=pod(), operation="UPDATE")
    assert "has no 'oldObject'" in refused(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["containers", "initContainers", "volumes", "schedulingGates", "nodeName"])


@given(st.dictionaries(KEYS, JSON), JSON, JSON)
def test_no_pod_of_another_shape_gets_through(
    spec: dict[str, Any], resources: Any, annotations: Any
) -> None:
    """Every part that is of another kind is a PodError, or of no interest."""
    container = {"name": "main", "resources": resources}
    found = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [container], **spec},
    }
    families = ("gpupool",)
    try:
        assert pods.asked_of(found, families, Defaults()) is None
    except ValueError as error:
        assert "\n" not in str(error)


async def test_two_pods_at_once_are_both_judged(world: KubernetesWorld) -> None:
    both = await asyncio.gather(*(world.review(object=pod(name, **HALF)) for name in "ab"))
    assert all(patched(pod(), found)["spec"]["schedulingGates"] for found in both)
