"""Leases and GPU hosts of the pool as objects of the cluster, for kubectl to read.

They are written anew from what the manager says, so what somebody else writes there does not last.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_common.lease import LIVE
from gpupool_kubernetes import names
from gpupool_kubernetes.cluster import ApiError, Cluster, Object
from gpupool_kubernetes.crds import LeaseStatus, NodeStatus
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.pod_leases import Owner

MIRROR_SECONDS = 15.0

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_log = logs.get("mirrors")


def name_of(name: str) -> str:
    """A name of the pool as one of the cluster: as it is, or with what is forbidden replaced."""
    if _NAME.fullmatch(name):
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50]
    return f"{plain or 'x'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class Mirrors:
    """Writes what the manager has."""

    def __init__(self, cluster: Cluster, manager: ManagerClient, cluster_id: str) -> None:
        self._cluster, self._manager, self._cluster_id = cluster, manager, cluster_id

    async def run(self) -> None:
        told = ""
        while True:
            try:
                await self.once()
                told = ""
            except (GpupoolError, ValidationError) as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("leases and nodes are not shown", reason=told)
            await asyncio.sleep(MIRROR_SECONDS)

    async def once(self) -> None:
        leases = await self._manager.all("/leases", {"state": [str(state) for state in LIVE]})
        await self._show(
            names.LEASE_MIRROR, ((lease["id"], self._lease(lease)) for lease in leases)
        )
        gpus: dict[str, list[Any]] = {}
        for gpu in await self._manager.all("/gpus"):
            gpus.setdefault(gpu["node"], []).append(gpu)
        nodes = await self._manager.all("/nodes")
        shown = (
            NodeStatus.model_validate({**node, "gpus": gpus.get(node["name"], [])}).shown()
            for node in nodes
        )
        await self._show(names.NODE_MIRROR, ((each["name"], each) for each in shown))

    def _lease(self, lease: dict[str, Any]) -> dict[str, Any]:
        owner = Owner.read(lease.get("label"))
        ours = owner is not None and owner.cluster == self._cluster_id
        pod = f"{owner.namespace}/{owner.name}" if owner is not None and ours else ""
        return LeaseStatus.model_validate({**lease, "pod": pod}).shown()

    async def _show(
        self, kind: tuple[str, str], wanted: Iterable[tuple[str, dict[str, Any]]]
    ) -> None:
        folder = f"/apis/{names.API_VERSION}/{kind[1]}"
        there, _ = await self._cluster.list(folder)
        found: dict[str, Object] = {each["metadata"]["name"]: each for each in there}
        for name, status in wanted:
            name = name_of(name)
            before = found.pop(name, None)
            if before is not None and before.get("status") == status:
                continue
            body: Object = {
                "apiVersion": names.API_VERSION,
                "kind": kind[0],
                "metadata": {"name": name},
                "status": status,
            }
            await self._write(folder, name, before, body)
        for name in found:
            await self._cluster.delete(f"{folder}/{name}")

    async def _write(self, folder: str, name: str, before: Object | None, body: Object) -> None:
        try:
            if before is None:
                await self._cluster.create(folder, body)
            else:
                body["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
                await self._cluster.replace(f"{folder}/{name}", body)
        except ApiError as error:
            if error.status != 409:  # the next time it is read anew
                raise
