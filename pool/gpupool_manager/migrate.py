"""Bring a database to the schema of this release, or say in one line why not."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from gpupool_common.errors import GpupoolError

FOLDER = Path(__file__).parent / "migrations"


class SchemaError(GpupoolError):
    """The database is of a newer release, or of something else."""


def config_for(connection: Connection | None = None) -> Config:
    """Alembic's configuration; there is no file of it."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def newest() -> str:
    """The schema of this release."""
    head = ScriptDirectory.from_config(config_for()).get_current_head()
    if head is None:
        raise RuntimeError("the installation has no migrations")
    return head


def migrate(connection: Connection) -> bool:
    """Whether anything had to be done. To be called with ``AsyncConnection.run_sync``."""
    config = config_for(connection)
    found = MigrationContext.configure(connection).get_current_heads()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if unknown := sorted(set(found) - known):
        raise SchemaError(
            f"the database has the schema '{', '.join(unknown)}', which this release does not"
            f" know (its newest is '{newest()}'); start the release that wrote it"
        )
    if found == (newest(),):
        return False
    command.upgrade(config, "head")
    return True
