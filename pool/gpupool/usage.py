"""``gpupool usage`` and ``gpupool audit``: what tenants have had, and who changed what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient
from gpupool.pool_options import pool_command
from gpupool.pool_request import read_duration
from gpupool.pool_show import cell, parse_time, table, when
from gpupool_common.errors import ConfigError

TIME_HELP = "a time such as 2030-01-31 or 2030-01-31T12:00Z, or how long ago: 12h, 30d"
SinceOption = Annotated[str | None, typer.Option("--since", help=TIME_HELP)]
UntilOption = Annotated[str | None, typer.Option("--until", help=TIME_HELP)]


def read_time(option: str, text: str | None) -> str | None:
    """A time as the manager takes it."""
    if text is None:
        return None
    found = parse_time(text)
    if found is None:
        try:
            found = datetime.now(UTC) - timedelta(seconds=read_duration(option, text))
        except (ConfigError, OverflowError):
            raise ConfigError(f"{option}: {text!r} is not {TIME_HELP}") from None
    return found.isoformat()


def usage(
    client: PoolClient,
    tenant: Annotated[str | None, typer.Option(help="of this tenant")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    by: Annotated[str, typer.Option(help="hour or day, in UTC")] = "day",
    as_json: JsonOption = False,
) -> None:
    """Show what tenants have had of a pool, by day or hour."""
    if by not in ("hour", "day"):
        raise ConfigError(f"--by: {by!r} is neither hour nor day")
    params = {"tenant": tenant, "step": by}
    params |= {"since": read_time("--since", since), "until": read_time("--until", until)}
    found = client.all("/usage", params)
    if as_json:
        show.print_json(found)
        return
    columns = ("START", "TENANT", "GPU-H", "GIB-H", "COMPUTE-H", "LEASES")
    keys = ("gpu_hours", "memory_gib_hours", "compute_hours")
    rows = [
        (
            when(part.get("start"))[:-3],
            cell(part, "tenant"),
            *(f"{float(cell(part, key)):.2f}" for key in keys),
            cell(part, "leases"),
        )
        for part in found
    ]
    table(columns, rows, "nothing was used in this time")


def audit(
    client: PoolClient,
    actor: Annotated[str | None, typer.Option(help="a token's ID, or 'manager'")] = None,
    action: Annotated[str | None, typer.Option(help="e.g. lease.granted")] = None,
    object: Annotated[str | None, typer.Option(help="the name or ID of what was changed")] = None,
    tenant: Annotated[str | None, typer.Option(help="of this tenant")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    most: Annotated[int, typer.Option(help="the most lines to show")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what in a pool, oldest first."""
    if most < 1:
        raise ConfigError(f"--most: {most} is not 1 or more")
    params = {"actor": actor, "action": action, "object": object, "tenant": tenant}
    params |= {"since": read_time("--since", since), "until": read_time("--until", until)}
    found = client.all("/audit", params, most)
    if as_json:
        show.print_json(found)
        return
    columns = ("AT", "ACTOR", "ACTION", "OBJECT")
    rows = [
        (when(entry.get("at"))[5:], *(cell(entry, key) for key in ("actor", "action", "object")))
        for entry in found
    ]
    table(columns, rows, "nothing was changed in this time")


def add_to(app: typer.Typer) -> None:
    pool_command(app, "usage")(usage)
    pool_command(app, "audit")(audit)
