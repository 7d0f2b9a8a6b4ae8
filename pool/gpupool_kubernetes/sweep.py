"""Leases that no pod needs any more, though nobody gave them back.

A finalizer that was removed by hand, a namespace that was ended by force, a request whose answer
was lost and whose pod went meanwhile: what is asked for must not stay for ever, since it is renewed
by sessions that may run on.
"""

from __future__ import annotations

import asyncio

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_kubernetes import names, pods
from gpupool_kubernetes.cluster import Cluster
from gpupool_kubernetes.pod_leases import Lease, Owner, PodLeases

SWEEP_SECONDS = 60.0

_log = logs.get("sweep")


class Sweep:
    """Looks at all leases of this cluster's pods."""

    def __init__(self, cluster: Cluster, leases: PodLeases, cluster_id: str) -> None:
        self._cluster, self._leases, self._cluster_id = cluster, leases, cluster_id
        #: Leases that nobody needed the last time: one that has just been asked for is noted on
        #: its pod by the next.
        self._unneeded: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except GpupoolError as error:
                _log.warning("leases were not looked at", reason=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def once(self) -> None:
        found: set[str] = set()
        for owner, lease in await self._leases.live(self._cluster_id):
            name = str(lease.get("id"))
            if await self._is_needed(owner, lease):
                continue
            if name in self._unneeded:
                _log.warning("a lease without its pod is released", lease=name, pod=owner.name)
                await self._leases.release(owner, name)
            else:
                found.add(name)
        self._unneeded = found

    async def _is_needed(self, owner: Owner, lease: Lease) -> bool:
        """Asked of the API server itself, and of no list that may be old."""
        pod = await self._cluster.find(f"/api/v1/namespaces/{owner.namespace}/pods/{owner.name}")
        if pod is None or pods.metadata(pod).get("uid") != owner.uid:
            return False
        if names.FINALIZER not in pods.finalizers(pod):
            return False
        return pods.notes(pod).get(names.LEASE) in (None, lease.get("id"))
