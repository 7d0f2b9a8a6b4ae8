"""Bring a database to the schema of this release, or say in one line why not.

Only databases of other releases are shown to Alembic: it takes longer to import than all this.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect

from gpupool_common.errors import GpupoolError
from gpupool_manager import tables

if TYPE_CHECKING:
    from alembic.config import Config

FOLDER = Path(__file__).parent / "migrations"

#: The schema of this release: the name of the newest step.
NEWEST = "1.11"

#: Where Alembic writes down what schema a database has.
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class SchemaError(GpupoolError):
    """The database is of a newer release, or of something else."""


def config_for(connection: Connection | None = None) -> Config:
    """Alembic's configuration; there is no file of it."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(connection: Connection) -> bool:
    """Whether anything had to be done. To be called with ``AsyncConnection.run_sync``."""
    there = inspect(connection).get_table_names()
    if not there:
        _create(connection)
        return True
    found = set[str]()
    if _VERSION.name in there:
        found = set(connection.scalars(_VERSION.select()))
    if found == {NEWEST}:
        return False
    upgrade(connection, found)
    return True


def _create(connection: Connection) -> None:
    """The tables of an empty database, as the steps would make them."""
    tables.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection)
    connection.execute(_VERSION.insert(), {"version_num": NEWEST})


def upgrade(connection: Connection, found: set[str]) -> None:
    """Take the steps from the schema that was found to ours."""
    from alembic import command
    from alembic.script import ScriptDirectory

    config = config_for(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if unknown := sorted(found - known):
        raise SchemaError(
            f"the database has the schema '{', '.join(unknown)}', which this release does not"
            f" know (its newest is '{NEWEST}'); start the release that wrote it"
        )
    command.upgrade(config, "head")
