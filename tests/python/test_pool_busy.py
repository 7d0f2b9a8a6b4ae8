"""For how long leases keep GPUs busy: counted on nodes, added up by the manager."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gpupool_common.lease import LeaseState
from gpupool_common.node_protocol import (
    Apply,
    BusyTime,
    Heartbeat,
    OrderedGrant,
    Orders,
    Report,
    ReportedGpu,
    Told,
)
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.pool import Pool
from gpupool_manager.records import Grant, Lease, Token, Usage
from gpupool_manager.store import Store
from gpupool_manager.usage import HOUR
from gpupool_server.pool_busy import BusyCounts
from gpupool_server.pool_member import PoolMember
from server_harness import FakeBoard, MakeOffice, Office

MS = 1_000_000
WANT = {
    "gpus": 1,
    "memory_bytes": 64 * MIB,
    "share_permille": 500,
    "policy": "binpack",
    "hosts": "any",
    "model": None,
    "capability": None,
    "labels": {},
}


# On a node ------------------------------------------------------------------------------------


def board(office: Office) -> FakeBoard:
    return office.boards.of(0)


def uuid_of(office: Office) -> str:
    gpu = office.gpus.get(0)
    assert gpu is not None
    return gpu.device.uuid


def told(*grants: OrderedGrant) -> Told:
    orders = Apply(
        generation="g",
        at=1.0,
        mode="open",
        grants=list(grants),
        gpus=[],
        keys=["0a" * 32],
        offline_seconds=900.0,
    )
    return Told(number=1, now=1.0, orders=Orders(next_heartbeat=1, commands=[orders]))


def grant(office: Office, lease: str = "lease-1") -> OrderedGrant:
    return OrderedGrant(
        lease=lease,
        tenant="red",
        ordinal=0,
        gpu=uuid_of(office),
        memory_bytes=64 * MIB,
        share_permille=500,
        priority=0,
    )


def work(office: Office, milliseconds: float, name: str = "red/lease-1") -> None:
    """The group is on the board, and has had so much in all since it is."""
    from gpupool_server.board import Grant as BoardGrant

    board(office).put(name, BoardGrant())
    board(office).busy_ns[name] = int(milliseconds * MS)


def drop(office: Office, name: str = "red/lease-1") -> None:
    """Its last session has ended."""
    gpu = office.gpus.get(0)
    assert gpu is not None
    gpu.drop(name)
    board(office).busy_ns.pop(name, None)


def said(busy: list[BusyTime]) -> dict[str, int]:
    return {each.lease: each.busy_ms for each in busy}


async def test_a_count_only_grows(make_office: MakeOffice) -> None:
    office = await make_office()
    counts = BusyCounts(office.gpus, {})
    counts.expect({"lease-1": "red"})
    assert counts.read() == []
    work(office, 5.5)
    assert said(counts.read()) == {"lease-1": 5}
    assert said(counts.read()) == {"lease-1": 5}  # until the manager has it
    counts.told(counts.read(), ["lease-1"])
    assert counts.read() == []
    drop(office)
    work(office, 2.0)  # a new session, a new account
    assert said(counts.read()) == {"lease-1": 7}
    work(office, 3.5)
    assert said(counts.read()) == {"lease-1": 9}


async def test_what_ended_between_two_heartbeats_counts(make_office: MakeOffice) -> None:
    office = await make_office()
    counts = BusyCounts(office.gpus, {})
    counts.expect({"lease-1": "red"})
    for _ in range(3):
        work(office, 4.0)
        drop(office)
    found = counts.read()
    assert said(found) == {"lease-1": 12}
    counts.told(found, [])  # the lease has ended meanwhile
    assert counts.totals == {}
    gpu = office.gpus.get(0)
    assert gpu is not None and gpu.kept_busy_ns == {}


async def test_other_groups_are_not_counted(make_office: MakeOffice) -> None:
    office = await make_office()
    counts = BusyCounts(office.gpus, {})
    counts.expect({"lease-1": "red"})
    work(office, 9.0, "default")
    work(office, 9.0, "default/lease-1")
    work(office, 9.0, "red")
    assert counts.read() == []


async def test_the_next_server_counts_on(make_office: MakeOffice) -> None:
    office = await make_office()
    member = PoolMember("here", office.run_dir.path, office.gpus, office.supervisor)
    member.apply(told(grant(office)))
    work(office, 10.0)
    beat = member.heartbeat()
    assert said(beat.busy) == {"lease-1": 10}
    member.heard(beat)
    after = PoolMember("here", office.run_dir.path, office.gpus, office.supervisor)
    assert said(after.heartbeat().busy) == {"lease-1": 10}
    work(office, 12.0)
    assert said(after.heartbeat().busy) == {"lease-1": 12}


# In the manager -------------------------------------------------------------------------------


class Manager:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'manager.db'}"
        self.pool: Pool
        self.tokens: dict[str, Token] = {}

    async def start(self) -> None:
        self.pool = Pool(Store(self.url))
        await self.pool.open()

    async def set_up(self) -> Lease:
        await self.start()
        pool = self.pool
        for node in ("one", "two"):
            await self.report(node)
        await pool.commands.do(lambda transaction: pool.tenancy.create(transaction, "red", "", {}))
        return await pool.commands.do(
            lambda transaction: pool.leases.admit(
                transaction, LeaseRequest("red", PlacementRequest.parse(WANT))
            )
        )

    async def report(self, node: str) -> None:
        gpu = ReportedGpu(
            uuid=f"GPU-{node}",
            index=0,
            model="a",
            compute_capability="9.0",
            memory_bytes=1024 * MIB,
        )
        report = Report(address="tcp://h:1", server_version="0", gpus=[gpu])
        pool = self.pool
        token, _ = await pool.commands.do(
            lambda transaction: pool.tenancy.create_token(transaction, "node", node=node)
        )
        self.tokens[node] = token
        await pool.commands.do(
            lambda transaction: pool.fleet.report(transaction, token, node, report)
        )
        pool.fleet.orders(node, "", 0.0)

    def beat(self, lease: Lease, busy_ms: int, node: str = "", gpu: str = "") -> None:
        grant = lease.grants[0]
        node = node or grant.node
        self.pool.fleet.orders(node, "", 0.0)
        busy = [BusyTime(lease=lease.id, gpu=gpu or grant.gpu, busy_ms=busy_ms)]
        self.pool.fleet.heartbeat(self.tokens[node], node, Heartbeat(busy=busy), time.time())

    async def usage(self) -> float:
        """All that is written down of red's busy time."""
        await self.pool.commands.do(self.pool._flush)
        rows: list[Usage] = (await self.pool.store.load()).usage
        assert all(row.hour <= time.time() // HOUR for row in rows)
        return round(sum(row.busy_seconds for row in rows if row.tenant == "red"), 6)


async def test_what_is_new_goes_to_the_tenant(folder: Path) -> None:
    manager = Manager(folder)
    lease = await manager.set_up()
    manager.beat(lease, 1500)
    manager.beat(lease, 1500)
    manager.beat(lease, 2500)
    assert await manager.usage() == 2.5
    assert lease.grants[0].busy_ms == 2500
    await manager.pool.close()


async def test_only_its_node_speaks_of_a_grant(folder: Path) -> None:
    manager = Manager(folder)
    lease = await manager.set_up()
    other = next(name for name in ("one", "two") if name != lease.grants[0].node)
    manager.beat(lease, 9000, node=other)
    manager.beat(lease, 9000, gpu=f"GPU-{other}")
    assert await manager.usage() == 0.0
    await manager.pool.close()


async def test_the_last_of_an_ended_lease_still_counts(folder: Path) -> None:
    manager = Manager(folder)
    lease = await manager.set_up()
    manager.beat(lease, 1000)
    pool = manager.pool
    await pool.commands.do(
        lambda transaction: pool.leases.end(transaction, lease, LeaseState.RELEASED, "released")
    )
    manager.beat(lease, 1250)
    assert await manager.usage() == 1.25
    assert await manager.usage() == 1.25
    manager.beat(lease, 9000)  # too late: it is forgotten
    assert await manager.usage() == 1.25
    grants: list[Grant] = (await pool.store.find_leases(_all_leases()))[0].grants
    assert [grant.busy_ms for grant in grants] == [1250]
    await pool.close()


def _all_leases() -> Any:
    from sqlalchemy import select

    from gpupool_manager import tables

    return select(tables.leases)


async def test_nothing_is_counted_twice_after_a_crash(folder: Path) -> None:
    manager = Manager(folder)
    lease = await manager.set_up()
    manager.beat(lease, 1000)
    assert await manager.usage() == 1.0
    manager.beat(lease, 3000)  # not written down before the crash
    await manager.pool.commands.close()
    await manager.pool.store.close()
    await manager.start()
    manager.beat(manager.pool.ledger.leases[lease.id], 3500)
    assert await manager.usage() == 3.5
    await manager.pool.close()


async def test_a_node_that_lost_its_count_starts_anew(folder: Path) -> None:
    manager = Manager(folder)
    lease = await manager.set_up()
    for busy_ms in (1000, 200, 700):
        manager.beat(lease, busy_ms)
    assert await manager.usage() == 1.5
    await manager.pool.close()
