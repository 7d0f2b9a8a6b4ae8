"""The schema: made from nothing, once, and the same as tables.py says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gpupool_manager import migrate, tables
from gpupool_manager.migrate import SchemaError
from gpupool_manager.store import Store


@pytest_asyncio.fixture
async def connection(database: str) -> AsyncIterator[AsyncConnection]:
    """Of a store that is locked and migrated."""
    store = Store(database)
    await store.open()
    async with store.engine.connect() as opened:
        yield opened
    await store.close()


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": True}
    )
    found: list[Any] = compare_metadata(context, tables.metadata)
    return found


async def test_the_migrations_make_what_the_tables_say(connection: AsyncConnection) -> None:
    assert await connection.run_sync(differences) == []
    await connection.execute(text("ALTER TABLE leases ADD COLUMN extra INTEGER"))
    await connection.execute(text("DROP INDEX leases_in_state"))
    kinds = {difference[0] for difference in await connection.run_sync(differences)}
    assert kinds == {"remove_column", "add_index"}
    await connection.rollback()


def described(connection: Connection) -> dict[str, Any]:
    """All of a database's schema, as the database says it."""
    seen = inspect(connection)
    found: dict[str, Any] = {}
    for table in seen.get_table_names():
        found[table] = {
            "columns": [
                {key: str(value) for key, value in column.items()}
                for column in seen.get_columns(table)
            ],
            "key": seen.get_pk_constraint(table),
            "foreign keys": sorted(map(str, seen.get_foreign_keys(table))),
            "unique": sorted(map(str, seen.get_unique_constraints(table))),
            "indexes": sorted(map(str, seen.get_indexes(table))),
            "checks": sorted(map(str, seen.get_check_constraints(table))),
        }
    return found


async def test_an_empty_database_gets_what_the_migrations_make(connection: AsyncConnection) -> None:
    def both(connection: Connection) -> tuple[dict[str, Any], dict[str, Any]]:
        made_at_once = described(connection)
        command.downgrade(migrate.config_for(connection), "base")
        connection.execute(text("DROP TABLE alembic_version"))
        migrate.upgrade(connection, set())
        return made_at_once, described(connection)

    made_at_once, by_steps = await connection.run_sync(both)
    assert made_at_once == by_steps
    assert made_at_once.keys() == {*tables.metadata.tables, "alembic_version"}
    assert by_steps["tokens"]["unique"] and by_steps["leases"]["indexes"]
    await connection.execute(text("ALTER TABLE leases ADD COLUMN extra INTEGER"))
    assert made_at_once != await connection.run_sync(described)


async def test_only_the_first_start_changes_the_schema(database: str) -> None:
    for changed in (True, False, False):
        store = Store(database)
        assert await store.open() is changed
        await store.close()


async def test_the_way_back_leaves_nothing(connection: AsyncConnection) -> None:
    def down_and_up(connection: Connection) -> tuple[set[str], bool]:
        command.downgrade(migrate.config_for(connection), "base")
        left = set(inspect(connection).get_table_names())
        return left, migrate.migrate(connection)

    assert await connection.run_sync(down_and_up) == ({"alembic_version"}, True)
    assert await connection.run_sync(differences) == []


@pytest.mark.parametrize("schema", ["1", "99"], ids=["a checkout's", "a newer"])
async def test_an_unknown_schema_is_refused_and_left_alone(database: str, schema: str) -> None:
    store = Store(database)
    await store.open()
    async with store.engine.begin() as connection:
        await connection.execute(text(f"UPDATE alembic_version SET version_num = '{schema}'"))
    await store.close()
    refused = rf"^the database has the schema '{schema}', which[^\n]*$"
    with pytest.raises(SchemaError, match=refused):
        await Store(database).open()
    with pytest.raises(SchemaError):  # not "another manager": the lock was given back
        await Store(database).open()


async def test_a_migration_that_fails_leaves_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: Connection) -> bool:
        migrate.migrate(connection)
        raise OSError("the machine lost its power")

    with monkeypatch.context() as patch:
        patch.setattr("gpupool_manager.store.migrate", fail)
        with pytest.raises(Exception, match="^the database: the machine lost its power$"):
            await Store(database).open()
    store = Store(database)
    assert await store.open() is True
    await store.close()


def test_every_step_has_one_way_and_a_way_back() -> None:
    folder = migrate.FOLDER / "versions"
    steps = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert steps
    for step in steps:
        assert "def downgrade" in Path(step).read_text(), step.name
    known = ScriptDirectory.from_config(migrate.config_for())
    assert known.get_current_head() == migrate.NEWEST
