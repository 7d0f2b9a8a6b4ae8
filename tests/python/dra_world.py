"""A cluster with claims, a pool with GPUs, and the driver between them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpupool_kubernetes.dra import slices
from gpupool_kubernetes.dra.driver import CLAIMS, SLICES, Driver
from gpupool_kubernetes.names import DRA_DRIVER
from gpupool_kubernetes.tenants import Tenants
from kubernetes_world import KubernetesWorld, kubernetes_world

NAMESPACE = "gpupool-claims"
FIRST, SECOND = (f"GPU-n1-{index}" for index in range(2))


def result(gpu: str = FIRST, **more: Any) -> dict[str, Any]:
    """One device as the scheduler allocates it, in a cluster with both gates."""
    return {
        "request": "gpu",
        "driver": DRA_DRIVER,
        "pool": "gpupool",
        "device": slices.device_name(gpu),
        "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
        "consumedCapacity": {"memory": "4Gi", "compute": "50"},
        "bindingConditions": [slices.ACTIVE],
        "bindingFailureConditions": [slices.REFUSED],
        **more,
    }


def claim(*results: dict[str, Any], name: str = "train-gpu", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "red", "uid": str(uuid.uuid4()), **meta},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


class DraWorld:
    """Short ways to have claims, and to see what becomes of them."""

    def __init__(self, world: KubernetesWorld) -> None:
        self.world, self.api, self.pool = world, world.api, world.pool
        self.driver = self.another()

    def another(self, **more: Any) -> Driver:
        tenants = Tenants({"red": "*"})
        more = {"cluster_id": "cluster-1", **more}
        return Driver(self.world.cluster, self.world.manager, tenants, NAMESPACE, **more)

    async def put(self, found: dict[str, Any]) -> dict[str, Any]:
        """A claim as it is from now on."""
        name = found["metadata"]["name"]
        path = f"/apis/resource.k8s.io/v1/namespaces/red/resourceclaims/{name}"
        return await self.api.put(path, found)

    async def given(self, *results: dict[str, Any], **meta: Any) -> dict[str, Any]:
        """A claim with an allocation, and the driver has seen it."""
        made = await self.put(claim(*(results or (result(),)), **meta))
        await self.driver.step()
        return made

    def status(self, made: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """By condition of the claim's first device: state and message."""
        name = made["metadata"]["name"]
        path = f"/apis/resource.k8s.io/v1/namespaces/red/resourceclaims/{name}"
        devices = self.api.objects[path]["status"].get("devices") or [{}]
        return {
            each["type"]: (each["status"], each["message"])
            for each in devices[0].get("conditions", [])
        }

    def leases(self) -> list[Any]:
        return list(self.pool.pool.ledger.leases.values())

    def secrets(self) -> list[str]:
        return [path for path in self.api.objects if "/secrets/" in path]

    def published(self) -> list[dict[str, Any]]:
        return [
            found["spec"] for path, found in self.api.objects.items() if path.startswith(SLICES)
        ]


@contextlib.asynccontextmanager
async def dra_world(folder: Path) -> AsyncIterator[DraWorld]:
    """A tenant red, and a node with two GPUs of 10,000 MiB."""
    async with kubernetes_world(folder) as world:
        await world.pool.tenant("red")
        await world.pool.tenant("blue")
        await world.pool.join("n1", 2)
        yield DraWorld(world)


__all__ = ["CLAIMS", "DraWorld", "claim", "dra_world", "result"]
