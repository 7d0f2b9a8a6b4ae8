"""What an operator changes while tenants run: settings of a GPU, limits and quotas.

A change holds on all GPUs it is meant for or on none, is on their boards when the
function returns, and is kept for the next server.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpupool_common.quantities import LEAST_MEMORY, MOST_MEMORY
from gpupool_common.sizes import WHOLE_GPU, format_part, format_size, short_size
from gpupool_server import claims
from gpupool_server.board import SLICED, BoardError
from gpupool_server.claims import Claim, LimitsRequest, Refusal
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus, Group, promised
from gpupool_server.ignored import ignored
from gpupool_server.sharing import GpuSettings
from gpupool_server.tenants import Promise, Quota, Tenant

#: What can be set of a GPU, and the settings that these are.
GPU_KEYS = {
    "policy": "policy",
    "max_inst": "max_inst",
    "prio_ratio": "prio_ratio",
    "default_memory_bytes": "default_memory",
}
#: What can be set of a group or tenant, which limits these are, and their bounds.
LIMITS: dict[str, tuple[str, int, int]] = {
    "memory_bytes": ("memory", LEAST_MEMORY, MOST_MEMORY),
    "weight": ("weight", 0, 25),
    "share_permille": ("share", 1, WHOLE_GPU),
    "ceiling_permille": ("ceiling", 1, WHOLE_GPU),
}


class InUse(Refusal):
    """More memory is in use than the new limit; it may fit later."""

    def __init__(self, message: str) -> None:
        super().__init__("in-use", message)


def set_gpu(gpus: Gpus, index: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Change settings of one GPU; the answer is what holds now. Refusal."""
    gpu = _enforced(gpus, index)
    before = gpu.changed
    gpu.changed = _read_settings(asked).over(before)
    try:
        gpu.share_slices()
        _check_slices(gpu)
        gpu.write_settings()
    except BoardError as error:
        gpu.changed = before
        raise Refusal("bad-request", str(error)) from None
    except Refusal:
        gpu.changed = before
        raise
    gpu.save()
    now = gpu.settings
    return {
        "gpu": index,
        "policy": now.policy,
        "max_inst": now.max_inst,
        "prio_ratio": now.prio_ratio,
        "default_memory_bytes": now.default_memory or None,
    }


def _read_settings(asked: Mapping[str, Any]) -> GpuSettings:
    if not asked:
        raise Refusal("bad-request", f"name what to set: {', '.join(GPU_KEYS)}")
    unknown = [key for key in asked if key not in GPU_KEYS]
    if unknown:
        raise Refusal(
            "bad-request", f"'{unknown[0]}' cannot be set; what can: {', '.join(GPU_KEYS)}"
        )
    values = {GPU_KEYS[key]: value for key, value in asked.items()}
    if values.get("default_memory", 0) is None:
        values["default_memory"] = "none"
    try:
        return GpuSettings.model_validate(values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        allowed = GpuSettings.model_fields[name].description
        key = next(key for key in GPU_KEYS if GPU_KEYS[key] == name)
        raise Refusal("bad-request", f"'{key}' is not allowed; allowed: {allowed}") from None


def _check_slices(gpu: Gpu) -> None:
    now = gpu.settings
    weights = sum(claim.weight for claim in gpu.claims.values())
    if now.policy in SLICED and weights > (now.max_inst or 0):
        raise Refusal(
            "over-quota",
            f"GPU {gpu.index}: the weights of its tenants sum to {weights}, and max_inst is"
            f" {now.max_inst}; lower weights first, or set a larger max_inst",
        )


def set_limits(
    gpus: Gpus, whom: Group | Tenant, index: int | None, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Change a group's limits, or a tenant's quota; InUse if more memory is in use."""
    values = _read_limits(asked)
    group = whom if isinstance(whom, Group) and whom.group is not None else None
    tenant = whom.tenant if isinstance(whom, Group) else whom
    chosen = _gpus_of(gpus, tenant, group, index)
    undo: list[tuple[Gpu, Callable[[], None]]] = []
    try:
        for gpu in chosen:
            undo.append((gpu, _keep(gpu, tenant)))
            if group is not None:
                _change_group(gpu, group, values)
            else:
                _change_tenant(gpu, tenant, values)
    except Refusal:
        for gpu, restore in undo:
            restore()
            gpu.write_grants(tenant)
        raise
    for gpu in chosen:
        gpu.save()
    name = tenant.name if group is None else group.name
    done = {"tenant": name, "gpus": [gpu.index for gpu in chosen]}
    note = ignored(
        LimitsRequest(
            weight=values.get("weight"), share=values.get("share"), ceiling=values.get("ceiling")
        ),
        gpus.policies(gpu.index for gpu in chosen),
        usual_weight=None,
    )
    return {**done, "note": note} if note else done


def set_promise(gpu: Gpu, group: Group, promise: Promise, force: bool) -> None:
    """Let a lease have what the pool's manager promises it now; InUse: it has more memory in use.

    With ``force`` the limit then holds for what is new. Another Refusal: its arbiter cannot be
    asked now, and nothing is changed.
    """
    old = gpu.claims[group.name]
    new = dataclasses.replace(promised(promise), weight=old.weight)
    if new == old:
        return
    if gpu.board is None:
        raise Refusal("no-worker", f"the arbiter of GPU {gpu.index} is being started again")
    gpu.claims[group.name] = new
    gpu.share_slices()
    try:
        _write(gpu, group.tenant, group.name)
    except Refusal as error:
        forced = force and isinstance(error, InUse)
        before = old.before if old.forced else old.memory
        less = dataclasses.replace(new, forced=True, before=before)
        gpu.claims[group.name] = less if forced else old
        gpu.share_slices()
        gpu.write_grants(group.tenant)
        raise
    finally:
        gpu.save()


def shown(gpu: Gpu, group: Group) -> dict[str, Any]:
    """A group's limits on a GPU as a log has them."""
    claim = gpu.claims[group.name]
    return {
        "gpu": gpu.index,
        "memory_bytes": claim.memory or None,
        "share_permille": claim.share,
        "ceiling_permille": claim.ceiling,
        "high_priority": claim.high_priority,
        "forced": claim.forced,
    }


def _read_limits(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The limits by the names that claims and quotas have for them."""
    found: dict[str, Any] = {}
    for key, value in asked.items():
        if key == "high_priority":
            if not isinstance(value, bool):
                raise Refusal("bad-request", "'high_priority' must be true or false")
            found[key] = value
            continue
        if key not in LIMITS:
            known = ", ".join((*LIMITS, "high_priority"))
            raise Refusal("bad-request", f"'{key}' cannot be set; what can: {known}")
        name, low, high = LIMITS[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Refusal("bad-request", f"'{key}' must be a whole number {low}..{high}")
        found[name] = value
    if not asked:
        raise Refusal("bad-request", f"name what to set: {', '.join((*LIMITS, 'high_priority'))}")
    return found


def in_words(values: Mapping[str, Any]) -> str:
    """Limits as a user reads them: "memory 2 GiB, share 50%"."""
    words = []
    for key, value in values.items():
        if key == "memory_bytes":
            words.append(f"memory {format_size(value)}")
        elif key.endswith("_permille"):
            words.append(f"{LIMITS[key][0]} {format_part(value)}")
        elif key == "high_priority":
            words.append("high priority" if value else "normal priority")
        else:
            words.append(f"{key} {value}")
    return ", ".join(words)


def _enforced(gpus: Gpus, index: int) -> Gpu:
    gpu = gpus.get(index)
    if gpu is None:
        served = ", ".join(str(each.index) for each in gpus)
        raise Refusal("not-found", f"GPU {index} is not served here; the server has {served}")
    if gpu.board is None:
        raise Refusal(
            "bad-request", "this server keeps no limits: its worker is of an older release"
        )
    return gpu


def _gpus_of(gpus: Gpus, tenant: Tenant, group: Group | None, index: int | None) -> list[Gpu]:
    if index is not None:
        gpu = _enforced(gpus, index)
        if group is not None and group.name not in gpu.claims:
            raise Refusal("not-found", f"'{group.name}' is not on GPU {index}")
        return [gpu]
    indexes: Sequence[int] = [gpu.index for gpu in gpus if tenant.may_use(gpu.index)]
    if group is not None:
        indexes = gpus.devices_of(group.name)
    return [_enforced(gpus, each) for each in indexes]


def _keep(gpu: Gpu, tenant: Tenant) -> Callable[[], None]:
    """What puts back the claims and the quota as they are now."""
    before, quota = dict(gpu.claims), gpu.quotas.get(tenant.name)

    def restore() -> None:
        gpu.claims = before
        gpu.quotas.pop(tenant.name, None)
        if quota is not None:
            gpu.quotas[tenant.name] = quota

    return restore


def _change_group(gpu: Gpu, group: Group, values: Mapping[str, Any]) -> None:
    headroom = gpu.headroom(group.tenant, without=group.name)
    gpu.claims[group.name] = claims.changed(headroom, gpu.claims[group.name], values)
    _write(gpu, group.tenant, group.name)


def _change_tenant(gpu: Gpu, tenant: Tenant, values: Mapping[str, Any]) -> None:
    """Change the quota; the sessions without a request, which have what is left, follow."""
    gpu.quotas[tenant.name] = {**gpu.quotas.get(tenant.name, {}), **values}
    quota = gpu.quota(tenant)
    where = f"tenant '{tenant.name}' on GPU {gpu.index}"
    claims.check_part(where, quota.share, quota.ceiling)
    others = [c for name, c in gpu.claims_of(tenant.name).items() if name != tenant.name]
    _check_promised(where, quota, others, values)
    plain = gpu.claims.get(tenant.name)
    if plain is None:
        gpu.write_grants(tenant)
        return
    gpu.claims[tenant.name] = _plain_claim(gpu, tenant, plain, values)
    _write(gpu, tenant, tenant.name)


def _check_promised(
    where: str, quota: Quota, others: Sequence[Claim], values: Mapping[str, Any]
) -> None:
    """A quota cannot be less than what its groups were promised."""
    if "memory" in values and quota.memory is not None:
        promised = sum(claim.memory for claim in others)
        if promised > quota.memory:
            raise InUse(
                f"{where}: its groups have {format_size(promised)}, more than"
                f" {format_size(quota.memory)}; set theirs first"
            )
    if "share" in values:
        shares = sum(claim.share or 0 for claim in others)
        if shares > quota.share:
            raise InUse(
                f"{where}: its groups have shares of {format_part(shares)}, more than"
                f" {format_part(quota.share)}; set theirs first"
            )
    if "weight" in values and quota.weight is not None:
        weights = sum(claim.weight for claim in others)
        if weights > quota.weight:
            raise InUse(
                f"{where}: its groups have weights of {weights}, more than {quota.weight};"
                " set theirs first"
            )


def _plain_claim(gpu: Gpu, tenant: Tenant, old: Claim, values: Mapping[str, Any]) -> Claim:
    headroom = gpu.headroom(tenant, without=tenant.name)
    chosen: dict[str, Any] = {}
    if "memory" in values:
        left = values["memory"] - sum(claim.memory for claim in headroom.claims)
        if left < LEAST_MEMORY:
            raise InUse(f"{headroom.where}: its groups have all of {format_size(values['memory'])}")
        chosen["memory"] = min(left, gpu.device.memory_bytes)
    if "weight" in values:
        weight = values["weight"] - sum(claim.weight for claim in headroom.claims)
        if headroom.free_weight is not None and weight > headroom.free_weight:
            raise Refusal(
                "over-quota",
                f"{headroom.where}: a weight of {weight} is requested, {headroom.free_weight} of"
                " the GPU's slices are free",
            )
        chosen["weight"] = max(0, weight)
    if "high_priority" in values:
        chosen["high_priority"] = values["high_priority"]
    return dataclasses.replace(old, **chosen)


def _write(gpu: Gpu, tenant: Tenant, name: str) -> None:
    """Put a changed claim on the board; InUse if more memory is in use than it allows."""
    try:
        gpu.write_grants(tenant, must=(name,))
    except BoardError as error:
        if error.number != errno.EBUSY:
            raise Refusal("bad-request", str(error)) from None
        snapshot = gpu.snapshot()
        account = snapshot.account(name) if snapshot else None
        used = short_size(account.memory_used) if account else "more"
        limit = format_size(gpu.claims[name].memory)
        raise InUse(f"'{name}' on GPU {gpu.index} has {used} in use, more than {limit}") from None
