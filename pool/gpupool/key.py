"""``gpupool key``: what signs a pool's lease tokens, and by what nodes know its manager."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient
from gpupool.pool_options import pool_command
from gpupool.pool_show import NONE, cell, table, when
from gpupool_common.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True, help="Keys that sign a pool's lease tokens, and the manager's own."
)


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
    link: Annotated[
        bool, typer.Option("--link", help="the manager's own key, by which nodes know it")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make another key. It signs once all hosts have it; tokens that are out stay good."""
    if link:
        if revoke:
            raise ConfigError("--revoke is for keys that sign; end the link's: gpupool key retire")
        _show_link(client.do("POST", "/keys/link/roll"), as_json)
        return
    key = client.do("POST", "/keys/roll", {"revoke": revoke})
    if as_json:
        show.print_json(key)
    elif revoke:
        print(f"{cell(key, 'id')} signs; tokens that are out are refused: renew the leases")
    else:
        print(f"{cell(key, 'id')} is told to all hosts, and then signs: gpupool key list")


@pool_command(app, "link")
def show_link(client: PoolClient, as_json: JsonOption = False) -> None:
    """Show the manager's own key and the next one. Hosts that lack that are named."""
    _show_link(client.get("/keys/link"), as_json)


@pool_command(app, "retire")
def retire(
    client: PoolClient,
    force: Annotated[
        bool, typer.Option("--force", help="hosts without the next key need a new join token then")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """End the manager's own key for the next one. Join tokens that name it alone end with it."""
    _show_link(client.do("POST", "/keys/link/retire", {"force": force}), as_json)


def _show_link(keys: Any, as_json: bool) -> None:
    if as_json:
        show.print_json(keys)
        return
    ages = [age for age in ("current", "upcoming") if keys.get(age)]
    table(("AGE", "KEY"), [(age, cell(keys, age)) for age in ages], "no key")
    if "upcoming" in ages:
        without = ", ".join(keys.get("without") or ()) or "none; take it with gpupool key retire"
        print(f"hosts without the upcoming one: {without}")
