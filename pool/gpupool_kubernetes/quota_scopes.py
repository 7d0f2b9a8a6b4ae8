"""Which pods a ResourceQuota with scopes is about.

As https://kubernetes.io/docs/concepts/policy/resource-quotas/#quota-scopes has it: a pod has to
match all of ``scopes`` and of ``scopeSelector``. Asked of pods that ask for GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpupool_kubernetes import pods
from gpupool_kubernetes.cluster import Object

_EXISTS = "Exists"


def covers(quota: Object, pod: Object) -> bool:
    """Whether what a pod has counts for a quota."""
    return all(_matches(pod, wanted) for wanted in _requirements(quota))


def _requirements(quota: Object) -> Iterator[Mapping[str, Any]]:
    spec: dict[str, Any] = quota.get("spec") or {}
    yield from ({"scopeName": name, "operator": _EXISTS} for name in spec.get("scopes") or ())
    yield from (spec.get("scopeSelector") or {}).get("matchExpressions") or ()


def _matches(pod: Object, wanted: Mapping[str, Any]) -> bool:
    name = wanted.get("scopeName")
    if name == "PriorityClass":
        return _has_priority_class(pod, wanted)
    matches = _SCOPES.get(str(name))
    # Of what is for other objects, as VolumeAttributesClass, and of what a later release has, no
    # pod is.
    return matches is not None and matches(pod)


def _has_priority_class(pod: Object, wanted: Mapping[str, Any]) -> bool:
    """By the rules of label selectors: NotIn is also true of a pod that has none."""
    own = str(pods.spec(pod).get("priorityClassName") or "")
    listed = own in (wanted.get("values") or ())
    return {
        _EXISTS: bool(own),
        "DoesNotExist": not own,
        "In": bool(own) and listed,
        "NotIn": not own or not listed,
    }.get(str(wanted.get("operator")), False)


def _is_terminating(pod: Object) -> bool:
    """One that ends by itself, after so many seconds; not one that is being deleted."""
    seconds = pods.spec(pod).get("activeDeadlineSeconds")
    return isinstance(seconds, int) and seconds >= 0


def _is_best_effort(_: Object) -> bool:
    """The container that the webhook adds asks for CPU and memory, so none of ours is."""
    return False


def _looks_at_other_namespaces(pod: Object) -> bool:
    return any(
        bool(term.get("namespaces")) or term.get("namespaceSelector") is not None
        for term in pods.affinity_terms(pod)
    )


_SCOPES: dict[str, Callable[[Object], bool]] = {
    "Terminating": _is_terminating,
    "NotTerminating": lambda pod: not _is_terminating(pod),
    "BestEffort": _is_best_effort,
    "NotBestEffort": lambda pod: not _is_best_effort(pod),
    "CrossNamespacePodAffinity": _looks_at_other_namespaces,
}
