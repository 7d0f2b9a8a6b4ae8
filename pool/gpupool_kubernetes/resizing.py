"""Pods whose part of a GPU changes while they run: by annotations named as the resources are.

A pod's resources cannot change, and what was taken off them is not there any more; so the new
amounts are annotations, and the webhook writes them into the request, checked like resources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpupool_kubernetes import names, quantities, resources
from gpupool_kubernetes.pods import PodError, PodRequest
from gpupool_kubernetes.resources import Defaults

#: What can change.
NOTES = (names.MEMORY, names.COMPUTE)


def wanted(request: PodRequest, notes: Mapping[str, str]) -> PodRequest:
    """A request with the amounts of a pod's annotations; PodError or ResourceError."""
    said: dict[str, str | int] = {name: notes[name] for name in NOTES if name in notes}
    if not said:
        return request
    if request.memory_bytes is None:
        raise PodError(f"the annotation {next(iter(said))}: whole GPUs have all of it, and keep it")
    defaults = Defaults(share_permille=request.share_permille)
    amounts = {names.MEMORY: request.memory_bytes, **said}
    asked = resources.read(request.container, amounts, defaults)
    counted = dict(request.resources)
    if set(counted) & set(names.RESOURCES):
        counted |= said
    changed = {
        "memory_bytes": asked.memory_bytes,
        "share_permille": asked.share_permille,
        "resources": counted,
    }
    return request.model_copy(update=changed)


def more(before: PodRequest, after: PodRequest) -> dict[str, str | int]:
    """What a changed request counts more than it did, for quotas of the namespace."""
    found: dict[str, str | int] = {}
    for name, amount in after.resources.items():
        grown = quantities.parse(amount) - quantities.parse(before.resources.get(name, 0))
        if grown > 0:
            whole = grown.denominator == 1
            found[name] = grown.numerator if whole else f"{math.ceil(grown * 1000)}m"
    return found
