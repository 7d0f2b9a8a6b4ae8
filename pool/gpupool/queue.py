"""``gpupool queue``: who waits for GPUs of a pool."""

from __future__ import annotations

from typing import Annotated

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient
from gpupool.pool_options import pool_command
from gpupool.pool_show import cell, request_text, since, table

app = typer.Typer(no_args_is_help=True, help="Who waits for GPUs of a pool.")


@pool_command(app, "list")
def list_queue(
    client: PoolClient,
    tenant: Annotated[str | None, typer.Option(help="of this tenant")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who waits, in order, and for what. To leave the queue: gpupool lease release."""
    waiting = client.all("/queue", {"tenant": tenant})
    if as_json:
        show.print_json(waiting)
        return
    columns = ("POS", "LEASE", "TENANT", "REQUEST", "WAITED", "REASON")
    rows = [
        (
            cell(entry, "position"),
            cell(entry, "lease"),
            cell(entry, "tenant"),
            request_text(entry),
            since(entry.get("since")),
            cell(entry, "reason"),
        )
        for entry in waiting
    ]
    table(columns, rows, "nobody waits")
