"""ResourceQuotas of a namespace, for what was taken off its pods and Kubernetes so cannot count.

Amounts are counted as they are written, as Kubernetes counts them, and so are the pods: each
quota those that its scopes are about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from gpupool_kubernetes import names, pods, quantities, quota_scopes
from gpupool_kubernetes.cluster import Cluster, Object

_PREFIX = "requests."


class NamespaceQuotas:
    """What a namespace's ResourceQuotas say of pods that ask for GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def refusal(
        self, namespace: str, asked: Mapping[str, str | int], pod: Object, is_there: bool = False
    ) -> str | None:
        """Why so much more for a pod is too much; None: it is not.

        For one that is there already, what is older than it counts: of two that were made in the
        same moment one has room.
        """
        if not asked:
            return None
        found, _ = await self._cluster.list(f"/api/v1/namespaces/{namespace}/resourcequotas")
        covering = [quota for quota in found if quota_scopes.covers(quota, pod)]
        limits = [(quota, limit) for quota in covering if (limit := _limits(quota, asked))]
        if not limits:
            return None
        selector = f"{names.MANAGED}=true"
        others, _ = await self._cluster.list(
            f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector
        )
        if is_there:
            others = [each for each in others if _age(each) < _age(pod)]
        for quota, limit in limits:
            used = _used(quota, others)
            over = [
                name
                for name, most in limit.items()
                if used.get(name, Fraction(0)) + quantities.parse(asked[name]) > most
            ]
            if over:
                return _exceeded(_name(quota), asked, used, limit, sorted(over))
        return None


def _used(quota: Object, found: Iterable[Object]) -> dict[str, Fraction]:
    """What the pods of a namespace that count for a quota have been asking for by each name."""
    used: dict[str, Fraction] = {}
    for pod in found:
        try:
            counts = quota_scopes.covers(quota, pod) and not pods.is_finished(pod)
            request = pods.request_of(pod) if counts else None
            amounts = request.resources if request is not None else {}
            for name, amount in amounts.items():
                used[name] = used.get(name, Fraction(0)) + quantities.parse(amount)
        except ValueError:
            continue  # what somebody has made of it is none of ours
    return used


def _age(pod: Object) -> tuple[str, str]:
    meta = pods.metadata(pod)
    return str(meta.get("creationTimestamp")), str(meta.get("uid"))


def _name(quota: Object) -> str:
    return str((quota.get("metadata") or {}).get("name"))


def _limits(quota: Object, asked: Mapping[str, str | int]) -> dict[str, Fraction]:
    hard: dict[str, Any] = (quota.get("spec") or {}).get("hard") or {}
    return {
        name: quantities.parse(hard[_PREFIX + name]) for name in asked if _PREFIX + name in hard
    }


def _exceeded(
    quota: str,
    asked: Mapping[str, str | int],
    used: Mapping[str, Fraction],
    limit: Mapping[str, Fraction],
    over: list[str],
) -> str:
    """In the words of the API server."""

    def shown(amounts: Mapping[str, Any]) -> str:
        return ",".join(f"{_PREFIX}{name}={amounts.get(name, 0)}" for name in over)

    return (
        f"exceeded quota: {quota}, requested: {shown(asked)}, used: {shown(used)},"
        f" limited: {shown(limit)}"
    )
