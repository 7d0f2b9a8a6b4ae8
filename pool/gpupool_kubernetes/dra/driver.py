"""The driver: one pass after the other it makes pool and cluster say the same.

It keeps nothing: which lease is whose stands in the lease's label, so a driver that starts anew
finds all of them. One runs for a cluster; of two, one would release what the other took.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from gpupool_common import logs
from gpupool_common.ask import with_key
from gpupool_common.errors import GpupoolError, PoolRefusedError
from gpupool_kubernetes import names
from gpupool_kubernetes.cluster import ApiError, Cluster, Object
from gpupool_kubernetes.dra import claims, slices
from gpupool_kubernetes.dra.claims import Allocation, ClaimError
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.tenants import NoTenantError, Tenants

GROUP = "/apis/resource.k8s.io"
VERSION = "v1"
SLICES = f"{GROUP}/{VERSION}/resourceslices"
CLAIMS = f"{GROUP}/{VERSION}/resourceclaims"

LIVE = {"state": ["active", "queued"]}

#: Answers of the manager that the same question gets again; others are worth another try.
REFUSALS = (403, 404, 409, 422)

Lease = dict[str, Any]


class ClusterError(GpupoolError):
    """The cluster cannot do what the driver needs; it says what is missing."""


async def check_api(cluster: Cluster) -> None:
    """ClusterError unless the cluster serves the version of the API that we speak."""
    found = await cluster.find(GROUP)
    if found is None:
        raise ClusterError(
            "the cluster has no resource.k8s.io: dynamic resource allocation needs Kubernetes 1.34"
        )
    served = [str(each.get("version")) for each in found.get("versions") or []]
    if VERSION not in served:
        raise ClusterError(
            f"the cluster serves resource.k8s.io in {', '.join(served) or 'no version'}, and this"
            f" driver needs {VERSION}, which Kubernetes has since 1.34"
        )


def secret_path(namespace: str, uid: str) -> str:
    """Where the plug-ins find what a claim's containers need."""
    return f"/api/v1/namespaces/{namespace}/secrets/gpupool-claim-{uid.lower()}"


class Driver:
    """Publishes GPUs, and holds a lease for each claim that was given some."""

    def __init__(
        self,
        cluster: Cluster,
        manager: ManagerClient,
        tenants: Tenants,
        namespace: str,
        cluster_id: str,
        lease_seconds: int = 900,
        queue_seconds: int = 86400,
    ) -> None:
        self._cluster, self._manager, self._tenants = cluster, manager, tenants
        self._namespace = namespace
        #: A lease of a claim has this, the claim's UID and its allocation's digest as its label:
        #: what has another cluster's is not ours to release.
        self.label = f"{names.DRA_DRIVER} {cluster_id} "
        self._lease_seconds, self._queue_seconds = lease_seconds, queue_seconds
        #: By lease, when it was renewed last, as the clock of this process has it.
        self._renewed: dict[str, float] = {}
        self._said: set[str] = set()
        self._log = logs.get("dra")

    async def step(self) -> None:
        """One pass. What goes wrong with one claim is said, and holds up no other."""
        # Claims first: a lease of a claim that is made meanwhile must not look like an orphan.
        leases = _by_claim(await self._manager.all("/leases", LIVE), self.label)
        found, _ = await self._cluster.list(CLAIMS)
        gpus = await self._manager.all("/gpus")
        uuids = {slices.device_name(gpu["uuid"]): str(gpu["uuid"]) for gpu in gpus}
        held: dict[str, Lease] = {}
        wanted: set[str] = set()
        for claim in found:
            uid = str((claim.get("metadata") or {}).get("uid"))
            try:
                allocation = await self._read(claim)
                if allocation is None:
                    continue
                wanted.add(uid)
                lease = await self._hold(claim, allocation, leases.get(uid, []), uuids)
            except GpupoolError as error:
                # Whatever it has stays: the next pass tries again.
                self._log.warning("a claim is left for later", claim=uid, reason=str(error))
                wanted.add(uid)
                held |= {each["id"]: each for each in leases.get(uid, [])}
                continue
            if lease is not None:
                held[lease["id"]] = lease
        await self._clear(leases, held, wanted)
        # Asked anew: what this pass has taken and given back is in it.
        gpus = await self._manager.all("/gpus")
        await self._publish(slices.devices(gpus, held.values()))

    # Leases --------------------------------------------------------------------------------

    async def _read(self, claim: Object) -> Allocation | None:
        """What a claim was given of ours, if a lease can be taken for it."""
        try:
            return claims.read(claim)
        except ClaimError as error:
            await self._mark(claim, False, "Refused", str(error), None)
            return None

    async def _hold(
        self, claim: Object, allocation: Allocation, leases: list[Lease], uuids: Mapping[str, str]
    ) -> Lease | None:
        """The lease of an allocation: the one that is there, or a new one."""
        try:
            body = self._body(allocation, uuids)
        except (ClaimError, NoTenantError) as error:
            await self._mark(claim, False, "Refused", str(error), None)
            return None
        lease = next((each for each in leases if _is_for(each, body)), None)
        if lease is None:
            for stale in leases:  # of an allocation before this one
                await self._release(stale)
            try:
                lease = await self._manager.do("POST", "/leases", body)
            except PoolRefusedError as refusal:
                if refusal.status not in REFUSALS:
                    raise
                await self._mark(claim, False, "Refused", str(refusal), None)
                return None
            self._log.info("lease taken", claim=allocation.uid, lease=lease["id"])
        if lease["state"] != "active":
            why = f"position {lease.get('position')} in the queue: {lease.get('reason')}"
            await self._manager.do("POST", f"/leases/{lease['id']}/renew")
            await self._mark(claim, False, "Queued", why, lease["id"])
            return lease
        if time.monotonic() - self._renewed.get(lease["id"], -1e9) > self._lease_seconds / 3:
            lease = await self._manager.do("POST", f"/leases/{lease['id']}/renew")
            await self._write_secret(allocation, lease)
            self._renewed[lease["id"]] = time.monotonic()
        await self._mark(claim, True, "Active", "the lease is active", lease["id"])
        return lease

    def _body(self, allocation: Allocation, uuids: Mapping[str, str]) -> dict[str, Any]:
        unknown = [device for device in allocation.devices if device not in uuids]
        if unknown:
            raise ClaimError(f"the pool has no GPU '{unknown[0]}' any more")
        # Where the scheduler waits for us, it can choose another GPU; else the pod is bound.
        wait = 0 if allocation.is_awaited else self._queue_seconds
        return {
            "tenant": self._tenants.of(allocation.namespace),
            "uuids": [uuids[device] for device in allocation.devices],
            "memory_bytes": allocation.memory_bytes,
            "share_permille": allocation.share_permille,
            "ttl_seconds": self._lease_seconds,
            "wait_seconds": wait,
            "label": f"{self.label}{allocation.uid} {allocation.digest}",
        }

    async def _release(self, lease: Lease) -> None:
        await self._manager.do("POST", f"/leases/{lease['id']}/release")
        self._renewed.pop(lease["id"], None)
        self._log.info("lease released", lease=lease["id"])

    async def _clear(
        self, leases: Mapping[str, list[Lease]], held: Mapping[str, Lease], wanted: set[str]
    ) -> None:
        """Leases and Secrets of claims that are gone, or have nothing of ours any more."""
        for lease in (lease for each in leases.values() for lease in each):
            if lease["id"] not in held:
                await self._release(lease)
        folder = secret_path(self._namespace, "").rpartition("/")[0]
        found, _ = await self._cluster.list(folder, labelSelector=f"{names.MANAGED}=claim")
        kept = {secret_path(self._namespace, uid) for uid in wanted}
        for secret in found:
            path = f"{folder}/{secret['metadata']['name']}"
            if path not in kept:
                await self._cluster.delete(path)

    # What the cluster is told --------------------------------------------------------------

    async def _write_secret(self, allocation: Allocation, lease: Lease) -> None:
        servers = ",".join(
            with_key(str(each["address"]), each.get("key")) for each in lease["servers"]
        )
        values = {
            "claim": allocation.uid,
            "devices": json.dumps(allocation.devices),
            "servers": servers,
            "token": str(lease["token"]),
        }
        path = secret_path(self._namespace, allocation.uid)
        folder, _, name = path.rpartition("/")
        body: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {names.MANAGED: "claim"},
            },
            "type": names.LEASE,
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in values.items()},
        }
        if await self._cluster.find(path) is None:
            await self._cluster.create(folder, body)
        else:
            await self._cluster.replace(path, body)

    async def _mark(
        self, claim: Object, is_active: bool, reason: str, message: str, lease: str | None
    ) -> None:
        """Say in the claim's status how its devices are; nothing is written that stands there."""
        meta, status = claim["metadata"], claim.get("status") or {}
        before = [each for each in status.get("devices") or [] if isinstance(each, dict)]
        after = [each for each in before if each.get("driver") != names.DRA_DRIVER]
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        for result in results:
            if isinstance(result, dict) and result.get("driver") == names.DRA_DRIVER:
                key = {
                    field: result[field]
                    for field in ("driver", "pool", "device", "shareID")
                    if result.get(field) is not None
                }
                if any(key.items() <= each.items() for each in after):
                    continue  # the API has one entry for each device
                old = next((each for each in before if key.items() <= each.items()), {})
                states = {
                    slices.ACTIVE: is_active,
                    slices.REFUSED: reason == "Refused",
                }
                conditions = _conditions(old.get("conditions") or [], states, reason, message)
                data = {} if lease is None else {"data": {"lease": lease}}
                after.append({**key, "conditions": conditions, **data})
        if after == before:
            return
        namespace, name = str(meta.get("namespace")), str(meta.get("name"))
        where = f"{namespace}/{name}"
        self._log.info("a claim is told", claim=where, state=reason, why=message)
        body = {
            "metadata": {"resourceVersion": meta.get("resourceVersion")},
            "status": {"devices": after},
        }
        try:
            kept = await self._cluster.patch(f"{claims.path_of(namespace, name)}/status", body)
        except ApiError as error:
            if error.status not in (404, 409):  # it is gone, or newer: the next pass sees it
                raise
            return
        if not (kept.get("status") or {}).get("devices"):
            self._say(
                "the feature gate DRAResourceClaimDeviceStatus is off: the cluster does not keep"
                " what becomes of a claim's lease, and binding conditions never come true"
            )

    async def _publish(self, devices: list[Object]) -> None:
        """Let the slices have these devices; nothing is written where they have."""
        found, _ = await self._cluster.list(SLICES, fieldSelector=f"spec.driver={names.DRA_DRIVER}")
        ours = [each for each in found if each["spec"].get("driver") == names.DRA_DRIVER]
        newest = max((each["spec"]["pool"]["generation"] for each in ours), default=0)
        there = {each["metadata"]["name"]: each for each in ours}
        same = slices.slices(devices, newest)
        if {each["metadata"]["name"] for each in same} == set(there) and all(
            _is_kept(each["spec"], there[each["metadata"]["name"]]["spec"]) for each in same
        ):
            return
        wanted = slices.slices(devices, newest + 1)
        for body in wanted:
            name = body["metadata"]["name"]
            if (old := there.pop(name, None)) is None:
                kept = await self._cluster.create(SLICES, body)
            else:
                body["metadata"]["resourceVersion"] = old["metadata"].get("resourceVersion")
                kept = await self._cluster.replace(f"{SLICES}/{name}", body)
            for line in slices.missing_gates(kept):
                self._say(line)
        for name in there:
            await self._cluster.delete(f"{SLICES}/{name}")
        self._log.info("GPUs published", count=len(devices), generation=newest + 1)

    def _say(self, line: str) -> None:
        """A warning, once."""
        if line not in self._said:
            self._said.add(line)
            self._log.warning(line)


def _by_claim(leases: Iterable[Lease], own: str) -> dict[str, list[Lease]]:
    found: dict[str, list[Lease]] = {}
    for lease in leases:
        label = str(lease.get("label"))
        if label.startswith(own):
            uid, _, _ = label.removeprefix(own).partition(" ")
            found.setdefault(uid, []).append(lease)
    return found


def _is_for(lease: Lease, body: Mapping[str, Any]) -> bool:
    """Whether a lease is of this allocation, resized or not.

    A tenant may label its own leases as it likes, so tenant and GPUs are looked at as well.
    """
    is_on_them = lease["request"]["uuids"] == body["uuids"]
    return is_on_them and all(lease[key] == body[key] for key in ("tenant", "label"))


def _is_kept(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether a slice says what is wanted, but for fields that the cluster has dropped."""
    if any(wanted[key] != there.get(key) for key in ("driver", "pool", "allNodes")):
        return False
    devices = there.get("devices") or []
    return len(devices) == len(wanted["devices"]) and all(
        all(_same(has[key], ask.get(key)) for key in has if key in ask)
        for ask, has in zip(wanted["devices"], devices, strict=True)
    )


def _same(has: Any, ask: Any) -> bool:
    if isinstance(has, dict) and isinstance(ask, dict):
        return all(key in ask and _same(value, ask[key]) for key, value in has.items())
    return bool(has == ask)


def _conditions(
    before: list[Any], states: Mapping[str, bool], reason: str, message: str
) -> list[Object]:
    """Of the API's form; a condition that stays as it is keeps its time."""
    found = []
    for kind, is_true in states.items():
        old = next((c for c in before if isinstance(c, dict) and c.get("type") == kind), {})
        state = "True" if is_true else "False"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        since = old.get("lastTransitionTime") if old.get("status") == state else None
        found.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message[:32768],
                "lastTransitionTime": since or now,
            }
        )
    return found
