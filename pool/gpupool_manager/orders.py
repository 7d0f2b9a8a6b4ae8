"""What holds on a node, as its orders say it."""

from __future__ import annotations

from collections.abc import Iterable

from gpupool_common.node_protocol import (
    EndedLease,
    LeavingGrant,
    OrderedGpu,
    OrderedGrant,
    OrderedTenant,
)
from gpupool_manager.lease_tokens import Signer
from gpupool_manager.ledger import Ledger
from gpupool_manager.records import Gpu, Grant, Lease
from gpupool_manager.resizes import target
from gpupool_manager.shrinking import is_over
from gpupool_manager.sick_gpus import SickGpus


def ordered_grants(
    ledger: Ledger, signer: Signer, node: str, leases: Iterable[Lease]
) -> list[OrderedGrant]:
    """What leases have on a node."""
    return [
        _ordered(ledger, signer, lease, grant)
        for lease in leases
        for grant in lease.staying
        if grant.node == node
    ]


def ordered_leaving(node: str, leases: Iterable[Lease], now: float) -> list[LeavingGrant]:
    """What of leases that go on goes back on a node."""
    return [
        LeavingGrant(
            lease=lease.id,
            tenant=lease.tenant,
            gpu=grant.gpu,
            number=lease.version,
            at=grant.leaves or 0.0,
            over=is_over(grant, now),
        )
        for lease in leases
        for grant in lease.leaving
        if grant.node == node and not grant.lost
    ]


def _ordered(ledger: Ledger, signer: Signer, lease: Lease, grant: Grant) -> OrderedGrant:
    memory_bytes, share_permille = target(ledger, lease, grant)
    change = lease.change
    return OrderedGrant(
        lease=lease.id,
        tenant=lease.tenant,
        ordinal=grant.ordinal,
        gpu=grant.gpu,
        memory_bytes=memory_bytes,
        share_permille=share_permille,
        priority=lease.priority,
        ceiling_permille=lease.ceiling_permille,
        number=0 if change is None else lease.version,
        force=change is not None and change.force,
        request_id=lease.request_id,
        peer_key=signer.peer_key(lease.id),
    )


def ordered_gpus(gpus: Iterable[Gpu], sick: SickGpus) -> list[OrderedGpu]:
    """The settings of GPUs that are there."""
    return [
        OrderedGpu.model_construct(
            uuid=gpu.uuid,
            policy=gpu.policy,
            max_inst=gpu.max_inst,
            prio_ratio=gpu.prio_ratio,
            opened=sick.opened(gpu.uuid),
        )
        for gpu in gpus
        if gpu.present
    ]


def ordered_tenants(ledger: Ledger, tenants: set[str]) -> list[OrderedTenant]:
    """The budgets of those tenants that have some."""
    quotas = [ledger.quotas[name] for name in sorted(tenants & set(ledger.quotas))]
    return [OrderedTenant(tenant=q.tenant, budgets=q.budgets) for q in quotas if q.budgets]


def ended_leases(ledger: Ledger, node: str) -> list[EndedLease]:
    """Leases that ended lately on a node, and why."""
    return [EndedLease(lease=lease, reason=reason) for lease, reason in ledger.ended_on[node]]
