"""/v1/nodes, /v1/gpus and /v1/sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from gpupool_common.node_protocol import Name
from gpupool_common.quantities import MOST_MEMORY
from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager import views
from gpupool_manager.api_common import (
    Admin,
    Pages,
    Reply,
    ThePool,
    User,
    Write,
    send,
)
from gpupool_manager.placement_request import matches
from gpupool_manager.records import Gpu
from gpupool_manager.schemas import (
    GpuChange,
    GpuOut,
    NodeChange,
    NodeOut,
    Page,
    Pattern,
    SessionOut,
    TenantName,
)
from gpupool_manager.transaction import Transaction

router = APIRouter()


@router.get("/nodes", response_model=Page[NodeOut], tags=["nodes"])
async def list_nodes(
    pool: ThePool,
    caller: Admin,
    pages: Pages,
    state: Annotated[Literal["ready", "aside", "lost"] | None, Query()] = None,
    mode: Annotated[Literal["open", "cordoned", "draining"] | None, Query()] = None,
    label: Annotated[
        str | None, Query(pattern=r"^[A-Za-z0-9._-]{1,64}=.{0,256}$", description="KEY=VALUE")
    ] = None,
    name: Annotated[Pattern | None, Query(description="a pattern, e.g. 'rack7-*'")] = None,
    model: Annotated[Pattern | None, Query(description="of a GPU, e.g. 'NVIDIA H100*'")] = None,
) -> Response:
    """Nodes, by name."""
    key, _, value = (label or "").partition("=")
    slots = pool.ledger.index.nodes
    items = [
        node
        for node in pool.ledger.nodes.values()
        if state in (None, views.state_of(node))
        and mode in (None, node.mode)
        and (label is None or node.labels.get(key) == value)
        and (name is None or matches(name, node.name))
        and (
            model is None or any(matches(model, s.model) for s in slots.get(node.name, {}).values())
        )
    ]
    return send(pages.cut(items, lambda node: (node.name,), lambda n: views.node(pool, n), str))


@router.get("/nodes/{name}", response_model=NodeOut, tags=["nodes"])
async def get_node(name: Name, pool: ThePool, caller: Admin) -> Response:
    """One node."""
    node = pool.fleet.find(name)
    return send(views.node(pool, node), node.version)


@router.patch("/nodes/{name}", response_model=NodeOut, tags=["nodes"])
async def change_node(
    name: Name, body: NodeChange, pool: ThePool, caller: Admin, write: Write
) -> Response:
    """Cordon, drain, open again, label."""

    def change(transaction: Transaction) -> Reply:
        write.check(pool.fleet.find(name).version)
        node = pool.fleet.change(transaction, name, body.mode, body.labels)
        return Reply(views.node(pool, node), 200, node.version)

    return await write.do(caller, change)


@router.delete("/nodes/{name}", status_code=204, tags=["nodes"])
async def remove_node(
    name: Name,
    pool: ThePool,
    caller: Admin,
    write: Write,
    force: Annotated[bool, Query(description="end its leases first")] = False,
) -> Response:
    """Forget a node and its GPUs, and let it in no more. 409 while it has leases."""

    def remove(transaction: Transaction) -> Reply:
        write.check(pool.fleet.find(name).version)
        pool.fleet.remove(transaction, name, force)
        return Reply(status=204)

    return await write.do(caller, remove)


@router.post("/nodes/{name}/roll-key", response_model=NodeOut, status_code=202, tags=["nodes"])
async def roll_node_key(name: Name, pool: ThePool, caller: Admin, write: Write) -> Response:
    """The node makes another key by which it is known; with the one before nobody gets in.

    Until it has, or the manager is started again, it is told at each heartbeat.
    """

    def roll(transaction: Transaction) -> Reply:
        node = pool.fleet.node_keys.begin(transaction, name)
        return Reply(views.node(pool, node), 202, node.version)

    return await write.do(caller, roll)


@router.get("/gpus", response_model=Page[GpuOut], tags=["gpus"])
async def list_gpus(
    pool: ThePool,
    caller: Admin,
    pages: Pages,
    node: Annotated[Name | None, Query()] = None,
    model: Annotated[Pattern | None, Query(description="a pattern, e.g. 'NVIDIA H100*'")] = None,
    free_bytes: Annotated[int | None, Query(ge=0, le=MOST_MEMORY, description="at least")] = None,
    free_permille: Annotated[int | None, Query(ge=0, le=WHOLE_GPU, description="at least")] = None,
    usable: Annotated[bool | None, Query()] = None,
) -> Response:
    """GPUs, by node and index."""
    ledger = pool.ledger
    nodes = ledger.index.nodes
    after = pages.after(str, int, str)
    items: list[Gpu] = []
    for name in sorted(nodes):
        # A page has few of ten thousand: what is before and behind it is not looked at.
        if len(items) > pages.limit or node not in (None, name) or after and name < str(after[0]):
            continue
        items += [
            gpu
            for slot in nodes[name].values()
            for gpu in (ledger.gpus[slot.uuid],)
            if (model is None or matches(model, slot.model))
            and (free_bytes is None or slot.free_bytes >= free_bytes)
            and (free_permille is None or slot.free_permille >= free_permille)
            and (usable is None or slot.usable == usable)
            and (after is None or _gpu_key(gpu) > after)
        ]
    return send(pages.cut(items, _gpu_key, lambda gpu: views.gpu(pool, gpu), str, int, str))


def _gpu_key(gpu: Gpu) -> tuple[str, int, str]:
    return (gpu.node, gpu.number, gpu.uuid)


@router.get("/gpus/{uuid}", response_model=GpuOut, tags=["gpus"])
async def get_gpu(uuid: Name, pool: ThePool, caller: Admin) -> Response:
    """One GPU with what is taken of it."""
    gpu = pool.fleet.find_gpu(uuid)
    return send(views.gpu(pool, gpu), gpu.version)


@router.patch("/gpus/{uuid}", response_model=GpuOut, tags=["gpus"])
async def change_gpu(
    uuid: Name, body: GpuChange, pool: ThePool, caller: Admin, write: Write
) -> Response:
    """How a GPU's compute is divided; its server is told at once."""

    def change(transaction: Transaction) -> Reply:
        write.check(pool.fleet.find_gpu(uuid).version)
        gpu = pool.fleet.change_gpu(transaction, uuid, body.model_dump(exclude_none=True))
        return Reply(views.gpu(pool, gpu), 200, gpu.version)

    return await write.do(caller, change)


@router.get("/sessions", response_model=Page[SessionOut], tags=["sessions"])
async def list_sessions(
    pool: ThePool,
    caller: User,
    pages: Pages,
    node: Annotated[Name | None, Query()] = None,
    lease: Annotated[Name | None, Query()] = None,
    tenant: Annotated[TenantName | None, Query()] = None,
) -> Response:
    """Client processes as the last heartbeats said, by node; a tenant's token sees its own."""
    whose = caller.tenant(tenant)
    items = [
        found
        for found in _sessions(pool)
        if node in (None, found.node)
        and lease in (None, found.lease)
        and whose in (None, found.tenant)
    ]
    return send(pages.cut(items, lambda s: (s.node, s.id), lambda s: s, str, str))


def _sessions(pool: ThePool) -> list[SessionOut]:
    leases = pool.ledger.leases
    return [
        SessionOut(
            id=session.id,
            node=node,
            lease=session.lease,
            tenant=leases[session.lease].tenant if session.lease in leases else None,
            program=session.program,
            state=session.state,
        )
        for node, seen in pool.fleet.seen.items()
        for session in seen.sessions
    ]
