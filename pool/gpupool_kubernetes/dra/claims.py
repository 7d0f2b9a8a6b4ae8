"""What Kubernetes' scheduler has chosen for a ResourceClaim, as far as it is ours.

Whoever may write a claim's status may write anything there: nothing of it is believed unread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupool_common.quantities import MEBIBYTE
from gpupool_common.sizes import LARGEST, WHOLE_GPU
from gpupool_kubernetes import quantities
from gpupool_kubernetes.names import DRA_DRIVER

#: The pool of the ResourceSlices, and the capacities of a device.
POOL = "gpupool"
MEMORY, COMPUTE = "memory", "compute"

UID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
#: Of namespaces, claims, pools and devices: nothing of them may lead elsewhere in a path.
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_MOST_DEVICES = 64


class ClaimError(ValueError):
    """A claim that no lease can be taken for; it says why."""


@dataclass(frozen=True)
class Result:
    """One device of ours that a request of the claim was given."""

    request: str
    device: str
    share: str | None


@dataclass(frozen=True)
class Allocation:
    """All devices of ours that a claim was given, with what it may use of each."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    #: None: the whole GPU, because the cluster shares no devices.
    memory_bytes: int | None
    share_permille: int
    #: Whether the scheduler waits for our condition before it binds the pod.
    is_awaited: bool

    @property
    def devices(self) -> list[str]:
        return [result.device for result in self.results]

    @property
    def digest(self) -> str:
        """Another one for another allocation of the same claim."""
        parts = [*self.devices, str(self.memory_bytes), str(self.share_permille)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def path_of(namespace: str, name: str, version: str = "v1") -> str:
    """Where a claim is in the API."""
    return f"/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}"


def identity(claim: Mapping[str, Any]) -> tuple[str, str, str]:
    """UID, namespace and name; ClaimError if they are none."""
    meta = _map(claim, "metadata")
    uid, namespace, name = (str(meta.get(key) or "") for key in ("uid", "namespace", "name"))
    if not UID.fullmatch(uid) or not NAME.fullmatch(namespace) or not NAME.fullmatch(name):
        raise ClaimError("the claim has no uid, namespace or name that can be one")
    return uid, namespace, name


def read(claim: Mapping[str, Any]) -> Allocation | None:
    """What was allocated of ours; None: nothing, or the claim is going. ClaimError."""
    uid, namespace, name = identity(claim)
    if _map(claim, "metadata").get("deletionTimestamp"):
        return None
    devices = _map(_map(_map(claim, "status"), "allocation"), "devices")
    found = devices.get("results") or []
    if not isinstance(found, list):
        raise ClaimError("its allocation has no list of results")
    ours = [each for each in found if isinstance(each, dict) and each.get("driver") == DRA_DRIVER]
    if not ours:
        return None
    if len(ours) > _MOST_DEVICES:
        raise ClaimError(f"it has {len(ours)} GPUs, and a lease at most {_MOST_DEVICES}")
    results = tuple(map(_result, ours))
    if len({result.device for result in results}) < len(results):
        raise ClaimError(
            "it has the same GPU twice; ask for different ones, by the constraint"
            f" distinctAttribute: {DRA_DRIVER}/uuid"
        )
    amounts = {_amounts(each) for each in ours}
    if len(amounts) > 1:
        raise ClaimError("it asks for different parts of its GPUs; make a claim for each part")
    ((memory, share),) = amounts
    awaited = any(each.get("bindingConditions") for each in ours)
    return Allocation(uid, namespace, name, results, memory, share, awaited)


def _map(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key)
    if value is not None and not isinstance(value, dict):
        raise ClaimError(f"its '{key}' is no object")
    return value or {}


def _result(found: dict[str, Any]) -> Result:
    pool, device, request = (str(found.get(key) or "") for key in ("pool", "device", "request"))
    if pool != POOL:
        raise ClaimError(f"its device is of a pool {pool!r:.64}, and ours is '{POOL}'")
    # A request with alternatives is named REQUEST/ALTERNATIVE.
    if not NAME.fullmatch(device) or not all(map(NAME.fullmatch, request.split("/"))):
        raise ClaimError("its device or its request has no name that can be one")
    if found.get("adminAccess"):
        raise ClaimError("admin access gives no lease; ask without it")
    share = found.get("shareID")
    return Result(request, device, None if share is None else str(share)[:64])


def _amounts(found: dict[str, Any]) -> tuple[int | None, int]:
    consumed = _map(found, "consumedCapacity")
    if not consumed:
        return None, WHOLE_GPU
    try:
        memory = quantities.whole(consumed.get(MEMORY))
        share = quantities.parse(consumed.get(COMPUTE)) * (WHOLE_GPU // 100)
    except ValueError as error:
        raise ClaimError(f"the capacity that it consumes {error}") from None
    if not MEBIBYTE <= memory <= LARGEST:
        raise ClaimError(f"it consumes {memory} bytes of memory, and 1Mi is the least")
    if share.denominator != 1 or not 1 <= share <= WHOLE_GPU:
        raise ClaimError("it consumes compute that is not 0.1 to 100 (percent of a GPU)")
    return memory, share.numerator
