"""``gpupool key``: what signs a pool's lease tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient
from gpupool.pool_options import pool_command
from gpupool.pool_show import NONE, cell, table, when

app = typer.Typer(no_args_is_help=True, help="The keys that sign a pool's lease tokens.")


@pool_command(app, "list")
def list_keys(client: PoolClient, as_json: JsonOption = False) -> None:
    """Show keys: which signs, which come and go, and who lacks one."""
    keys = client.all("/keys")
    if as_json:
        show.print_json(keys)
        return
    rows = [
        (
            cell(key, "id"),
            cell(key, "age"),
            when(key.get("signs")),
            when(key.get("until")),
            ",".join(key.get("without") or ()) or NONE,
        )
        for key in keys
    ]
    table(("ID", "AGE", "SIGNS SINCE", "KNOWN UNTIL", "NODES WITHOUT IT"), rows, "no key")


@pool_command(app, "roll")
def roll(
    client: PoolClient,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="refuse all that was signed so far, as after a theft")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make another key. It signs once all hosts have it; tokens that are out stay good."""
    key = client.do("POST", "/keys/roll", {"revoke": revoke})
    if as_json:
        show.print_json(key)
    elif revoke:
        print(f"{cell(key, 'id')} signs; tokens that are out are refused: renew the leases")
    else:
        print(f"{cell(key, 'id')} is told to all hosts, and then signs: gpupool key list")
