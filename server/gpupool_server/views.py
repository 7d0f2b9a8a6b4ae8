"""The devices as a tenant sees them through NVML: its own GPUs, limits and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus, board_name
from gpupool_server.nvml_answer import NvmlClient, Running, View
from gpupool_server.sessions import SessionSupervisor


class TenantViews:
    """What NVML says must be what CUDA says to the same process: the group's limits."""

    def __init__(self, gpus: Gpus, supervisor: SessionSupervisor) -> None:
        self._gpus = gpus
        self._supervisor = supervisor

    async def __call__(self, client: NvmlClient) -> list[View]:
        sessions = await self._supervisor.describe(client.tenant)
        own = next((s for s in sessions if _is_of(s, client)), None)
        group = own["group"] if own is not None else client.group
        # A request without a name would get a group of its own, which nobody is in yet.
        unnamed = own is None and group is None and client.memory is not None
        name = "" if unnamed else board_name(client.tenant, group)
        chosen = self._choose(client, own, name)
        return [self._view(gpu, client, name, sessions) for gpu in chosen]

    def _choose(self, client: NvmlClient, own: Mapping[str, Any] | None, name: str) -> list[Gpu]:
        if client.lease is not None:
            found = (self._gpus.get(index) for index in client.lease.devices)
            return [gpu for gpu in found if gpu is not None]
        tenant = self._gpus.tenants.named(client.tenant)
        allowed = {gpu.index: gpu for gpu in self._gpus if tenant and tenant.may_use(gpu.index)}
        if client.devices is not None:
            return [allowed[index] for index in client.devices if index in allowed]
        if own is not None:
            return [allowed[index] for index in own["devices"] if index in allowed]
        of_group = self._gpus.devices_of(name) if client.group is not None else ()
        indexes = of_group or tuple(allowed)
        return [allowed[index] for index in indexes if index in allowed][: client.gpus]

    def _view(
        self, gpu: Gpu, client: NvmlClient, name: str, sessions: Sequence[Mapping[str, Any]]
    ) -> View:
        snapshot = gpu.snapshot()
        members = snapshot.processes if snapshot is not None else ()
        memory = {member.pid: member.memory_used for member in members}
        limit = self._limit(gpu, client, name)
        account = snapshot.account(name) if snapshot is not None else None
        limited = limit is not None and account is not None
        return View(
            gpu.device,
            limit=limit,
            used=account.memory_used if limited and account is not None else None,
            processes=_running(sessions, gpu.index, client, memory),
        )

    def _limit(self, gpu: Gpu, client: NvmlClient, name: str) -> int | None:
        """The group's, or what a session that began now would have."""
        claim = gpu.claims.get(name)
        if claim is not None:
            return claim.memory or None
        if client.lease is not None:
            return client.lease.promises[gpu.index].memory or None
        tenant = self._gpus.tenants.named(client.tenant)
        quota = gpu.quota(tenant).memory if tenant is not None else None
        wanted = client.memory or gpu.default_memory or quota
        return wanted if wanted is None or quota is None else min(wanted, quota)


def _is_of(session: Mapping[str, Any], client: NvmlClient) -> bool:
    return bool((session["client_host"], session["client_pid"]) == (client.host, client.pid))


def _running(
    sessions: Sequence[Mapping[str, Any]], index: int, client: NvmlClient, memory: Mapping[int, int]
) -> tuple[Running, ...]:
    found = []
    for session in sessions:
        if index not in session["devices"] or session["client_host"] != client.host:
            continue
        # A worker's own account is of all its devices together.
        own = session.get("memory_bytes") if len(session["devices"]) == 1 else None
        found.append(
            Running(session["client_pid"], session["pid"], memory.get(session["pid"], own))
        )
    return tuple(found)
