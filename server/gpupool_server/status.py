"""What a GPU looks like to an operator: settings, tenants, processes, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gpupool_server.board import Account, Snapshot
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus

#: What an account's properties are called outside, where a name has the unit.
_NAMES = {
    "memory_limit": "memory_limit_bytes",
    "memory_used": "memory_used_bytes",
    "memory_peak": "memory_peak_bytes",
    "host_used": "host_used_bytes",
    "share": "share_permille",
    "ceiling": "ceiling_permille",
    "entitled": "entitled_permille",
    "members": "workers",
}


def describe_gpu(
    gpu: Gpu, gpus: Gpus, sessions: Sequence[Mapping[str, Any]], watch: Mapping[str, Any]
) -> dict[str, Any]:
    """One GPU of the admin socket's ``status``."""
    now = gpu.settings
    snapshot = gpu.snapshot()
    by_pid = {session["pid"]: session for session in sessions}
    tenants = snapshot.tenants if snapshot is not None else ()
    return {
        "index": gpu.index,
        "name": gpu.device.name,
        "uuid": gpu.device.uuid,
        "memory_total_bytes": gpu.device.memory_bytes,
        "policy": now.policy,
        "max_inst": now.max_inst,
        "prio_ratio": now.prio_ratio,
        "hardware": now.hardware_slices,
        "default_memory_bytes": now.default_memory or None,
        "free_weight": gpu.free_weight,
        "utilisation_permille": gpu.utilisation(),
        "sick": gpu.sick,
        "watch": dict(watch),
        "tenants": [
            _describe_tenant(gpu, gpus, account, snapshot, by_pid)
            for account in tenants
            if snapshot is not None
        ],
    }


def _describe_tenant(
    gpu: Gpu,
    gpus: Gpus,
    account: Account,
    snapshot: Snapshot,
    by_pid: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    group = gpus.group(account.name)
    known = dataclasses.asdict(account)
    return {
        **{_NAMES.get(key, key): value for key, value in known.items()},
        "utilisation_permille": gpu.utilisation(account.name),
        "sessions": sorted(group.sessions) if group is not None else [],
        "processes": [
            {
                "pid": process.pid,
                "memory_used_bytes": process.memory_used,
                "questions": process.questions,
                **_client(by_pid, process.pid),
            }
            for process in snapshot.processes
            if process.tenant == account.name
        ],
    }


def _client(by_pid: Mapping[int, Mapping[str, Any]], pid: int) -> dict[str, Any]:
    session = by_pid.get(pid, {})
    return {key: session.get(key) for key in ("session", "client_pid", "program")}
