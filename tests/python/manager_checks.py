"""What holds of a pool at any time: it is as its model says, in memory and in the database."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any, TypeVar

from sqlalchemy import select

from gpupool_manager import tables
from gpupool_manager.ledger import Ledger
from gpupool_manager.quotas import Use
from gpupool_manager.records import Lease
from manager_model import Model
from manager_world import World

T = TypeVar("T")
TENANTS = ("a", "b")


class Checks:
    """Of a pool and its model."""

    world: World
    model: Model
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    @property
    def now(self) -> float:
        return self.world.clock.now

    def check(self) -> None:
        ledger = self.world.pool.ledger
        for lease in sorted(ledger.leases.values(), key=lambda lease: lease.granted or 0):
            known = self.model.leases[lease.id]
            if lease.state == "active" and known.state == "queued":
                self.model.take(lease)
        self._check_leases(ledger)
        self._check_gpus(ledger)
        self._check_uses(ledger)
        self._check_queue(ledger)
        self.run(self._check_database(ledger))

    def _check_leases(self, ledger: Ledger) -> None:
        live = {name for name, lease in self.model.leases.items() if lease.is_live}
        assert set(ledger.leases) == live
        for lease in ledger.leases.values():
            known = self.model.leases[lease.id]
            assert lease.state == known.state
            grants = [
                (grant.gpu, grant.memory_bytes, grant.share_permille) for grant in lease.grants
            ]
            assert grants == known.grants
            assert {grant.gpu for grant in lease.grants if grant.lost} == known.lost
            assert {grant.gpu: grant.leaves for grant in lease.leaving} == known.leaves
            assert [grant.ordinal for grant in lease.grants] == list(range(len(grants)))
            assert known.state == "queued" or lease.expires == known.expires
        on = {
            name: {
                lease.id
                for lease in ledger.leases.values()
                if name in {grant.node for grant in lease.grants}
            }
            for name in ledger.nodes
        }
        assert ledger.leases_on == on

    def _check_gpus(self, ledger: Ledger) -> None:
        for name, node in self.model.nodes.items():
            for uuid, size in node.gpus.items():
                there = self.model.on_gpu(uuid)
                slot = ledger.index.slots[uuid]
                used = (sum(mib for mib, _ in there), sum(share for _, share in there))
                assert (slot.used_bytes, slot.used_permille, slot.holders) == (*used, len(there))
                assert used[0] <= slot.total_bytes == size and used[1] <= 1000
                assert len(there) <= slot.most == node.max_inst[uuid]
                assert (slot.closed is None) == node.is_open
                assert slot.node == name

    def _check_uses(self, ledger: Ledger) -> None:
        for state, uses in (("active", ledger.active), ("queued", ledger.queued)):
            for tenant in TENANTS:
                use = dataclasses.asdict(uses.get(tenant, Use()))
                assert use == self.model.use(state, tenant), (state, tenant)

    def _check_queue(self, ledger: Ledger) -> None:
        """In order; and none waits who could go, unless somebody has waited too long."""
        order = [waiting.lease.id for waiting in ledger.queue]
        assert order == sorted(lease.id for lease in self.model.live("queued"))
        for lease in self.model.live("queued"):
            if not self.model.someone_is_late(self.now) and lease.tenant not in self.model.disabled:
                over = self.model.over_quota(lease.tenant, lease.want, False)
                assert over or not self.model.fits(lease.tenant, lease.want), lease
            assert ledger.queue.get(lease.id) is not None

    async def _check_database(self, ledger: Ledger) -> None:
        """What is in it is what is in memory."""
        loaded = await self.world.pool.store.load()
        assert {x.id: timeless(x) for x in loaded.leases} == {
            name: timeless(lease) for name, lease in ledger.leases.items()
        }
        assert {x.name: x for x in loaded.tenants} == ledger.tenants
        assert {x.tenant: x for x in loaded.quotas} == ledger.quotas
        assert {x.id: x for x in loaded.tokens} == ledger.tokens.by_id
        assert {x.uuid: x for x in loaded.gpus} == ledger.gpus
        assert {x.name: dataclasses.replace(x, last_seen=0) for x in loaded.nodes} == {
            name: dataclasses.replace(node, last_seen=0) for name, node in ledger.nodes.items()
        }
        columns = select(tables.leases.c.id, tables.leases.c.state)
        states = {row.id: row.state for row in await self.world.pool.store.fetch(columns)}
        assert states == {name: lease.state for name, lease in self.model.leases.items()}


def timeless(lease: Lease) -> Lease:
    """Without what is not written down at each renewal, or start of the manager."""
    grants = [
        dataclasses.replace(grant, leaves=None if grant.leaves is None else 0.0)
        for grant in lease.grants
    ]
    return dataclasses.replace(lease, expires=None, grants=grants)
