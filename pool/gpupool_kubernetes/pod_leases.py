"""Leases of pods at the manager: asked for once for each pod, kept, and given back.

A lease says in its label whose it is, so what is written on a pod is never believed alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupool.pool_client import at
from gpupool_common.errors import PoolRefusedError
from gpupool_common.lease import LIVE
from gpupool_kubernetes import names, pods
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.pods import Pod, PodRequest

_MOST_LABEL = 256

Lease = dict[str, Any]


@dataclass(frozen=True)
class Owner:
    """A pod, as the label of its lease names it."""

    cluster: str
    uid: str
    namespace: str
    name: str

    @classmethod
    def of(cls, cluster: str, pod: Pod) -> Owner:
        meta = pods.metadata(pod)
        return cls(cluster, *(str(meta.get(part)) for part in ("uid", "namespace", "name")))

    @classmethod
    def read(cls, label: object) -> Owner | None:
        """Whose a lease is; None: no pod's."""
        parts = str(label).split(" ")
        if len(parts) != 4 or parts[0] != "kubernetes" or "/" not in parts[3]:
            return None
        namespace, _, name = parts[3].partition("/")
        return cls(parts[1], parts[2], namespace, name)

    @property
    def label(self) -> str:
        text = f"kubernetes {self.cluster} {self.uid} {self.namespace}/{self.name}"
        return text[:_MOST_LABEL]

    def owns(self, lease: Mapping[str, Any]) -> bool:
        found = Owner.read(lease.get("label"))
        return found is not None and (found.cluster, found.uid) == (self.cluster, self.uid)


class PodLeases:
    """What is asked of the manager for pods."""

    def __init__(self, manager: ManagerClient, lease_seconds: int, queue_seconds: int) -> None:
        self._manager = manager
        self._lease_seconds = lease_seconds
        self._queue_seconds = queue_seconds

    async def current(self, owner: Owner, pod: Pod) -> Lease | None:
        """The lease that a pod's annotation names, renewed if it is live; None: it has none.

        One that belongs to somebody else is none.
        """
        name = pods.notes(pod).get(names.LEASE)
        if name is None:
            return None
        lease = await self.find(name)
        if lease is None or not owner.owns(lease):
            return None
        if lease.get("state") not in LIVE:
            return lease
        try:
            return await self._manager.do("POST", at("leases", name, "renew"))
        except PoolRefusedError as error:
            if error.status != 409:  # it has just ended
                raise
            return await self.find(name)

    async def ask(self, owner: Owner, request: PodRequest, tenant: str, last: str) -> Lease:
        """A lease, granted or queued; the same one, however often it is asked for.

        ``last`` is the pod's lease before this one, if there was any: what ended is not asked
        for again under its own key.
        """
        body = {
            **request.lease(tenant),
            "wait_seconds": self._queue_seconds,
            "ttl_seconds": self._lease_seconds,
            "label": owner.label,
        }
        said = json.dumps([owner.cluster, owner.uid, last, body], sort_keys=True)
        key = "pod-" + hashlib.sha256(said.encode()).hexdigest()[:56]
        return await self._manager.do("POST", "/leases", body, key=key)

    async def resize(self, lease: Lease, request: PodRequest) -> Lease | None:
        """A lease as a changed request has it; None: it is so already.

        To ask for the same again changes nothing.
        """
        held = lease.get("request") or {}
        wanted = {"memory_bytes": request.memory_bytes, "share_permille": request.share_permille}
        if request.memory_bytes is None or all(held.get(k) == v for k, v in wanted.items()):
            return None
        return await self._manager.do("PATCH", at("leases", str(lease["id"])), wanted)

    async def release(self, owner: Owner, name: str) -> None:
        """Give a pod's lease back, if it is there and its own."""
        lease = await self.find(name)
        if lease is not None and owner.owns(lease) and lease.get("state") in LIVE:
            await self._manager.do("POST", at("leases", name, "release"))

    async def find(self, name: str) -> Lease | None:
        try:
            return await self._manager.get(at("leases", name))
        except PoolRefusedError as error:
            if error.status in (404, 422):
                return None
            raise

    async def of(self, owner: Owner, tenant: str) -> Lease | None:
        """The live lease of a pod, whatever is written on it.

        A tenant may label its own leases as it likes: one that names a pod of another tenant's is
        not that pod's.
        """
        found = await self.live(owner.cluster)
        own = (lease for each, lease in found if each.uid == owner.uid)
        return next((lease for lease in own if lease.get("tenant") == tenant), None)

    async def live(self, cluster: str) -> list[tuple[Owner, Lease]]:
        """All leases of a cluster's pods that are granted or wait."""
        found = await self._manager.all("/leases", {"state": [str(state) for state in LIVE]})
        owned = ((Owner.read(lease.get("label")), lease) for lease in found)
        return [(own, lease) for own, lease in owned if own is not None and own.cluster == cluster]
