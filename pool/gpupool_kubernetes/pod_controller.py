"""One pod's life: asked, queued, placed, renewed, given back.

All that is known of a pod is written on it, and all of its lease is the manager's: to look at a pod
again, or by another controller, changes nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from gpupool_common.ask import with_key
from gpupool_common.errors import PoolRefusedError, ProtocolError
from gpupool_common.lease import LeaseState
from gpupool_common.sizes import format_part, format_size
from gpupool_kubernetes import names, pods
from gpupool_kubernetes.cluster import ApiError, Cluster
from gpupool_kubernetes.config import Settings
from gpupool_kubernetes.namespace_quotas import NamespaceQuotas
from gpupool_kubernetes.pod_leases import Lease, Owner, PodLeases
from gpupool_kubernetes.pod_marks import PodMarks, path_of
from gpupool_kubernetes.pods import Pod, PodError
from gpupool_kubernetes.tenants import NoTenantError, Tenants

#: So often the place in the queue is asked for; a request that nobody asks for leaves it.
QUEUE_SECONDS = 10.0
#: So often what may become possible is tried: a quota that is raised, a node that joins.
RETRY_SECONDS = 30.0
#: A lease is renewed so often within its time to live.
RENEWALS = 4
#: How long a pod may take to end, beyond its own grace, before its GPUs are given to others.
OVERDUE_SECONDS = 30.0

#: What a refusal of the manager is called in a pod's condition.
_REASONS = {"over-quota": "OverQuota", "impossible": "Impossible", "disabled": "TenantDisabled"}


class PodController:
    """Looks at pods."""

    def __init__(
        self,
        cluster: Cluster,
        leases: PodLeases,
        settings: Settings,
        cluster_id: str,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._cluster = cluster
        self._leases = leases
        self._marks = PodMarks(cluster)
        self._quotas = NamespaceQuotas(cluster)
        self._settings = settings
        self._tenants = Tenants(settings.tenants)
        self._cluster_id = cluster_id
        self._clock = clock

    async def look(self, pod: Pod) -> float | None:
        """What is due; in how many seconds to look again, None: when it changes."""
        if names.FINALIZER not in pods.finalizers(pod):
            return None  # it never had a lease, or has given it back
        if pods.is_finished(pod) or self._has_ended(pod):
            await self.give_back(pod)
            await self._marks.drop_finalizer(pod)
            return None
        owner = Owner.of(self._cluster_id, pod)
        lease = await self._leases.current(owner, pod)
        state = None if lease is None else lease.get("state")
        if lease is not None and state == LeaseState.ACTIVE:
            return await self._use(pod, lease)
        if lease is not None and state == LeaseState.QUEUED:
            return await self._wait(pod, lease)
        if pods.is_going(pod):
            return OVERDUE_SECONDS
        if names.GATE in pods.gates(pod):
            return await self._ask(pod, owner)
        if lease is None and (own := await self._own(owner)) is not None:
            pod = await self._marks.note(pod, lease=str(own["id"]))  # somebody wrote another there
            return await self._use(pod, own)
        await self._lost(pod, lease)
        return None

    async def _own(self, owner: Owner) -> Lease | None:
        try:
            return await self._leases.of(owner, self._tenants.of(owner.namespace))
        except NoTenantError:
            return None

    async def give_back(self, pod: Pod) -> None:
        """Release the lease of a pod that needs it no more."""
        name = pods.notes(pod).get(names.LEASE)
        if name is not None:
            await self._leases.release(Owner.of(self._cluster_id, pod), name)

    # Asking ----------------------------------------------------------------------------------

    async def _ask(self, pod: Pod, owner: Owner) -> float | None:
        try:
            request = pods.request_of(pod)
            tenant = self._tenants.of(owner.namespace)
        except PodError as error:
            await self._marks.say(pod, False, "Malformed", str(error))
            return None
        except NoTenantError as error:
            await self._marks.say(pod, False, "NoTenant", str(error))
            return RETRY_SECONDS
        if request is None:
            await self._marks.say(pod, False, "Malformed", f"it has no {names.REQUEST}")
            return None
        if refusal := await self._quotas.refusal(owner.namespace, request.resources, pod, True):
            await self._marks.say(pod, False, "OverQuota", refusal)
            return RETRY_SECONDS
        last = pods.notes(pod).get(names.LEASE, "")
        try:
            lease = await self._leases.ask(owner, request, tenant, last)
        except PoolRefusedError as error:
            if error.status in (401, 503):
                raise
            await self._marks.say(pod, False, _REASONS.get(error.code, "Refused"), str(error))
            return RETRY_SECONDS
        pod = await self._marks.note(pod, lease=str(lease["id"]))
        if lease.get("state") == LeaseState.ACTIVE:
            return await self._use(pod, lease)
        return await self._wait(pod, lease)

    async def _resize(self, pod: Pod, lease: Lease) -> None:
        """What the pod's request has become; a refusal is told, and asked for again."""
        try:
            request = pods.request_of(pod)
        except PodError:
            return  # it was good once: what it has stays
        if request is None:
            return
        try:
            changed = await self._leases.resize(lease, request)
        except PoolRefusedError as error:
            if error.status not in (403, 409, 422):
                raise
            await self._marks.event(pod, "Warning", "ResizeRefused", str(error))
            return
        if changed is not None:
            size = format_size(request.memory_bytes or 0)
            amounts = f"{size} and {format_part(request.share_permille)} of each GPU"
            reason = "Resizing" if changed.get("resize") else "Resized"
            await self._marks.event(pod, "Normal", reason, f"lease {lease['id']}: {amounts}")

    async def _wait(self, pod: Pod, lease: Lease) -> float:
        await self._resize(pod, lease)
        message = f"position {lease.get('position')} in the queue: {lease.get('reason')}"
        await self._marks.say(pod, False, "Queued", message)
        return QUEUE_SECONDS

    async def _use(self, pod: Pod, lease: Lease) -> float:
        if names.GATE in pods.gates(pod):
            pod = await self._marks.note(pod, servers=_servers(lease))
            pod = await self._marks.lift_gate(pod)
        await self._resize(pod, lease)
        await self._marks.say(pod, True, "Active", f"lease {lease['id']}: {_where(lease)}")
        return max(float(lease.get("ttl_seconds") or 60.0) / RENEWALS, 1.0)

    # The end ---------------------------------------------------------------------------------

    def _has_ended(self, pod: Pod) -> bool:
        """Whether nothing of a pod that is to go can run any more."""
        if not pods.is_going(pod):
            return False
        if names.GATE in pods.gates(pod) or not pods.spec(pod).get("nodeName"):
            return True
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        if statuses and all("terminated" in (each.get("state") or {}) for each in statuses):
            return True
        return self._is_overdue(pod)

    def _is_overdue(self, pod: Pod) -> bool:
        """Its node does not say that it has ended: it may be lost, and the kubelet with it."""
        text = str(pods.metadata(pod)["deletionTimestamp"]).replace("Z", "+00:00")
        try:
            end = datetime.datetime.fromisoformat(text)
        except ValueError:
            return True
        return (self._clock() - end).total_seconds() > OVERDUE_SECONDS

    async def _lost(self, pod: Pod, lease: Lease | None) -> None:
        """A pod that may run, and whose GPUs are gone: its programs have errors from now on."""
        why = "it is not known to the pool" if lease is None else lease.get("reason")
        state = "lost" if lease is None else lease.get("state")
        await self._marks.say(pod, False, "Lost", f"the lease is {state}: {why}")
        if self._settings.delete_lost:
            body = {"preconditions": {"uid": pods.metadata(pod)["uid"]}}
            try:
                await self._cluster.delete(path_of(pod), body)
            except ApiError as error:
                if error.status != 409:  # another of its name
                    raise


def _servers(lease: Lease) -> str:
    """``GPUPOOL_SERVER`` of a lease's clients."""
    found: list[Any] = lease.get("servers") or []
    try:
        urls = [with_key(str(each["address"]), each.get("key")) for each in found]
    except (KeyError, TypeError, AttributeError):
        urls = []
    if not urls:
        raise ProtocolError(f"the lease {lease.get('id')} names no server to go to")
    return ",".join(urls)


def _where(lease: Lease) -> str:
    found = lease.get("grants") or []
    return ", ".join(f"{each.get('gpu')} on {each.get('node')}" for each in found)
