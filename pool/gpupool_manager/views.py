"""Records as the REST API shows them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from gpupool_common.lease import LeaseState
from gpupool_common.node_protocol import GpuReading
from gpupool_manager.ledger import Ledger
from gpupool_manager.pool import Pool
from gpupool_manager.quotas import Use
from gpupool_manager.records import Gpu, Lease, Node, Quota, Tenant, Token
from gpupool_manager.resizes import lacking
from gpupool_manager.scheduler import Verdict
from gpupool_manager.schemas import (
    GpuOut,
    LeaseOut,
    NodeOut,
    PlacementRequestOut,
    QueueOut,
    QuotaOut,
    TenantOut,
    TokenOut,
    UseOut,
    VerdictOut,
    maybe_when,
    when,
)
from gpupool_manager.schemas_ending import EndingOut, IdleOut
from gpupool_manager.schemas_grants import GrantOut, ServerOut
from gpupool_manager.schemas_keys import KeyOut, LinkKeyOut
from gpupool_manager.schemas_reading import ReadingOut
from gpupool_manager.schemas_resize import LimitsOut, ResizeOut
from gpupool_manager.signing_keys import SigningKey
from gpupool_manager.waiting import Waiting


def quota(ledger: Ledger, record: Quota) -> QuotaOut:
    values = asdict(record)
    return QuotaOut(
        **values,
        in_use=_use(ledger.active.get(record.tenant, Use())),
        borrowed=_use(ledger.borrowed.get(record.tenant, Use())),
        queued=_use(ledger.queued.get(record.tenant, Use())),
    )


def _use(use: Use) -> UseOut:
    return UseOut(**asdict(use))


def tenant(ledger: Ledger, record: Tenant) -> TenantOut:
    return TenantOut(
        name=record.name,
        description=record.description,
        disabled=record.disabled,
        created=when(record.created),
        quota=quota(ledger, ledger.quotas[record.name]),
    )


def token(record: Token) -> TokenOut:
    return TokenOut(
        id=record.id,
        scope=record.scope,
        tenant=record.tenant,
        node=record.node,
        description=record.description,
        created=when(record.created),
        expires=maybe_when(record.expires),
        revoked=maybe_when(record.revoked),
    )


def key(pool: Pool, record: SigningKey) -> KeyOut:
    return KeyOut(
        id=record.id,
        age=record.age,
        public=record.public.hex(),
        made=when(record.made),
        signs=maybe_when(record.signs),
        until=maybe_when(record.until),
        without=pool.key_rolls.without(record),
    )


def link_key(pool: Pool) -> LinkKeyOut:
    keys = pool.link_keys
    return LinkKeyOut(
        current=keys.current.public,
        upcoming=keys.announced or None,
        without=pool.link_key_rolls.without(),
    )


def state_of(record: Node) -> Literal["ready", "aside", "lost"]:
    if record.lost:
        return "lost"
    return "aside" if record.trouble else "ready"


def node(pool: Pool, record: Node) -> NodeOut:
    seen = pool.fleet.seen.get(record.name)
    return NodeOut(
        name=record.name,
        address=record.address,
        server_version=record.server_version,
        driver=record.driver,
        labels=record.labels,
        mode=record.mode,
        state=state_of(record),
        reason=record.trouble,
        created=when(record.created),
        last_seen=when(record.last_seen),
        gpus=len(pool.ledger.index.nodes.get(record.name, {})),
        leases=len(pool.ledger.leases_on[record.name]),
        sessions=len(seen.sessions) if seen else 0,
    )


def gpu(pool: Pool, record: Gpu) -> GpuOut:
    slot = pool.ledger.index.slots[record.uuid]
    return GpuOut.model_construct(
        uuid=record.uuid,
        node=record.node,
        index=record.number,
        model=record.model,
        compute_capability=record.capability,
        memory_bytes=record.memory_bytes,
        pci=record.pci,
        policy=record.policy,
        max_inst=record.max_inst,
        prio_ratio=record.prio_ratio,
        used_bytes=slot.used_bytes,
        used_permille=slot.used_permille,
        grants=slot.holders,
        usable=slot.usable,
        closed=slot.closed,
        aside=record.trouble or None,
        reading=_reading(pool.fleet.reading(record)),
    )


def _reading(found: GpuReading | None) -> ReadingOut | None:
    return None if found is None else ReadingOut(**found.model_dump(exclude={"gpu"}))


def lease(pool: Pool, record: Lease) -> LeaseOut:
    ledger = pool.ledger
    waiting = ledger.queue.get(record.id)
    usable = record.state != LeaseState.ACTIVE or ledger.is_confirmed(record)
    return LeaseOut(
        id=record.id,
        tenant=record.tenant,
        state=record.state if usable else LeaseState.QUEUED,
        request=PlacementRequestOut.model_construct(**record.request.as_dict()),
        priority=record.priority,
        ceiling_permille=record.ceiling_permille,
        resize=_resize(ledger, record),
        label=record.label,
        until=record.until,
        sessions=record.sessions,
        beyond_quota=record.beyond,
        time_seconds=record.time_limit,
        borrowed=record.borrowed,
        ending=_ending(record),
        reserved=record.reserved,
        idle=_idle(pool, record) if record.id in ledger.leases else None,
        ttl_seconds=record.ttl,
        created=when(record.created),
        granted=maybe_when(record.granted),
        expires=maybe_when(record.expires),
        wait_until=when(record.deadline) if record.state == LeaseState.QUEUED else None,
        ended=maybe_when(record.ended),
        reason=_reason(record, waiting, usable),
        position=None if waiting is None else ledger.queue.position(record),
        grants=[
            GrantOut(
                ordinal=grant.ordinal,
                gpu=grant.gpu,
                node=grant.node,
                address=ledger.nodes[grant.node].address if grant.node in ledger.nodes else None,
                memory_bytes=grant.memory_bytes,
                share_permille=grant.share_permille,
                lost=grant.lost,
                aside=_aside(ledger, grant.gpu),
                leaves=maybe_when(grant.leaves) if record.state == LeaseState.ACTIVE else None,
                draining=_is_draining(ledger, grant.node),
                busy_seconds=grant.busy_ms / 1000,
            )
            for grant in record.grants
        ],
        servers=_servers(ledger, record) if usable else [],
        token=None,
    )


def _ending(record: Lease) -> EndingOut | None:
    ending = record.ending
    return None if ending is None else EndingOut(at=when(ending.at), reason=ending.reason)


def _idle(pool: Pool, record: Lease) -> IdleOut | None:
    if record.state != LeaseState.ACTIVE:
        return None
    idle = pool.leases.idle
    found = idle.of(record, pool.clock())
    return IdleOut(
        since=when(found.since),
        action=found.action,
        after_seconds=found.seconds,
        told=idle.is_told(record),
    )


def _aside(ledger: Ledger, uuid: str) -> str | None:
    gpu = ledger.gpus.get(uuid)
    return gpu.trouble or None if gpu is not None else None


def _is_draining(ledger: Ledger, name: str) -> bool:
    node = ledger.nodes.get(name)
    return node is not None and node.mode == "draining"


def _reason(record: Lease, waiting: Waiting | None, usable: bool) -> str:
    if not usable:
        return "its servers have not confirmed it yet"
    return record.reason if waiting is None else waiting.reason


def _resize(ledger: Ledger, record: Lease) -> ResizeOut | None:
    change = record.resize
    if change is None:
        return None
    waits = (f"node '{node}': {why}" for node, why in lacking(ledger, record).items())
    return ResizeOut(
        state="refused" if change.refused else "pending",
        asked=LimitsOut(**asdict(change.asked)),
        since=when(change.since),
        reason=change.refused or "; ".join(waits),
    )


def _servers(ledger: Ledger, record: Lease) -> list[ServerOut]:
    """Where a lease's clients go. Grants on one node are neighbours: see the scheduler."""
    found: dict[str, ServerOut] = {}
    for grant in record.staying if record.state == LeaseState.ACTIVE else ():
        node = ledger.nodes.get(grant.node)
        if node is None:
            continue
        server = found.setdefault(
            node.name,
            ServerOut(
                node=node.name, address=node.address, key=node.front_end_key or None, devices=[]
            ),
        )
        server.devices.append(grant.ordinal)
    return list(found.values())


def lease_with_token(pool: Pool, record: Lease) -> LeaseOut:
    """For who may use it."""
    shown = lease(pool, record)
    if record.state == LeaseState.ACTIVE and shown.state == LeaseState.ACTIVE:
        shown.token = pool.signer.issue(pool.ledger, record, pool.clock())
    return shown


def waiting(position: int, entry: Waiting) -> QueueOut:
    record = entry.lease
    return QueueOut(
        position=position,
        lease=record.id,
        tenant=record.tenant,
        priority=record.priority,
        gpus=record.request.gpus,
        memory_bytes=record.request.memory_bytes,
        share_permille=record.request.share_permille,
        since=when(record.created),
        until=when(record.deadline),
        beyond_quota=record.beyond,
        reason=entry.reason,
    )


def verdict(found: Verdict) -> VerdictOut:
    slot = found.slot
    return VerdictOut(
        gpu=slot.uuid,
        node=slot.node,
        index=slot.index,
        fits=found.reason is None,
        reason=found.reason,
        rank=found.rank,
        free_bytes=slot.free_bytes,
        free_permille=slot.free_permille,
    )
