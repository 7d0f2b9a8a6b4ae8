"""Which of several controllers works: who holds a Lease of coordination.k8s.io.

As client-go does it: whoever sees that the holder has not renewed it for its whole duration, by the
own clock, takes it. One that cannot renew it in time ends; its pod starts again and waits.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_kubernetes.cluster import ApiError, Cluster

DURATION_SECONDS = 15
RENEW_SECONDS = 5.0

_log = logs.get("leader")


class Leader:
    """One candidate."""

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, identity: str, pace: float = 1.0
    ) -> None:
        """``pace``: times are multiplied by it, for tests."""
        self._cluster = cluster
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._folder}/{name}"
        self._name, self._identity, self._pace = name, identity, pace
        self._seen: tuple[object, object] = (None, None)
        self._seen_at = 0.0

    async def acquire(self) -> None:
        """Wait until it is ours."""
        while not await self._try():
            await asyncio.sleep(RENEW_SECONDS * self._pace)
        _log.info("this controller works", identity=self._identity)

    async def hold(self) -> None:
        """Renew it until cancelled; GpupoolError when it is not ours any more."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(RENEW_SECONDS * self._pace)
            if await self._try():
                last = loop.time()
            elif loop.time() - last > (DURATION_SECONDS - RENEW_SECONDS) * self._pace:
                raise GpupoolError(
                    "another controller works, or the API server is away; starting again"
                )

    async def give_up(self) -> None:
        """So that the next one need not wait."""
        try:
            found = await self._cluster.find(self._path)
            if (
                found is not None
                and (found.get("spec") or {}).get("holderIdentity") == self._identity
            ):
                found["spec"]["holderIdentity"] = ""
                await self._cluster.replace(self._path, found)
        except GpupoolError as error:
            _log.warning("the leadership was not given up", reason=str(error))

    async def _try(self) -> bool:
        try:
            found = await self._cluster.find(self._path)
            if found is None:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name},
                    "spec": self._spec({}),
                }
                await self._cluster.create(self._folder, body)
                return True
            spec: dict[str, Any] = found.get("spec") or {}
            if not self._may_take(spec):
                return False
            found["spec"] = self._spec(spec)
            await self._cluster.replace(self._path, found)
            return True
        except GpupoolError as error:
            if not (isinstance(error, ApiError) and error.status == 409):
                _log.warning("the leadership cannot be asked for", reason=str(error))
            return False

    def _may_take(self, spec: dict[str, Any]) -> bool:
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        now = asyncio.get_running_loop().time()
        seen = (spec.get("holderIdentity"), spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        duration = spec.get("leaseDurationSeconds")
        seconds = duration if isinstance(duration, int) else DURATION_SECONDS
        return now - self._seen_at > seconds * self._pace

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": now,
        }
        if before.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        return spec
