"""A pod's life against the manager's real app: asked, queued, placed, renewed, given back, lost."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpupool_kubernetes import names, pod_controller, pods, sweep
from gpupool_kubernetes.leader import Leader
from gpupool_kubernetes.pod_leases import Owner
from gpupool_kubernetes.sweep import Sweep
from kubernetes_world import KubernetesWorld, kubernetes_world, path_of, pod

WHOLE = {names.GPU: "1"}
HALF = {names.GPU: "1", names.MEMORY: "2Gi", names.COMPUTE: "50"}


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesWorld]:
    monkeypatch.setattr(pod_controller, "QUEUE_SECONDS", 0.05)
    monkeypatch.setattr(pod_controller, "RETRY_SECONDS", 0.05)
    async with kubernetes_world(tmp_path) as made:
        await made.pool.tenant("red")
        await made.pool.join("n1", 1)
        yield made


async def run(world: KubernetesWorld, name: str) -> None:
    """What the scheduler and a kubelet do."""
    found = copy.deepcopy(world.pod(name))
    assert not pods.gates(found), "the scheduler leaves it alone"
    found["spec"]["nodeName"] = "worker-1"
    found["status"]["phase"] = "Running"
    found["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
    await world.api.put(path_of(name), found)


async def end(world: KubernetesWorld, name: str, phase: str = "Succeeded") -> None:
    found = copy.deepcopy(world.pod(name))
    found["status"]["phase"] = phase
    await world.api.put(path_of(name), found)


async def event(world: KubernetesWorld, reason: str) -> str:
    """The message of the first event of that reason."""

    def found() -> list[str]:
        kept = [each for path, each in world.api.objects.items() if "/events/" in path]
        return [each["message"] for each in kept if each["reason"] == reason]

    await world.api.until(found)
    return found()[0]


async def test_from_asking_to_giving_back(world: KubernetesWorld) -> None:
    await world.make(pod("train", **HALF))
    world.start()
    made = await world.until("train", "Active")
    (lease,) = world.pool.pool.ledger.leases.values()
    assert pods.notes(made)[names.LEASE] == lease.id
    assert pods.notes(made)[names.SERVERS] == "tcp://n1:7700"
    assert pods.gates(made) == []
    assert lease.tenant == "red" and lease.grants[0].share_permille == 500
    assert await event(world, "Active") == f"lease {lease.id}: GPU-n1-0 on n1"
    await run(world, "train")
    await end(world, "train")
    await world.until_leases({})
    await world.api.until(lambda: not pods.finalizers(world.pod("train")))


async def test_a_lease_is_renewed_while_its_pod_runs(world: KubernetesWorld) -> None:
    await world.make(pod("train", **HALF))
    controller = world.controller()
    assert await controller.pods.look(world.pod("train")) == 900 / 4
    (lease,) = world.pool.pool.ledger.leases.values()
    first = lease.expires
    world.pool.clock.now += 300
    assert await controller.pods.look(world.pod("train")) == 900 / 4
    assert first is not None and lease.expires == first + 300
    version = world.api.version
    await controller.pods.look(world.pod("train"))
    assert world.api.version == version, "nothing new is written"


async def test_who_finds_no_room_waits_in_the_queue(world: KubernetesWorld) -> None:
    await world.make(pod("first", **WHOLE))
    world.start()
    await world.until("first", "Active")
    await world.make(pod("second", **WHOLE))
    queued = await world.until("second", "Queued")
    assert pods.gates(queued) == [names.GATE]
    told = await event(world, "Queued")
    assert told.startswith("position 1 in the queue: ")
    await end(world, "first", "Failed")
    await world.until("second", "Active")
    await world.until_leases({"second": "active"})


async def test_a_request_that_is_not_wanted_any_more_leaves_the_queue(
    world: KubernetesWorld,
) -> None:
    await world.make(pod("first", **WHOLE))
    world.start()
    await world.until("first", "Active")
    await world.make(pod("second", **WHOLE))
    await world.until("second", "Queued")
    await world.api.remove(path_of("second"))
    await world.until_leases({"first": "active"})
    await world.api.until(lambda: path_of("second") not in world.api.objects)


async def test_two_pods_that_pass_at_once_are_held_to_the_quota(world: KubernetesWorld) -> None:
    await world.pool.quota("red", gpus=1)
    both = await asyncio.gather(*(world.admitted(pod(name, **HALF)) for name in "ab"))
    for made in both:
        await world.api.put(path_of(made["metadata"]["name"]), made)
    world.start()
    await world.api.until(
        lambda: {world.condition("a"), world.condition("b")} == {"Active", "OverQuota"}
    )
    told = await event(world, "OverQuota")
    assert "virtual GPUs: 1 asked, 1 in use, quota 1" in told
    await world.pool.quota("red", gpus=2)
    await world.until_leases({"a": "active", "b": "active"})


async def test_two_pods_that_pass_at_once_are_held_to_their_namespaces_quota(
    world: KubernetesWorld,
) -> None:
    quota = "/api/v1/namespaces/red/resourcequotas/compute"
    await world.api.put(quota, {"spec": {"hard": {"requests.gpupool.io/gpu": "1"}}})
    both = await asyncio.gather(*(world.admitted(pod(name, **HALF)) for name in "ab"))
    for made in both:
        await world.api.put(path_of(made["metadata"]["name"]), made)
    world.start()
    await world.api.until(
        lambda: {world.condition("a"), world.condition("b")} == {"Active", "OverQuota"}
    )
    assert "exceeded quota: compute, " in await event(world, "OverQuota")
    first, second = sorted("ab", key=world.condition)
    await end(world, first)
    await world.until(second, "Active")


async def test_a_manager_that_is_away_loses_nothing(world: KubernetesWorld) -> None:
    url, world.manager._url = world.manager._url, "http://127.0.0.1:1"
    await world.make(pod("train", **HALF))
    world.start()
    await asyncio.sleep(0.05)
    assert world.condition("train") == "" and pods.gates(world.pod("train"))
    world.manager._url = url
    await world.until("train", "Active")
    assert len(world.leases()) == 1


async def test_a_controller_that_starts_anew_knows_all_that_the_last_one_knew(
    world: KubernetesWorld,
) -> None:
    await world.make(pod("train", **HALF))
    world.start()
    before = pods.notes(await world.until("train", "Active"))[names.LEASE]
    await world.stop()
    await run(world, "train")
    world.start()
    again = world.controller()
    await again.pods.look(world.pod("train"))
    assert list(world.pool.pool.ledger.leases) == [before]
    await world.api.remove(path_of("train"))
    assert names.FINALIZER in pods.finalizers(world.pod("train")), "it is still running"


async def test_an_answer_that_was_lost_does_not_make_a_second_lease(
    world: KubernetesWorld,
) -> None:
    """As when the controller ends between the manager's answer and the note on the pod."""
    await world.make(pod("train", **HALF))
    controller = world.controller()
    made = world.pod("train")
    request = pods.request_of(made)
    assert request is not None
    owner = Owner.of("cluster-1", made)
    first = await controller.leases.ask(owner, request, "red", "")
    await controller.pods.look(made)
    assert pods.notes(world.pod("train"))[names.LEASE] == first["id"]
    assert len(world.leases()) == 1


async def test_a_job_that_tries_again_has_a_lease_for_each_pod(world: KubernetesWorld) -> None:
    world.start()
    seen = set()
    for attempt in range(3):
        name = f"job-{attempt}"
        await world.make(pod(name, **WHOLE))
        made = await world.until(name, "Active")
        seen.add(pods.notes(made)[names.LEASE])
        await run(world, name)
        await end(world, name, "Failed")
    await world.until_leases({})
    assert len(seen) == 3


async def test_a_pod_that_takes_another_place_by_its_name_has_its_own_lease(
    world: KubernetesWorld,
) -> None:
    """A StatefulSet's: the same name, another uid, seen as one change by a slow watch."""
    await world.make(pod("db-0", **WHOLE))
    world.start()
    first = pods.notes(await world.until("db-0", "Active"))[names.LEASE]
    await world.stop()
    await world.api.remove(path_of("db-0"), force=True)
    await world.make(pod("db-0", **WHOLE))
    world.start()
    await world.api.until(
        lambda: pods.notes(world.pod("db-0")).get(names.LEASE) not in (None, first)
    )
    assert world.condition("db-0") in ("", "Queued", "Active")


# The end -----------------------------------------------------------------------------------


async def test_a_pod_that_is_evicted_keeps_its_lease_until_it_has_ended(
    world: KubernetesWorld,
) -> None:
    await world.make(pod("train", **HALF))
    controller = world.controller()
    await controller.pods.look(world.pod("train"))
    await run(world, "train")
    found = copy.deepcopy(world.pod("train"))
    found["metadata"]["deletionTimestamp"] = "2999-01-01T00:00:00Z"
    await world.api.put(path_of("train"), found)
    await controller.pods.look(world.pod("train"))
    assert world.leases() == {"train": "active"}
    found = copy.deepcopy(world.pod("train"))
    found["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 143}}
    await world.api.put(path_of("train"), found)
    await controller.pods.look(world.pod("train"))
    assert world.leases() == {} and path_of("train") not in world.api.objects


@pytest.mark.parametrize("when", ["2026-01-01T00:00:01Z", "never"])
async def test_a_node_that_does_not_answer_does_not_keep_the_gpus(
    world: KubernetesWorld, when: str
) -> None:
    """Its kubelet says nothing of the containers any more."""
    await world.make(pod("train", **HALF))
    controller = world.controller()
    await controller.pods.look(world.pod("train"))
    await run(world, "train")
    found = copy.deepcopy(world.pod("train"))
    found["metadata"]["deletionTimestamp"] = when
    await world.api.put(path_of("train"), found)
    await controller.pods.look(world.pod("train"))
    assert world.leases() == {}


async def test_a_pod_that_was_ended_by_force_gives_its_lease_back(world: KubernetesWorld) -> None:
    await world.make(pod("train", **HALF))
    world.start()
    await world.until("train", "Active")
    await world.api.remove(path_of("train"), force=True)
    await world.until_leases({})


async def test_what_nobody_needs_is_released_the_second_time(world: KubernetesWorld) -> None:
    for name in ("kept", "gone", "unmarked"):
        await world.make(pod(name, **{**HALF, names.COMPUTE: "10"}))
    controller = world.controller()
    for name in ("kept", "gone", "unmarked"):
        await controller.pods.look(world.pod(name))
    await world.api.remove(path_of("gone"), force=True)
    unmarked = copy.deepcopy(world.pod("unmarked"))
    unmarked["metadata"]["finalizers"] = []
    await world.api.put(path_of("unmarked"), unmarked)
    other = Sweep(world.cluster, controller.leases, "another-cluster")
    await other.once()
    await other.once()
    await controller.sweep.once()
    assert len(world.leases()) == 3, "it may have been asked for just now"
    await controller.sweep.once()
    assert world.leases() == {"kept": "active"}


@pytest.mark.parametrize("delete", [True, False])
async def test_a_lease_that_is_lost_is_told_and_its_pod_deleted(
    tmp_path: Path, delete: bool
) -> None:
    async with kubernetes_world(tmp_path, delete_lost=delete) as world:
        await world.pool.tenant("red")
        await world.pool.join("n1", 1)
        await world.make(pod("train", **HALF))
        controller = world.controller()
        await controller.pods.look(world.pod("train"))
        await run(world, "train")
        await world.pool.later(3600)  # no heartbeat of the node came
        assert await controller.pods.look(world.pod("train")) is None
        told = await event(world, "Lost")
        assert told.startswith(("the lease is lost: ", "the lease is expired: "))
        assert world.condition("train") == "Lost"
        assert pods.is_going(world.pod("train")) is delete


async def test_who_waits_while_a_node_is_lost_is_asked_for_again(world: KubernetesWorld) -> None:
    """Its pod has never run: it needs no other pod, but another lease."""
    await world.make(pod("train", **HALF))
    controller = world.controller()
    made = world.pod("train")
    request = pods.request_of(made)
    assert request is not None
    lease = await controller.leases.ask(Owner.of("cluster-1", made), request, "red", "")
    noted = copy.deepcopy(made)
    noted["metadata"]["annotations"][names.LEASE] = lease["id"]
    await world.api.put(path_of("train"), noted)
    await world.manager.do("POST", f"/leases/{lease['id']}/release")
    await controller.pods.look(world.pod("train"))
    assert pods.notes(world.pod("train"))[names.LEASE] != lease["id"]
    assert world.leases() == {"train": "active"}


# What others write on pods -----------------------------------------------------------------


async def test_a_pod_cannot_have_the_lease_of_another(world: KubernetesWorld) -> None:
    """Though it got past the webhook: with its annotation it gets nothing, and ends nothing."""
    await world.make(pod("victim", **{**HALF, names.COMPUTE: "10"}))
    controller = world.controller()
    await controller.pods.look(world.pod("victim"))
    stolen = pods.notes(world.pod("victim"))[names.LEASE]
    await world.make(pod("thief", **{**HALF, names.COMPUTE: "10"}))
    thief = copy.deepcopy(world.pod("thief"))
    thief["metadata"]["annotations"][names.LEASE] = stolen
    await world.api.put(path_of("thief"), thief)
    await world.api.remove(path_of("thief"))
    await controller.pods.look(world.pod("thief"))
    assert world.leases() == {"victim": "active"}
    await world.make(pod("thief", **{**HALF, names.COMPUTE: "10"}))
    thief = copy.deepcopy(world.pod("thief"))
    thief["metadata"]["annotations"][names.LEASE] = stolen
    await world.api.put(path_of("thief"), thief)
    await controller.pods.look(world.pod("thief"))
    assert pods.notes(world.pod("thief"))[names.LEASE] != stolen
    assert world.leases() == {"victim": "active", "thief": "active"}


async def test_a_running_pod_whose_note_was_changed_keeps_its_lease(
    world: KubernetesWorld,
) -> None:
    await world.make(pod("train", **HALF))
    await world.pool.tenant("mallory")
    label = {"tenant": "mallory", "label": Owner.of("cluster-1", world.pod("train")).label}
    small = {"memory_bytes": 1 << 20, "share_permille": 100}
    await world.manager.do("POST", "/leases", {**label, **small})
    controller = world.controller()
    await controller.pods.look(world.pod("train"))
    own = pods.notes(world.pod("train"))[names.LEASE]
    await run(world, "train")
    changed = copy.deepcopy(world.pod("train"))
    changed["metadata"]["annotations"][names.LEASE] = "lease-of-nobody"
    await world.api.put(path_of("train"), changed)
    await controller.pods.look(world.pod("train"))
    assert pods.notes(world.pod("train"))[names.LEASE] == own
    assert not pods.is_going(world.pod("train"))


@pytest.mark.parametrize(
    ("note", "reason"),
    [("{}", "Malformed"), ("[", "Malformed"), (None, "Malformed")],
)
async def test_a_request_that_cannot_be_read_is_told(
    world: KubernetesWorld, note: str | None, reason: str
) -> None:
    await world.make(pod("train", **HALF))
    changed = copy.deepcopy(world.pod("train"))
    changed["metadata"]["annotations"].pop(names.REQUEST)
    if note is not None:
        changed["metadata"]["annotations"][names.REQUEST] = note
    await world.api.put(path_of("train"), changed)
    assert await world.controller().pods.look(world.pod("train")) is None
    assert world.condition("train") == reason
    assert world.leases() == {}


async def test_no_tenant_and_no_such_gpu_are_told_and_tried_again(world: KubernetesWorld) -> None:
    await world.make(pod("train", **{names.GPU: 1, names.MEMORY: "100Gi"}))
    controller = world.controller()
    assert await controller.pods.look(world.pod("train")) == 0.05
    assert world.condition("train") == "Impossible"
    await world.make(pod("other", **HALF))
    other = copy.deepcopy(world.pod("other"))
    other["metadata"]["namespace"] = "green"
    await world.api.put("/api/v1/namespaces/green/pods/other", other)
    assert await controller.pods.look(other) == 0.05
    found = world.api.objects["/api/v1/namespaces/green/pods/other"]
    assert found["status"]["conditions"][0]["reason"] == "NoTenant"


# The cluster's API -------------------------------------------------------------------------


async def test_a_watch_that_is_too_old_begins_anew(world: KubernetesWorld) -> None:
    world.start()
    await world.make(pod("first", **{**HALF, names.COMPUTE: "10"}))
    await world.until("first", "Active")
    world.api.forgotten = world.api.version + 5
    world.api.away = 2
    for name in ("second", "third"):
        await world.api.put("/api/v1/namespaces/red/configmaps/" + name, {})
        await world.api.put(
            path_of(name),
            await world.admitted(pod(name, **{**HALF, names.COMPUTE: "10"})),
        )
    world.api.forgotten = 0
    await world.until("second", "Active")
    await world.until("third", "Active")


async def test_one_of_two_controllers_works(world: KubernetesWorld) -> None:
    def candidate(identity: str, pace: float = 0.02) -> Leader:
        return Leader(world.cluster, "gpupool-system", "gpupool-controller", identity, pace)

    # The second is slower: a machine that stands still for a moment ends no leadership.
    one, two = candidate("one"), candidate("two", 0.06)
    await asyncio.wait_for(one.acquire(), 10)
    holding = asyncio.create_task(one.hold())
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(1.0)  # longer than it holds without
    assert not waiting.done(), "the first renews it"
    holding.cancel()
    await asyncio.wait_for(waiting, 10)  # the first has died
    with pytest.raises(Exception, match="another controller works"):
        await asyncio.wait_for(one.hold(), 10)
    await two.give_up()
    await asyncio.wait_for(candidate("three").acquire(), 10)


async def test_the_sweep_goes_on_after_an_error(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_SECONDS", 0.01)
    await world.make(pod("train", **HALF))
    controller = world.controller()
    await controller.pods.look(world.pod("train"))
    await world.api.remove(path_of("train"), force=True)
    world.api.away = 1
    running = asyncio.create_task(controller.sweep.run())
    await world.until_leases({})
    running.cancel()


def test_an_owner_is_read_from_labels_of_ours_only() -> None:
    owner = Owner("c", "u", "red", "train")
    assert Owner.read(owner.label) == owner
    others: tuple[Any, ...] = ("", "train.py", "kubernetes c u red", "kubernetes  u red/a b", None)
    assert all(Owner.read(other) is None for other in others)
    assert not owner.owns({"label": Owner("d", "u", "red", "train").label})
    assert len(Owner("c" * 36, "u" * 36, "n" * 63, "p" * 253).label) == 256
