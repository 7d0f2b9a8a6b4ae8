"""Sessions that nodes ended because their workers lied: who is told, and of what."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from gpupool_common.node_protocol import MOST_LIARS, Heartbeat, ReportedLiar
from gpupool_manager import tables
from gpupool_manager.records import Lease
from gpupool_manager.transaction import MANAGER
from test_pool_busy import Manager


def liar_of(lease: Lease, session: str = "s1", gpu: str = "") -> ReportedLiar:
    return ReportedLiar(
        session=session,
        lease=lease.id,
        gpu=gpu or lease.grants[0].gpu,
        cause="memory",
        reason="it has 88MiB and may have 64MiB",
    )


class Told(Manager):
    async def tell(self, node: str, *liars: ReportedLiar) -> None:
        self.pool.fleet.orders(node, "", 0.0)
        beat = Heartbeat(liars=list(liars))
        await self.pool.heartbeat(self.tokens[node], node, beat, MANAGER)

    async def audited(self) -> list[tuple[str, str | None]]:
        table = tables.audit
        rows = await self.pool.store.fetch(
            select(table).where(table.c.action == "session.liar").order_by(table.c.id)
        )
        return [(row.object, row.tenant) for row in rows]


async def test_an_event_and_a_line_of_the_audit_log(folder: Path) -> None:
    manager = Told(folder)
    lease = await manager.set_up()
    node = lease.grants[0].node
    watcher = manager.pool.bus.watch()
    for _ in range(3):  # a node says it until it is answered
        await manager.tell(node, liar_of(lease))
    assert await manager.audited() == [("s1", "red")]
    event = await watcher.next(10.0)
    assert event is not None
    assert (event.event.kind, event.event.object, event.event.tenant) == (
        "session.liar",
        "s1",
        "red",
    )
    assert event.event.detail == {
        "node": node,
        "lease": lease.id,
        "gpu": lease.grants[0].gpu,
        "cause": "memory",
        "reason": "it has 88MiB and may have 64MiB",
    }
    await manager.pool.close()


async def test_a_node_speaks_of_its_own_grants_alone(folder: Path) -> None:
    manager = Told(folder)
    lease = await manager.set_up()
    node = lease.grants[0].node
    other = next(name for name in ("one", "two") if name != node)
    await manager.tell(other, liar_of(lease))
    await manager.tell(node, liar_of(lease, gpu=f"GPU-{other}"))
    await manager.tell(node, liar_of(lease).model_copy(update={"lease": "no-such"}))
    assert await manager.audited() == []
    await manager.pool.close()


async def test_a_node_that_makes_up_liars_is_not_heard_without_end(folder: Path) -> None:
    manager = Told(folder)
    lease = await manager.set_up()
    node = lease.grants[0].node
    for batch in range(3):
        made_up = [liar_of(lease, f"s{batch}-{i}") for i in range(MOST_LIARS)]
        await manager.tell(node, *made_up)
    assert len(await manager.audited()) == MOST_LIARS
    await manager.pool.close()
