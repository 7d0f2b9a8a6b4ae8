"""Alembic calls this with the connection that migrate.py gave it."""

from __future__ import annotations

from alembic import context

from gpupool_manager.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter a column; Alembic copies the table instead.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
