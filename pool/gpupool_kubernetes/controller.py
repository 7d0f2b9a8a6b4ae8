"""``gpupool-kubernetes controller``: leases for pods. It keeps no state but the API's."""

from __future__ import annotations

import asyncio
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpupool_common import logs
from gpupool_common.errors import ConfigError
from gpupool_common.setting_options import with_settings
from gpupool_kubernetes import credentials, names, pods, tenant_quotas
from gpupool_kubernetes.cluster import Cluster, Object, own_namespace
from gpupool_kubernetes.command import api_address, ended
from gpupool_kubernetes.config import TABLES, Settings, load_settings
from gpupool_kubernetes.informer import Informer
from gpupool_kubernetes.leader import Leader
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.mirrors import Mirrors
from gpupool_kubernetes.pod_controller import PodController
from gpupool_kubernetes.pod_leases import PodLeases
from gpupool_kubernetes.serving import Certificate, serve
from gpupool_kubernetes.sweep import Sweep
from gpupool_kubernetes.tenant_quotas import TenantQuotas
from gpupool_kubernetes.workqueue import FIRST_SECONDS, WorkQueue

_LEADER = "gpupool-controller"
_SELECTOR = f"{names.MANAGED}=true"

_log = logs.get("controller")


class Controller:
    """Everything that one controller of a cluster does, once it leads."""

    def __init__(
        self,
        cluster: Cluster,
        manager: ManagerClient,
        settings: Settings,
        cluster_id: str,
        pause: float = FIRST_SECONDS,
    ) -> None:
        self.leases = PodLeases(manager, settings.lease_seconds, settings.queue_seconds)
        self.pods = PodController(cluster, self.leases, settings, cluster_id)
        self.queue = WorkQueue(self._look, pause)
        self.informer = Informer(cluster, "/api/v1/pods", self._changed)
        self.sweep = Sweep(cluster, self.leases, cluster_id)
        self.mirrors = Mirrors(cluster, manager, cluster_id)
        self.quotas = TenantQuotas(cluster, manager)
        self.quota_queue = WorkQueue(self._look_at_quota, pause)
        self.quota_informer = Informer(cluster, tenant_quotas.PATH, self._quota_changed)
        #: Pods that went without giving back what they had, by their keys in the queue.
        self._gone: dict[str, Object] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.quota_informer.run())
            group.create_task(self.quota_queue.run(workers=1))
            group.create_task(self.mirrors.run())
            group.create_task(self.informer.run(labelSelector=_SELECTOR))
            await self.informer.synced.wait()
            group.create_task(self.queue.run())
            group.create_task(self.sweep.run())

    def _changed(self, key: str, now: Object | None, last: Object) -> None:
        if now is not None:
            self.queue.add(key)
            return
        self.queue.forget(key)
        if names.FINALIZER in pods.finalizers(last):
            gone = f"{key} {pods.metadata(last).get('uid')}"
            self._gone[gone] = last
            self.queue.add(gone)

    def _quota_changed(self, key: str, now: Object | None, last: Object) -> None:
        if now is None:
            self.quota_queue.forget(key)
        else:
            self.quota_queue.add(key)

    async def _look_at_quota(self, key: str) -> float | None:
        found = self.quota_informer.objects.get(key)
        return None if found is None else await self.quotas.look(found)

    async def _look(self, key: str) -> float | None:
        if (pod := self._gone.get(key)) is not None:
            await self.pods.give_back(pod)
            del self._gone[key]
            return None
        found = self.informer.objects.get(key)
        return None if found is None else await self.pods.look(found)


async def cluster_id_of(cluster: Cluster) -> str:
    """What tells this cluster's leases from those of others: the id of its first namespace."""
    found = await cluster.get("/api/v1/namespaces/kube-system")
    return str(pods.metadata(found)["uid"])


def namespace_of(settings: Settings) -> str:
    """Where our own objects are: the namespace of the settings, else that of this pod."""
    found = settings.namespace or own_namespace()
    if found is None:
        raise ConfigError("key 'namespace': this is no pod, so it must be given")
    return found


async def _lead(leader: Leader, controller: Controller) -> None:
    """Work for as long as nobody else does; an error ends it."""
    await leader.acquire()
    tasks = [asyncio.create_task(each) for each in (leader.hold(), controller.run())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await leader.give_up()


async def _serve(settings: Settings) -> None:
    certificate = Certificate(settings.tls_certificate, settings.tls_key)
    cluster, manager = Cluster(api_address(settings)), ManagerClient.of(settings)
    try:
        cluster_id = await cluster_id_of(cluster)
        controller = Controller(cluster, manager, settings, cluster_id)
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        leader = Leader(cluster, namespace_of(settings), _LEADER, identity)
        app = credentials.make_app(credentials.Credentials(cluster, controller.leases, cluster_id))
        _log.info("ready", listen=settings.listen, identity=identity)
        await serve(app, settings.address, certificate, _lead(leader, controller))
    finally:
        manager.close()
        await cluster.close()


def controller(
    config: Annotated[Path | None, typer.Option(help="a TOML file")] = None, **flags: object
) -> None:
    """Take leases for pods, and give pods the tokens of their leases."""
    with ended():
        settings = load_settings(config, flags)
        logs.configure(settings.log_level, settings.log_json)
        uvloop.run(_serve(settings))


def add_to(app: typer.Typer) -> None:
    app.command("controller")(with_settings(Settings, controller, TABLES))
