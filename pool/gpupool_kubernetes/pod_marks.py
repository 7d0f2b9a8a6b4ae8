"""What the controller writes on pods: annotations, conditions, events, gates and finalizers."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

from gpupool_kubernetes import names, pods
from gpupool_kubernetes.cluster import STRATEGIC, ApiError, Cluster
from gpupool_kubernetes.pods import Pod

#: Who reports events.
COMPONENT = "gpupool-controller"

#: A message of an event may have so many bytes.
_MOST_MESSAGE = 1024


def path_of(pod: Pod) -> str:
    meta = pods.metadata(pod)
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PodMarks:
    """Writes on pods; what is there already is not written again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def note(self, pod: Pod, **notes: str) -> Pod:
        """Annotations of ours: ``lease``, ``servers``. The pod as it is then."""
        wanted = {f"{names.GROUP}/{name}": text for name, text in notes.items()}
        have = pods.notes(pod)
        if all(have.get(name) == text for name, text in wanted.items()):
            return pod
        return await self._patch(pod, {"metadata": {"annotations": wanted}})

    async def lift_gate(self, pod: Pod) -> Pod:
        left = [{"name": name} for name in pods.gates(pod) if name != names.GATE]
        if len(left) == len(pods.gates(pod)):
            return pod
        return await self._patch(pod, {"spec": {"schedulingGates": left}})

    async def drop_finalizer(self, pod: Pod) -> None:
        left = [each for each in pods.finalizers(pod) if each != names.FINALIZER]
        if len(left) == len(pods.finalizers(pod)):
            return
        try:
            await self._patch(pod, {"metadata": {"finalizers": left}})
        except ApiError as error:
            if error.status != 404:
                raise

    async def _patch(self, pod: Pod, body: dict[str, Any]) -> Pod:
        """A change of the pod that was read, and of no other; 409 if it is another by now."""
        meta = pods.metadata(pod)
        body.setdefault("metadata", {})["uid"] = meta["uid"]
        body["metadata"]["resourceVersion"] = meta["resourceVersion"]
        return await self._cluster.patch(path_of(pod), body)

    async def say(self, pod: Pod, is_true: bool, reason: str, message: str) -> None:
        """The pod's condition, and an event when it became another."""
        status = "True" if is_true else "False"
        said = {"type": names.CONDITION, "status": status, "reason": reason, "message": message}
        before = condition_of(pod)
        if all(before.get(key) == value for key, value in said.items()):
            return
        if before.get("status") != status:
            said["lastTransitionTime"] = now()
        try:
            await self._cluster.patch(
                path_of(pod) + "/status", {"status": {"conditions": [said]}}, STRATEGIC
            )
        except ApiError as error:
            if error.status != 404:
                raise
        kind = "Normal" if is_true or reason in ("Queued", "Released") else "Warning"
        await self.event(pod, kind, reason, message)

    async def event(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        """One event; the same one a second time is none."""
        meta = pods.metadata(pod)
        digest = hashlib.sha256(f"{meta['uid']} {reason} {message}".encode()).hexdigest()[:16]
        at = now()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{str(meta['name'])[:200]}.{digest}",
                "namespace": meta["namespace"],
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message.encode()[:_MOST_MESSAGE].decode(errors="ignore"),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            await self._cluster.create(f"/api/v1/namespaces/{meta['namespace']}/events", body)
        except ApiError as error:
            # It was told before; or the namespace is going. Neither is the pod's business.
            if error.status not in (403, 404, 409):
                raise


def condition_of(pod: Pod) -> dict[str, Any]:
    """Ours, or {}."""
    found = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in found if each.get("type") == names.CONDITION), {})
