"""The database: opened, migrated and locked; units committed, everything loaded."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Select, Table, event, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gpupool_common import logs
from gpupool_common.errors import ConfigError, GpupoolError, InstallError
from gpupool_common.lease import LIVE
from gpupool_common.protocol import one_line
from gpupool_manager import tables
from gpupool_manager.extras import not_installed
from gpupool_manager.migrate import migrate
from gpupool_manager.records import (
    Admission,
    Answer,
    Gpu,
    Grant,
    Lease,
    Node,
    Note,
    Quota,
    Record,
    Reservation,
    Tenant,
    Token,
    Usage,
)
from gpupool_manager.sqlite import sqlite_engine
from gpupool_manager.tables import TABLES
from gpupool_manager.transaction import Transaction, columns_of, keys_of, row_of
from gpupool_manager.usage import HOUR

R = TypeVar("R", bound=Record)

#: Told apart from other users of a PostgreSQL server's advisory locks: "gpupool" in ASCII.
_LOCK = 0x677075706F6F6C

#: The note that says whose the database is; every transaction checks it.
OWNER = "owner"

#: The note that says until when usage was counted.
COUNTED = "usage-counted-until"

#: How long PostgreSQL may take to answer one question, or to let us in.
ANSWER_SECONDS = 5.0
#: How long one transaction, or everything that is loaded, may take.
MOST_SECONDS = 30.0

#: How often who stands by tries to get the lock.
STANDBY_SECONDS = 0.5

#: After so long in silence PostgreSQL lets go of what a manager that yields has there, its lock and
#: rows of transactions, whether its process has stopped, its machine has gone or its network is
#: cut.
SILENCE_SECONDS = 5
_SILENCE = (
    "SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3;"
    f" SET idle_in_transaction_session_timeout = {SILENCE_SECONDS * 1000}"
)
#: Of the lock, which is used once a second: PostgreSQL 14 and newer have it.
_IDLE_SINCE = 140000
_IDLE = f"SET idle_session_timeout = {SILENCE_SECONDS * 1000}"

#: PostgreSQL takes at most 32767 parameters a statement.
_MOST_ROWS = 1000


class StoreError(GpupoolError):
    """The database does not answer, or not as it should."""


class Dispossessed(StoreError):
    """The database is another manager's."""


@dataclass(slots=True)
class Loaded:
    """Everything that the manager keeps in memory."""

    tenants: list[Tenant]
    quotas: list[Quota]
    tokens: list[Token]
    nodes: list[Node]
    gpus: list[Gpu]
    leases: list[Lease]
    usage: list[Usage]
    answers: list[Answer]
    admissions: list[Admission] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)


def check_url(value: str) -> URL:
    """The database's address with our drivers; ValueError unless it is SQLite or PostgreSQL."""
    try:
        url = make_url(value)
    except (ArgumentError, ValueError):
        raise ValueError("no address of a database") from None
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ValueError("a database in memory would be lost")
        return url.set(drivername="sqlite+aiosqlite")
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+asyncpg")
    raise ValueError("no such kind of database")


class Store:
    """One database, for one manager at a time.

    ``yields``: who stands still gives it up to another manager. It is not for one that is alone,
    which would lose a transaction for nothing where its machine is slow.
    """

    def __init__(self, url: str, yields: bool = False) -> None:
        try:
            self.url = check_url(url)
        except ValueError as error:
            raise ConfigError(f"database: {error}") from None
        self._yields = yields
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine: AsyncEngine | None = None
        self._lock_file: int | None = None
        self._lock_connection: AsyncConnection | None = None
        #: Of who stands by: it has no lock, and asks for it again.
        self._asking: AsyncConnection | None = None
        self._holding = asyncio.Lock()
        #: Of a file nothing is to be waited for but the disk, and that cannot be given up.
        self._most = None if self.is_sqlite else MOST_SECONDS
        self._log = logs.get("store")
        self._owner = secrets.token_hex(8)
        #: Whether a transaction found the database to be another manager's.
        self.dispossessed = False

    @property
    def engine(self) -> AsyncEngine:
        if self._engine is None:
            raise RuntimeError("the store is not open")
        return self._engine

    async def open(self, wait: bool = False) -> bool:
        """Lock and migrate; whether the schema changed. GpupoolError says what is wrong.

        ``wait``: for ever, as long as another manager has the lock of a PostgreSQL, or that does
        not answer.
        """
        try:
            with self._explained():
                if self.is_sqlite:
                    self._lock_sqlite()
                self._engine = self._make_engine()
            told = ""
            while True:
                try:
                    return await self._possess()
                except StoreError as error:
                    if not wait:
                        raise
                    if str(error) != told:
                        self._log.info("stands by", reason=str(error))
                    told = str(error)
                await self._drop_lock()  # of a database that we cannot have as we need it
                await asyncio.sleep(STANDBY_SECONDS)
        except BaseException:
            await self.close()
            raise

    async def _possess(self) -> bool:
        """Have the lock and the database as we need it; whether the schema changed."""
        with self._explained():
            if not self.is_sqlite:
                await self._lock_postgresql()
            async with self.engine.begin() as connection:
                migrated: bool = await connection.run_sync(migrate)
                await self._take_over(connection)
                return migrated

    async def peek(self, note: str) -> str | None:
        """A note of a PostgreSQL that another manager may have; None: there is none."""
        with self._explained():
            engine = create_async_engine(self.url, poolclass=NullPool, connect_args=_patience())
            async with engine.connect() as connection:
                if await connection.scalar(select(func.to_regclass(tables.notes.name))) is None:
                    return None
                question = select(tables.notes.c.value).where(tables.notes.c.name == note)
                found: str | None = await connection.scalar(question)
                return found

    async def close(self) -> None:
        for connection in (self._lock_connection, self._asking):
            if connection is not None:
                with contextlib.suppress(SQLAlchemyError, OSError):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await connection.close()
        if self._engine is not None:
            with contextlib.suppress(SQLAlchemyError, OSError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._engine.dispose()
        if self._lock_file is not None:
            os.close(self._lock_file)
        self._lock_file = self._engine = self._lock_connection = self._asking = None

    def _make_engine(self) -> AsyncEngine:
        try:
            if self.is_sqlite:
                return sqlite_engine(self.url)
            engine = create_async_engine(
                self.url,
                pool_pre_ping=True,
                pool_size=5,
                pool_timeout=ANSWER_SECONDS,
                connect_args=_patience(),
            )
            if self._yields:
                event.listen(engine.sync_engine, "connect", _set_silence)
            return engine
        except ImportError as error:
            raise InstallError(not_installed(error.name or "")) from None

    def _lock_sqlite(self) -> None:
        path = Path(self.url.database or "")
        try:
            # SQLite gives the files that it makes beside the database the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._lock_file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"another manager uses the database {path}") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened: {error.strerror}") from None

    async def _lock_postgresql(self) -> None:
        connection, self._asking = self._asking, None
        if connection is None:
            connection = await self._connect_alone()
        # Until it is known whether it has the lock: an answer that is late may say so.
        self._lock_connection = connection
        try:
            got = await connection.scalar(select(func.pg_try_advisory_lock(_LOCK)))
            version = int(await connection.scalar(text("SHOW server_version_num")))
            if got and self._yields and version >= _IDLE_SINCE:
                await connection.execute(text(_IDLE))
        except BaseException:
            await self._drop_lock()
            raise
        if not got:
            self._lock_connection, self._asking = None, connection
            raise Dispossessed("another manager uses this database")

    async def _connect_alone(self) -> AsyncConnection:
        """Outside the pool: the lock is held for as long as this connection is open."""
        engine = create_async_engine(self.url, poolclass=NullPool, connect_args=_patience())
        if self._yields:
            event.listen(engine.sync_engine, "connect", _set_silence)
        connection = await engine.connect()
        return await connection.execution_options(isolation_level="AUTOCOMMIT")

    async def _take_over(self, connection: AsyncConnection) -> None:
        """Whoever had the lock before can write nothing from now on, even if it does not know."""
        statement = self._upsert(tables.notes, Note)
        await connection.execute(statement, [row_of(Note(OWNER, self._owner))])

    async def _check_owner(self, connection: AsyncConnection) -> None:
        if self.is_sqlite:
            return  # the lock of a file is never lost
        question = select(tables.notes.c.value).where(tables.notes.c.name == OWNER)
        question = question.with_for_update(read=True)
        if await connection.scalar(question) != self._owner:
            self.dispossessed = True
            raise Dispossessed("another manager uses this database")

    async def still_mine(self) -> bool:
        """Whether no other manager has taken the database over.

        A lost connection loses PostgreSQL's lock, and then whoever comes first gets it. While
        the database does not answer there is nothing to be lost: no commit gets through.
        """
        if self.is_sqlite:
            return self._lock_file is not None
        try:
            with self._explained():
                async with asyncio.timeout(2 * ANSWER_SECONDS):
                    await self._hold()
        except StoreError as error:
            return not isinstance(error, Dispossessed)
        return True

    async def _hold(self) -> None:
        """Have the lock, or get it back; Dispossessed if another manager has it.

        Nothing is written without it: its connection is asked before every commit.
        """
        if self.is_sqlite:
            return
        async with self._holding:
            if self._lock_connection is not None:
                with contextlib.suppress(SQLAlchemyError, OSError):
                    await self._lock_connection.scalar(text("SELECT 1"))
                    return
                await self._drop_lock()
            await self._lock_postgresql()
            async with self.engine.begin() as connection:
                await self._check_owner(connection)
            self._log.warning("the database was unreachable; this manager has its lock again")

    async def _drop_lock(self) -> None:
        """Let go of a connection that may not even answer that."""
        connection, self._lock_connection = self._lock_connection, None
        if connection is None:
            return
        with contextlib.suppress(SQLAlchemyError, OSError):
            async with asyncio.timeout(1.0):
                await connection.invalidate()
                await connection.close()

    async def commit(self, transaction: Transaction) -> None:
        """Write all of a transaction, or nothing and StoreError."""
        if transaction.empty:
            return
        transaction.seal()
        with self._explained():
            async with asyncio.timeout(self._most), self._begun() as connection:
                await self._check_owner(connection)
                for kind in reversed(TABLES):
                    await self._delete(connection, kind, transaction)
                for kind in TABLES:
                    await self._write(connection, kind, transaction)
                if transaction.audit:
                    rows = [row_of(entry) for entry in transaction.audit]
                    await connection.execute(tables.audit.insert(), rows)

    @contextlib.asynccontextmanager
    async def _begun(self) -> AsyncIterator[AsyncConnection]:
        await self._hold()
        async with self.engine.begin() as connection:
            yield connection

    async def _delete(
        self, connection: AsyncConnection, kind: type[Record], transaction: Transaction
    ) -> None:
        gone = [key for key, row in transaction.rows.get(kind, {}).items() if row is None]
        names = keys_of(kind)
        table = TABLES[kind]
        for key in gone:
            statement = table.delete()
            for name, value in zip(names, key, strict=True):
                statement = statement.where(table.c[name] == value)
            await connection.execute(statement)

    async def _write(
        self, connection: AsyncConnection, kind: type[Record], transaction: Transaction
    ) -> None:
        rows = [row for row in transaction.rows.get(kind, {}).values() if row is not None]
        if rows:
            statement = self._upsert(TABLES[kind], kind)
            for start in range(0, len(rows), _MOST_ROWS):
                await connection.execute(statement, rows[start : start + _MOST_ROWS])

    def _upsert(self, table: Table, kind: type[Record]) -> Any:
        insert: Any = self._insert(table)
        keys = keys_of(kind)
        changed = {name: insert.excluded[name] for name in columns_of(kind) if name not in keys}
        return insert.on_conflict_do_update(index_elements=keys, set_=changed)

    def _insert(self, table: Table) -> Any:
        # Each of the two takes its time to import, and one is enough.
        if self.is_sqlite:
            from sqlalchemy.dialects import sqlite

            return sqlite.insert(table)
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)

    async def load(self) -> Loaded:
        """Everything that is kept in memory, as one consistent picture."""
        with self._explained():
            async with asyncio.timeout(self._most), self.engine.connect() as connection:
                if not self.is_sqlite:
                    await connection.execution_options(isolation_level="REPEATABLE READ")
                leases = select(tables.leases).where(tables.leases.c.state.in_(LIVE))
                live = {
                    lease.id: lease
                    for lease in await _all(connection, leases.order_by(tables.leases.c.id), Lease)
                }
                grants = (
                    select(tables.grants)
                    .join(tables.leases, tables.leases.c.id == tables.grants.c.lease)
                    .where(tables.leases.c.state.in_(LIVE))
                    .order_by(tables.grants.c.lease, tables.grants.c.ordinal)
                )
                for grant in await _all(connection, grants, Grant):
                    live[grant.lease].grants.append(grant)
                notes = {
                    note.name: note.value
                    for note in await _all(connection, select(tables.notes), Note)
                }
                # Rows that can still grow; those before are history.
                hour = int(float(notes.get(COUNTED, 0.0)) // HOUR)
                growing = select(tables.usage).where(tables.usage.c.hour >= hour)
                return Loaded(
                    tenants=await _all(connection, select(tables.tenants), Tenant),
                    quotas=await _all(connection, select(tables.quotas), Quota),
                    tokens=await _all(connection, select(tables.tokens), Token),
                    nodes=await _all(connection, select(tables.nodes), Node),
                    gpus=await _all(connection, select(tables.gpus), Gpu),
                    leases=list(live.values()),
                    usage=await _all(connection, growing, Usage),
                    answers=await _all(connection, select(tables.answers), Answer),
                    admissions=await _all(connection, select(tables.admissions), Admission),
                    notes=notes,
                    reservations=await _all(connection, select(tables.reservations), Reservation),
                )

    async def fetch(self, statement: Select[Any]) -> Sequence[Any]:
        """The rows of a question."""
        with self._explained():
            async with asyncio.timeout(self._most), self.engine.connect() as connection:
                rows: Sequence[Any] = (await connection.execute(statement)).all()
                return rows

    async def find_leases(self, statement: Select[Any]) -> list[Lease]:
        """Leases, ended ones too, with their grants."""
        with self._explained():
            async with asyncio.timeout(self._most), self.engine.connect() as connection:
                found = {lease.id: lease for lease in await _all(connection, statement, Lease)}
                grants = (
                    select(tables.grants)
                    .where(tables.grants.c.lease.in_(found))
                    .order_by(tables.grants.c.lease, tables.grants.c.ordinal)
                )
                for grant in await _all(connection, grants, Grant) if found else ():
                    found[grant.lease].grants.append(grant)
                return list(found.values())

    async def purge(self, answers_before: float, audit_before: float, leases_before: float) -> None:
        """Forget what is too old to be asked for."""
        with self._explained():
            async with asyncio.timeout(self._most), self._begun() as connection:
                await self._check_owner(connection)
                await connection.execute(
                    tables.answers.delete().where(tables.answers.c.created < answers_before)
                )
                await connection.execute(
                    tables.audit.delete().where(tables.audit.c.at < audit_before)
                )
                await connection.execute(
                    tables.leases.delete().where(tables.leases.c.ended < leases_before)
                )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise StoreError(f"the database: {one_line(str(error.orig))}") from error
        except TimeoutError:
            raise StoreError("the database does not answer") from None
        except (SQLAlchemyError, OSError) as error:
            raise StoreError(f"the database: {one_line(str(error))}") from error


def _patience() -> dict[str, Any]:
    """How long asyncpg waits: a database that was stopped, and not ended, says nothing at all."""
    return {"timeout": ANSWER_SECONDS, "command_timeout": ANSWER_SECONDS}


async def _all(connection: AsyncConnection, statement: Select[Any], kind: type[R]) -> list[R]:
    rows = (await connection.execute(statement)).mappings()
    make = cast(Any, kind)
    names = columns_of(make)
    return [make(**{name: row[name] for name in names}) for row in rows]


def _set_silence(connection: Any, _record: Any) -> None:
    # By the driver itself: what is set inside a transaction goes when that is rolled back.
    connection.run_async(lambda driver: driver.execute(_SILENCE))
