"""Leases that have ended or have fewer GPUs now: who comes for what they had waits a moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpupool_server.claims import Refusal
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus, board_name
from gpupool_server.session import Session
from gpupool_server.tenants import Tenant


def check(
    tenant: Tenant, devices: Sequence[int], gpus: Gpus, sessions: Collection[Session]
) -> None:
    """Refusal if what a lease has was another's, who is just giving it back, or is its own no more.

    The manager gives a GPU away when its lease ends; the sessions there need a moment more. That
    the server is busy is no error for a client: it asks again.
    """
    lease = tenant.lease
    if lease is None:
        return
    own = board_name(tenant.name, lease.lease)
    for index in devices:
        if gpus.has_given(lease.lease, index):
            raise Refusal(
                "busy", f"the lease '{lease.lease}' has just given GPU {index} back; try again"
            )
        gpu, promise = gpus.get(index), lease.promises.get(index)
        if gpu is None or promise is None:
            continue
        names = {s.allocation.name for s in sessions if s.ending and index in s.meta.devices}
        if names - {own} and _has_no_room(gpu, own, promise.memory):
            raise Refusal(
                "busy",
                f"GPU {index}: sessions of a lease that has ended still have the memory that"
                f" '{lease.lease}' is to have; try again in a few seconds",
            )


def _has_no_room(gpu: Gpu, own: str, wanted: int) -> bool:
    """Whether all that others have of its memory leaves less; 0 is all of it."""
    total = gpu.device.memory_bytes
    taken = sum(claim.memory or total for name, claim in gpu.claims.items() if name != own)
    return taken + (wanted or total) > total
