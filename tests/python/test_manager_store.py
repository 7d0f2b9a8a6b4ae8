"""The database: what is written is read again, all of it or nothing, by one manager only."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import select, text

from gpupool_common.errors import ConfigError
from gpupool_common.lease import LeaseState
from gpupool_manager import tables
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.problems import Problem
from gpupool_manager.records import (
    Answer,
    AuditEntry,
    Gpu,
    Grant,
    Lease,
    Node,
    Note,
    Quota,
    Record,
    Tenant,
    Token,
    Usage,
)
from gpupool_manager.store import (
    COUNTED,
    SILENCE_SECONDS,
    Dispossessed,
    Loaded,
    Store,
    StoreError,
    check_url,
)
from gpupool_manager.transaction import Actor, Transaction
from manager_databases import Postgres
from manager_world import World

NOW = 1_800_000_000.25


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = Store(database)
    await opened.open()
    yield opened
    await opened.close()


REQUEST = PlacementRequest(1, 1000, 50)


def everything() -> list[Record]:
    """One record of each kind, with awkward values."""
    request = PlacementRequest(2, None, 100, labels=(("größe", "x'; --"),), capability=(9, 0))
    grants = [Grant("lease-1", n, f"GPU-{n}", "node-1", 1 << 30, 1, n == 1) for n in (0, 1)]
    return [
        Tenant("a", "Größe\n\u2603", False, NOW),
        Quota("a", 1, None, 1 << 40, 0, 7, ["NVIDIA *"], {"shares": 99}, 3),
        Token("token-1", "0" * 64, "tenant", "a", None, "", NOW, NOW + 1, None),
        Node("node-1", "tcp://h:1", "1", {"zone": "b"}, "cordoned", True, "token-1", NOW, NOW),
        Gpu("GPU-0", "node-1", 0, "m", "9.0", 1 << 30, "0", False, "share", 20, 90, "XID 79", 2),
        Lease(
            "lease-1",
            "a",
            LeaseState.ACTIVE,
            request,
            1,
            60.5,
            "",
            NOW,
            NOW,
            NOW,
            NOW + 60,
            None,
            "",
            "r-1",
            {"rule": "r"},
            grants,
        ),
        Lease(
            "lease-2",
            "a",
            LeaseState.QUEUED,
            request,
            -1,
            60.0,
            "label",
            NOW,
            NOW + 9,
            reason="full",
        ),
        Usage("a", int(NOW // 3600), 1.5, 2.25, 1e15, 3),
        Answer("a", "key", "f" * 64, 201, "{}", None, NOW),
        Note("n", "v"),
    ]


def transaction_of(*records: Record) -> Transaction:
    transaction = Transaction(NOW, Actor("operator", "request-9"))
    for record in records:
        transaction.put(record)
        for grant in record.grants if isinstance(record, Lease) else ():
            transaction.put(grant)
    return transaction


def flat(loaded: Loaded) -> list[Record]:
    notes = [Note(name, value) for name, value in loaded.notes.items() if name != "owner"]
    return [
        *loaded.tenants,
        *loaded.quotas,
        *loaded.tokens,
        *loaded.nodes,
        *loaded.gpus,
        *loaded.leases,
        *loaded.usage,
        *loaded.answers,
        *notes,
    ]


async def test_what_is_written_is_read_again(store: Store) -> None:
    transaction = transaction_of(*everything())
    transaction.log("thing.done", "thing", "a", number=1)
    await store.commit(transaction)
    assert flat(await store.load()) == everything()
    rows = await store.fetch(select(tables.audit))
    found = AuditEntry(*[getattr(rows[0], f.name) for f in dataclasses.fields(AuditEntry)])
    assert found == AuditEntry(
        NOW, "operator", "thing.done", "thing", "a", {"number": 1}, "request-9"
    )


async def test_a_record_is_changed_and_dropped_by_its_key(store: Store) -> None:
    await store.commit(transaction_of(*everything()))
    quota, lease = (
        Quota("a", None, 5),
        Lease("lease-2", "a", LeaseState.CANCELLED, REQUEST, 0, 1, "", NOW, NOW),
    )
    transaction = transaction_of(quota, lease)
    for record in everything():
        if isinstance(record, Gpu | Note | Token):
            transaction.drop(record)
    await store.commit(transaction)
    loaded = await store.load()
    assert loaded.quotas == [quota]
    assert [lease.id for lease in loaded.leases] == ["lease-1"]  # the other is history
    assert (loaded.gpus, loaded.tokens, loaded.notes.get("n")) == ([], [], None)
    history = await store.find_leases(select(tables.leases).order_by(tables.leases.c.id))
    assert [(one.id, len(one.grants)) for one in history] == [("lease-1", 2), ("lease-2", 0)]


async def test_more_rows_than_a_statement_takes_are_written(store: Store) -> None:
    await store.commit(transaction_of(*[Tenant(f"t-{n}", "", False, NOW) for n in range(2500)]))
    assert len((await store.load()).tenants) == 2500


async def test_a_unit_is_written_whole_or_not_at_all(store: Store) -> None:
    first, second = everything()[:2]
    bad = Token("token-1", "0" * 64, "tenant", "nobody", None, "", NOW, None)
    transaction = transaction_of(first, second, bad)
    transaction.log("never", "seen")
    with pytest.raises(StoreError, match=r"(?i)^the database: .*foreign key[^\n]*$"):
        await store.commit(transaction)
    assert flat(await store.load()) == []
    assert await store.fetch(select(tables.audit)) == []


async def test_what_changes_a_record_after_its_unit_was_sealed_is_not_written(store: Store) -> None:
    tenant = Tenant("a", "", False, NOW)
    transaction = transaction_of(tenant)
    transaction.seal()
    tenant.disabled = True
    await store.commit(transaction)
    assert (await store.load()).tenants == [Tenant("a", "", False, NOW)]


async def test_usage_that_can_still_grow_is_loaded(store: Store) -> None:
    rows = [Usage("a", hour) for hour in (100, 101, 102)]
    await store.commit(transaction_of(*rows, Note(COUNTED, repr(101 * 3600.0 + 7))))
    assert (await store.load()).usage == rows[1:]


async def test_what_is_old_is_purged(store: Store) -> None:
    old = Lease("lease-0", "a", LeaseState.RELEASED, REQUEST, 0, 1, "", NOW, NOW, ended=NOW - 10)
    old.grants = [Grant("lease-0", 0, "GPU-0", "node-1", 1, 1)]
    transaction = transaction_of(old, Answer("a", "k", "", 200, "", None, NOW - 10))
    transaction.log("seen", "thing")
    await store.commit(transaction)
    await store.commit(transaction_of(*everything()))
    await store.purge(NOW - 5, NOW + 5, NOW - 5)
    assert flat(await store.load()) == everything()
    assert await store.fetch(select(tables.audit)) == []
    assert len(await store.fetch(select(tables.grants))) == 2


# One manager at a time ---------------------------------------------------------------------


async def test_a_second_manager_is_refused_until_the_first_has_gone(database: str) -> None:
    first, second = Store(database), Store(database)
    await first.open()
    for _ in range(2):
        with pytest.raises(StoreError, match="^another manager uses th[^\n]*$"):
            await second.open()
    assert await first.still_mine()
    await first.close()
    await second.open()
    assert await second.still_mine()
    await second.close()


async def test_who_lost_its_lock_can_write_nothing_once_another_has_it(
    postgres: Postgres,
) -> None:
    name = await postgres.new_database()
    first, second = Store(postgres.url(name)), Store(postgres.url(name))
    await first.open()
    await _break_connections(postgres, name)
    await second.open()
    await second.commit(transaction_of(Tenant("b", "", False, NOW)))
    with pytest.raises(Dispossessed):
        await first.commit(transaction_of(Tenant("a", "", False, NOW)))
    with pytest.raises(Dispossessed):
        await first.purge(NOW + 1, NOW + 1, NOW + 1)
    assert [tenant.name for tenant in (await second.load()).tenants] == ["b"]
    assert not await first.still_mine()
    assert await second.still_mine()
    await first.close()
    await second.close()


async def test_a_transaction_of_who_stands_still_keeps_nobody(postgres: Postgres) -> None:
    """Stopped in the midst of one, it had the row that says whose the database is."""
    name = await postgres.new_database()
    first, second = (Store(postgres.url(name), yields=True) for _ in range(2))
    await first.open()
    async with first.engine.connect() as connection:
        await connection.begin()
        await first._check_owner(connection)
        await first._drop_lock()
        async with asyncio.timeout(60):
            await second.open(wait=True)
        await connection.invalidate()
    await second.commit(transaction_of(Tenant("b", "", False, NOW)))
    await first.close()
    await second.close()


async def test_a_manager_that_is_alone_may_take_its_time(postgres: Postgres) -> None:
    """A transaction that a slow machine interrupts for long is not lost."""
    name = await postgres.new_database()
    for yields, wanted in ((False, 0), (True, 1000 * SILENCE_SECONDS)):
        store = Store(postgres.url(name), yields=yields)
        await store.open()
        async with store.engine.connect() as connection:
            found = await connection.scalar(
                text(
                    "SELECT setting::int FROM pg_settings"
                    " WHERE name = 'idle_in_transaction_session_timeout'"
                )
            )
        assert found == wanted
        await store.close()


async def test_who_stands_by_asks_for_the_lock_by_one_connection(postgres: Postgres) -> None:
    name = await postgres.new_database()
    first, second = Store(postgres.url(name)), Store(postgres.url(name))
    await first.open()
    opening = asyncio.create_task(second.open(wait=True))
    await first.commit(transaction_of(Tenant("a", "", False, NOW)))
    while (asking := second._asking) is None:
        await asyncio.sleep(0.001)
    assert await second.peek(COUNTED) is None and await second.peek("owner") is not None
    assert not opening.done()
    await first.close()
    await asyncio.wait_for(opening, 60)
    assert second._lock_connection is asking
    assert [tenant.name for tenant in (await second.load()).tenants] == ["a"]
    await second.close()


async def test_a_lost_lock_is_taken_again(postgres: Postgres) -> None:
    name = await postgres.new_database()
    first, second = Store(postgres.url(name)), Store(postgres.url(name))
    await first.open()
    await _break_connections(postgres, name)
    assert await first.still_mine()
    with pytest.raises(Dispossessed):
        await second.open()
    await first.commit(transaction_of(Tenant("a", "", False, NOW)))
    await first.close()


async def _locks(postgres: Postgres, name: str) -> int:
    """How many managers have the lock of a database."""
    found = await postgres.fetch(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
        f" WHERE locktype = 'advisory' AND granted AND datname = '{name}'"
    )
    return int(found)


async def test_a_manager_takes_its_lock_again_after_its_database_restarted(
    postgres: Postgres,
) -> None:
    """It went on without, for a minute at least, and a second manager started beside it."""
    name = await postgres.new_database()
    world = await World(postgres.url(name)).open()
    world.pool.run_clock()
    postgres.stop()
    postgres.start()
    assert await _locks(postgres, name) in (0, 1)
    deadline = time.monotonic() + 30
    while await _locks(postgres, name) == 0:  # nobody asks for anything meanwhile
        assert time.monotonic() < deadline, "the lock was not taken again"
        await asyncio.sleep(0.1)
    second = Store(postgres.url(name))
    with pytest.raises(Dispossessed):
        await second.open()
    await world.tenant("a")
    assert not world.pool.dispossessed.is_set()
    await world.close()


async def test_nothing_is_granted_without_the_lock(postgres: Postgres) -> None:
    name = await postgres.new_database()
    first, second = Store(postgres.url(name)), Store(postgres.url(name))
    await first.open()
    await _break_connections(postgres, name)
    # Its next commit has the lock back before it is made.
    await first.commit(transaction_of(Tenant("a", "", False, NOW)))
    assert await _locks(postgres, name) == 1
    await _break_connections(postgres, name)
    await second.open()
    with pytest.raises(Dispossessed):
        await first.commit(transaction_of(Tenant("b", "", False, NOW)))
    assert [tenant.name for tenant in (await second.load()).tenants] == ["a"]
    await first.close()
    await second.close()


async def test_a_database_that_stands_still_blocks_nobody_for_long(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by a signal, it accepted connections and said nothing: every request hung."""
    monkeypatch.setattr("gpupool_manager.store.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("gpupool_manager.command_queue.STUCK_SECONDS", 0.2)
    world = await World(postgres.url(await postgres.new_database())).open()
    await world.tenant("a")
    await world.join("node-1")
    lease = await world.ask("a")
    postgres.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            first = asyncio.create_task(world.ask("a"))
            await asyncio.sleep(0.4)
            for attempt in (world.ask("a"), world.end(lease), world.tenant("b")):
                with pytest.raises(Problem) as refusal:  # at once: nobody waits behind the first
                    await attempt
                assert refusal.value.status == 503
            with pytest.raises(Problem) as refusal:
                await first
            assert refusal.value.status == 503
            with pytest.raises(StoreError):
                await world.pool.store.fetch(select(tables.tenants))
            assert await world.pool.store.still_mine()
        # What needs no database goes on.
        world.pool.leases.renew(lease, world.clock.now)
        assert lease.state == "active"
    finally:
        postgres.signal(signal.SIGCONT)
    assert await _until_it_answers(world) == [lease.id]
    assert (await world.ask("a")).state == "active"
    await world.close()


async def _break_connections(postgres: Postgres, name: str) -> None:
    await postgres.execute(
        f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
    )


# A database that is not there --------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense", ""])
def test_an_address_that_will_not_do_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        check_url(url)
    with pytest.raises(ConfigError, match="^database: "):
        Store(url)


async def test_a_file_that_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/pool.db: cannot be opened: [^\n]*$"):
        await Store(f"sqlite:///{tmp_path}/nowhere/pool.db").open()
    (tmp_path / "text").write_text("this is no database, whatever its name says\n" * 99)
    with pytest.raises(StoreError, match=r"^the database: [^\n]*not a database$"):
        await Store(f"sqlite:///{tmp_path}/text").open()


async def test_a_server_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    store = Store(f"postgresql://gpupool@/gpupool?host={tmp_path}")
    with pytest.raises(StoreError, match=r"^the database: [^\n]+$"):
        await store.open()


async def test_only_its_owner_can_read_the_files(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/pool.db")
    await store.open()
    await store.commit(transaction_of(*everything()))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"pool.db", "pool.db.lock", "pool.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    await store.close()


# A database that goes away -----------------------------------------------------------------


async def test_what_cannot_be_written_is_not_done(database: str) -> None:
    world = await World(database).open()
    await world.tenant("a")
    await world.join("node-1")
    lease = await world.ask("a")
    before = world.pool.ledger.index.slots["GPU-node-1-0"].used_bytes

    async def fail(transaction: Transaction) -> None:
        raise StoreError("the disk is full")

    commit = world.pool.store.commit
    world.pool.store.commit = fail  # type: ignore[method-assign]
    for operation in (world.ask("a"), world.end(lease), world.tenant("b"), world.join("node-2")):
        with pytest.raises(Problem) as refusal:
            await operation
        assert refusal.value.status == 503
    world.pool.store.commit = commit  # type: ignore[method-assign]
    ledger = world.pool.ledger
    assert (set(ledger.leases), set(ledger.tenants)) == ({lease.id}, {"a"})
    assert ledger.index.slots["GPU-node-1-0"].used_bytes == before
    assert set(ledger.nodes) == {"node-1"}
    assert (await world.ask("a")).state == "active"
    await world.close()


async def test_a_manager_outlives_its_database(postgres: Postgres) -> None:
    name = await postgres.new_database()
    world = await World(postgres.url(name)).open()
    await world.tenant("a")
    await world.join("node-1")
    lease = await world.ask("a")
    postgres.stop()
    try:
        with pytest.raises(Problem) as refusal:
            await world.ask("a")
        assert (refusal.value.status, refusal.value.code) == (503, "unavailable")
        assert await world.pool.store.still_mine()  # nobody else can have it either
        with pytest.raises(Problem) as refusal:
            await world.end(lease)
        assert refusal.value.status == 503
    finally:
        postgres.start()
    assert await _until_it_answers(world) == [lease.id]
    assert await world.pool.store.still_mine()
    assert (await world.ask("a")).state == "active"
    await world.close()


async def test_a_manager_stops_while_its_database_is_away(postgres: Postgres) -> None:
    world = await World(postgres.url(await postgres.new_database())).open()
    postgres.stop()
    try:
        with pytest.raises(Problem):
            await world.tenant("a")
        await world.close()
    finally:
        postgres.start()


async def _until_it_answers(world: World) -> list[str]:
    """The leases that the pool has, once its database is back; the test's time-out bounds it."""
    while True:
        try:
            await world.pool.commands.settle()
            return sorted(world.pool.ledger.leases)
        except Problem:
            await asyncio.sleep(0.05)
