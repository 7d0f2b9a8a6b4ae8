"""A pool to test: its clock, its nodes, and short ways to ask it for things."""

from __future__ import annotations

from typing import Any

from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_common.node_protocol import Heartbeat, Orders, Report, ReportedGpu
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.pool import Pool, Rules
from gpupool_manager.records import Lease, Node, Quota, Tenant, Token
from gpupool_manager.store import Store
from gpupool_manager.transaction import Actor, Transaction

#: What a lease's request may leave out.
WANT: dict[str, Any] = {
    "gpus": 1,
    "memory_bytes": 1000 * MIB,
    "share_permille": 100,
    "policy": "binpack",
    "hosts": "any",
    "model": None,
    "capability": None,
    "labels": {},
}

ACTOR = Actor("a test", "request-1")


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def gpu(node: str, index: int, memory_bytes: int = 10_000 * MIB, **more: Any) -> ReportedGpu:
    more = {"model": "NVIDIA H200", "compute_capability": "9.0", **more}
    uuid = more.pop("uuid", f"GPU-{node}-{index}")
    return ReportedGpu(uuid=uuid, index=index, memory_bytes=memory_bytes, **more)


def report(node: str, gpus: int | list[ReportedGpu] = 2, **more: Any) -> Report:
    if isinstance(gpus, int):
        gpus = [gpu(node, index) for index in range(gpus)]
    more = {"driver": "13.0", **more}
    return Report(address=f"tcp://{node}:7700", server_version="0", gpus=gpus, **more)


class World:
    """One manager's state on a database, and the time that is in it."""

    def __init__(self, url: str, clock: Clock | None = None, **rules: Any) -> None:
        self.url = url
        self.clock = clock or Clock()
        self.rules = Rules(**{"unasked": 1e9, **rules})
        self.pool: Pool

    async def open(self) -> World:
        self.pool = Pool(Store(self.url), self.rules, self.clock)
        await self.pool.open()
        return self

    async def node_token(self, name: str) -> Token:
        """The token with which a node has joined, or may."""
        for token in self.pool.ledger.tokens.by_id.values():
            if token.node == name and token.revoked is None:
                return token
        made, _ = await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.create_token(transaction, "node", node=name)
        )
        return made

    async def restart(self) -> None:
        await self.pool.close()
        await self.open()

    async def close(self) -> None:
        await self.pool.close()

    async def tenant(self, name: str, **quota: Any) -> Tenant:
        return await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.create(transaction, name, "", quota), ACTOR
        )

    async def quota(self, name: str, **quota: Any) -> Quota:
        return await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.set_quota(transaction, name, quota), ACTOR
        )

    async def join(self, name: str, gpus: int | list[ReportedGpu] = 2, **more: Any) -> Node:
        what = report(name, gpus, **more)
        token = await self.node_token(name)
        return await self.pool.commands.do(
            lambda transaction: self.pool.fleet.report(transaction, token, name, what), ACTOR
        )

    async def beat(self, name: str, **what: Any) -> Orders:
        """A heartbeat of a node."""
        token = await self.node_token(name)
        return await self.pool.heartbeat(token, name, Heartbeat.model_validate(what), ACTOR)

    async def ask(
        self,
        tenant: str,
        *,
        priority: int = 0,
        wait: float = 0.0,
        ttl: float = 60.0,
        until: LeaseEnd = LeaseEnd.RELEASED,
        **want: Any,
    ) -> Lease:
        asked = LeaseRequest(
            tenant, PlacementRequest.parse({**WANT, **want}), priority, wait, ttl, until=until
        )
        return await self.pool.commands.do(
            lambda transaction: self.pool.leases.admit(transaction, asked), ACTOR
        )

    async def end(self, lease: Lease) -> None:
        def operation(transaction: Transaction) -> None:
            live = self.pool.ledger.leases[lease.id]
            queued = live.state == LeaseState.QUEUED
            state = LeaseState.CANCELLED if queued else LeaseState.RELEASED
            self.pool.leases.end(transaction, live, state, "the test said so")

        await self.pool.commands.do(operation, ACTOR)

    async def later(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self.clock.now += seconds
        await self.pool.tick()

    def state(self, lease: Lease) -> str:
        live = self.pool.ledger.leases.get(lease.id)
        return "gone" if live is None else live.state

    def queue(self) -> list[str]:
        return [waiting.lease.id for waiting in self.pool.ledger.queue]
