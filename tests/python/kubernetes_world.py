"""A cluster and a pool to test: a small API server, and the manager's real app, in this process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from gpupool_kubernetes.admission import Admission
from gpupool_kubernetes.cluster import Address, Cluster
from gpupool_kubernetes.config import Settings
from gpupool_kubernetes.controller import Controller
from gpupool_kubernetes.injection import Injector
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.namespace_quotas import NamespaceQuotas
from gpupool_kubernetes.pod_marks import condition_of
from gpupool_kubernetes.webhook import make_app
from gpupool_manager.app import make_app as make_manager
from gpupool_manager.tokens import new_secret
from kubernetes_api import FakeApi, served
from manager_world import World

CONTROLLER = "system:serviceaccount:gpupool-system:gpupool-controller"


class KubernetesWorld:
    """Everything that a pod meets, with short ways to make one."""

    def __init__(self, pool: World, api: FakeApi, settings: Settings, cluster: Cluster) -> None:
        self.pool, self.api, self.settings, self.cluster = pool, api, settings, cluster
        self.manager = ManagerClient.of(settings)
        self.controllers: list[asyncio.Task[None]] = []
        admission = Admission(settings, Injector(settings), self.manager, NamespaceQuotas(cluster))
        self.webhook = httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(admission)), base_url="http://webhook"
        )

    async def review(self, **request: Any) -> dict[str, Any]:
        """The response to a review of the API server's."""
        answer = await self.webhook.post("/admit", json=review(**request))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["response"]
        assert found["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
        return found

    async def admitted(self, pod: dict[str, Any], **request: Any) -> dict[str, Any]:
        """A pod as the webhook makes it."""
        found = await self.review(object=pod, **request)
        assert found["allowed"], found
        return patched(pod, found)

    def controller(self, cluster_id: str = "cluster-1") -> Controller:
        """A controller of this cluster, not yet at work."""
        return Controller(self.cluster, self.manager, self.settings, cluster_id, pause=0.01)

    def start(self) -> asyncio.Task[None]:
        """A controller at work, until it is cancelled or the test ends."""
        self.controllers.append(asyncio.create_task(self.controller().run()))
        return self.controllers[-1]

    async def stop(self) -> None:
        for task in self.controllers:
            task.cancel()
        await asyncio.gather(*self.controllers, return_exceptions=True)
        self.controllers.clear()

    def pod(self, name: str) -> dict[str, Any]:
        """A pod as it is now."""
        return self.api.objects[path_of(name)]

    def condition(self, name: str) -> str:
        """The reason of our condition; empty: it has none, or there is no such pod."""
        found = self.api.objects.get(path_of(name), {})
        return str(condition_of(found).get("reason") or "")

    async def until(self, name: str, reason: str) -> dict[str, Any]:
        """The pod, once its condition says so."""
        await self.api.until(lambda: self.condition(name) == reason)
        return self.pod(name)

    def leases(self) -> dict[str, str]:
        """The state of each lease that the manager keeps, by its label's last word."""
        live = self.pool.pool.ledger.leases.values()
        return {lease.label.rpartition("/")[2]: str(lease.state) for lease in live}

    async def until_leases(self, wanted: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while self.leases() != wanted:
                await asyncio.sleep(0.01)

    async def make(self, pod: dict[str, Any], **request: Any) -> str:
        """A pod that is admitted and kept; its path."""
        path = path_of(pod["metadata"]["name"])
        await self.api.put(path, await self.admitted(pod, **request))
        return path


def path_of(name: str) -> str:
    return f"/api/v1/namespaces/red/pods/{name}"


#: An empty database with all its tables: to make them takes most of a test's time.
_EMPTY: list[bytes] = []


async def open_pool(path: Path, rules: Mapping[str, Any]) -> World:
    if not _EMPTY:
        await (await World(f"sqlite:///{path}").open()).close()
        _EMPTY.append(path.read_bytes())
    path.write_bytes(_EMPTY[0])
    return await World(f"sqlite:///{path}", **rules).open()


@contextlib.asynccontextmanager
async def kubernetes_world(
    folder: Path, rules: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[KubernetesWorld]:
    """``rules`` are the manager's, ``more`` settings of ours."""
    pool = await open_pool(folder / "manager.db", rules or {})
    secret, api = new_secret("admin"), FakeApi()
    await pool.pool.add_admin(secret)
    token = folder / "admin.token"
    token.write_text(secret + "\n")
    async with served(make_manager(pool.pool)) as manager, served(api.app) as server:
        settings = Settings.model_validate(
            {
                "pool": manager,
                "pool_token_file": str(token),
                "api_server": server,
                "tenants": {"red": "*", "blue-1": "blue"},
                "controller_account": CONTROLLER,
                "namespace": "gpupool-system",
                **more,
            }
        )
        cluster = Cluster(Address(server))
        world = KubernetesWorld(pool, api, settings, cluster)
        try:
            yield world
        finally:
            await world.stop()
            await world.webhook.aclose()
            world.manager.close()
            await cluster.close()
    await pool.close()


def pod(name: str = "train", **limits: Any) -> dict[str, Any]:
    """A pod as the API server shows it to webhooks: with its defaults."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "red", "labels": {"app": "train"}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "train:1",
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"limits": {"cpu": "1", **limits}, "requests": {"cpu": "1"}},
                    "terminationMessagePath": "/dev/termination-log",
                    "volumeMounts": [
                        {
                            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                            "name": "kube-api-access-7x2mq",
                            "readOnly": True,
                        }
                    ],
                }
            ],
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Never",
            "serviceAccountName": "default",
            "volumes": [
                {
                    "name": "kube-api-access-7x2mq",
                    "projected": {"defaultMode": 420, "sources": [{"configMap": {"name": "c"}}]},
                }
            ],
        },
        "status": {},
    }


def review(
    object: Any,
    operation: str = "CREATE",
    old: Any = None,
    user: str = "system:serviceaccount:kube-system:job-controller",
    groups: tuple[str, ...] = ("system:authenticated",),
    namespace: str = "red",
    subresource: str = "",
    dry_run: bool = False,
) -> dict[str, Any]:
    """An AdmissionReview with all that the API's documentation shows."""
    resource = {"group": "", "version": "v1", "resource": "pods"}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": "train",
            "namespace": namespace,
            "operation": operation,
            "userInfo": {"username": user, "uid": "014fbff9a07c", "groups": list(groups)},
            "object": object,
            "oldObject": old,
            "dryRun": dry_run,
            "options": {"kind": f"{operation.title()}Options", "apiVersion": "meta.k8s.io/v1"},
            **({"subResource": subresource} if subresource else {}),
        },
    }


def patched(pod: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The pod with a response's JSON Patch, of which we use one operation."""
    made = copy.deepcopy(pod)
    for operation in json.loads(base64.b64decode(response.get("patch", "W10="))):
        assert operation["op"] == "add"
        _, outer, inner = operation["path"].split("/")
        made[outer][inner] = operation["value"]
    return made
