"""The pool's GPUs as ResourceSlices: devices that every node reaches over the network.

A device has what leases from outside the cluster leave of it, so that the scheduler does not
choose what is taken; leases of the cluster's own claims it counts itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpupool_common.quantities import MEBIBYTE
from gpupool_common.sizes import WHOLE_GPU
from gpupool_kubernetes.dra.claims import COMPUTE, MEMORY, POOL
from gpupool_kubernetes.names import CONDITION, DRA_DRIVER, GROUP

#: True: the lease is active, so that the pod may be bound; or why it never will be.
ACTIVE = CONDITION
REFUSED = f"{GROUP}/refused"

#: A slice may have 128 devices, and half of that with some of the newer fields.
PER_SLICE = 64
_MOST_TEXT = 64

_NVIDIA = re.compile(r"GPU-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)


def device_name(uuid: str) -> str:
    """The name of a GPU as a device: a DNS label that no other GPU has."""
    match = _NVIDIA.fullmatch(uuid)
    return f"gpu-{match[1] if match else hashlib.sha256(uuid.encode()).hexdigest()[:32]}"


def devices(
    gpus: Iterable[Mapping[str, Any]], claimed: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The devices of GPUs that take leases. ``claimed``: the leases of the cluster's claims."""
    own: dict[str, tuple[int, int]] = {}
    for grant in (grant for lease in claimed for grant in lease["grants"]):
        memory, share = own.get(grant["gpu"], (0, 0))
        own[grant["gpu"]] = memory + grant["memory_bytes"], share + grant["share_permille"]
    found = []
    for gpu in sorted(gpus, key=lambda gpu: str(gpu["uuid"])):
        memory, share = own.get(gpu["uuid"], (0, 0))
        # A lease may have ended between the two answers that this comes from.
        memory_left = gpu["memory_bytes"] - max(gpu["used_bytes"] - memory, 0)
        share_left = WHOLE_GPU - max(gpu["used_permille"] - share, 0)
        mebibytes, percent = memory_left // MEBIBYTE, share_left // (WHOLE_GPU // 100)
        if gpu["closed"] is None and mebibytes > 0 and percent > 0:
            found.append(_device(gpu, mebibytes, percent))
    return found


def _device(gpu: Mapping[str, Any], mebibytes: int, percent: int) -> dict[str, Any]:
    return {
        "name": device_name(gpu["uuid"]),
        "attributes": {
            "uuid": {"string": gpu["uuid"][:_MOST_TEXT]},
            "model": {"string": gpu["model"][:_MOST_TEXT]},
            "host": {"string": gpu["node"][:_MOST_TEXT]},
            # A semantic version, so that CEL compares it.
            "computeCapability": {"version": f"{gpu['compute_capability']}.0"},
        },
        "capacity": {
            MEMORY: _capacity(f"{mebibytes}Mi", "1Mi"),
            COMPUTE: _capacity(str(percent), "1"),
        },
        "allowMultipleAllocations": True,
        "bindingConditions": [ACTIVE],
        "bindingFailureConditions": [REFUSED],
    }


def _capacity(value: str, step: str) -> dict[str, Any]:
    """Who names no amount gets all."""
    return {
        "value": value,
        "requestPolicy": {
            "default": value,
            "validRange": {"min": step, "max": value, "step": step},
        },
    }


def slices(found: list[dict[str, Any]], generation: int) -> list[dict[str, Any]]:
    """The objects that have these devices, all of one generation."""
    parts = [found[at : at + PER_SLICE] for at in range(0, len(found), PER_SLICE)]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{DRA_DRIVER}-{number}"},
            "spec": {
                "driver": DRA_DRIVER,
                "pool": {
                    "name": POOL,
                    "generation": generation,
                    "resourceSliceCount": len(parts),
                },
                "allNodes": True,
                "devices": part,
            },
        }
        for number, part in enumerate(parts)
    ]


#: By the field of a device that the API server drops where it is off: the gate, and what is
#: lost without it.
GATES = {
    "allowMultipleAllocations": (
        "DRAConsumableCapacity",
        "each GPU goes to one claim as a whole",
    ),
    "bindingConditions": (
        "DRADeviceBindingConditions",
        "pods are bound before their lease is active, and wait on their node",
    ),
}


def missing_gates(kept: Mapping[str, Any]) -> list[str]:
    """What a cluster lacks that kept a slice so: a line for each gate that is off."""
    first = next(iter(kept["spec"].get("devices") or []), None)
    if first is None:
        return []
    return [
        f"the feature gate {gate} is off (alpha in Kubernetes 1.34, beta in 1.36), so {lost};"
        " switch it on in kube-apiserver and kube-scheduler"
        for field, (gate, lost) in GATES.items()
        if not first.get(field)
    ]
