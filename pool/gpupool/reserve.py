"""``gpupool reserve``: GPUs of a pool for a time to come."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient
from gpupool.pool_options import pool_command
from gpupool.pool_request import PoolChoices, lease_body, pool_fields, read_duration
from gpupool.pool_show import cell, parse_time, request_text, sheet, when
from gpupool_common.errors import ConfigError
from gpupool_common.request_variables import GPUS, MEMORY, SHARE

FROM_HELP = "when it begins, e.g. 2030-01-31T12:00Z (UTC if no zone is said), or in how long: 2h"


def read_start(text: str) -> str:
    """A time to come as the manager takes it."""
    found = parse_time(text)
    if found is None:
        try:
            found = datetime.now(UTC) + timedelta(seconds=read_duration("--from", text))
        except (ConfigError, OverflowError):
            raise ConfigError(f"--from: {text!r} is not {FROM_HELP}") from None
    return found.isoformat()


def reserve(
    client: PoolClient,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help=FROM_HELP)],
    lasts: Annotated[str, typer.Option("--for", metavar="TIME", help="how long, e.g. 2h")],
    tenant: Annotated[str | None, typer.Option(help="with an admin's token: for whom")] = None,
    gpus: Annotated[str | None, typer.Option(help="how many, 1..64")] = None,
    memory: Annotated[str | None, typer.Option(help="of each GPU, e.g. 8GiB (all)")] = None,
    share: Annotated[str | None, typer.Option(help="of each GPU, e.g. 50% (all)")] = None,
    model: Annotated[str | None, typer.Option(help="a pattern of GPU models")] = None,
    same_host: Annotated[bool, typer.Option("--same-host", help="all on one host")] = False,
    spread: Annotated[bool, typer.Option("--spread", help="each on another host")] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE that the hosts must have")
    ] = None,
    name: Annotated[str | None, typer.Option(help="what it is shown as")] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep GPUs of a pool for a time to come. Then: gpupool run --lease ID."""
    choices = PoolChoices(
        model=model,
        same_host=same_host,
        spread=spread,
        labels=tuple(label or ()),
        name=name,
        tenant=tenant,
    )
    _, asked = pool_fields({}, {GPUS: gpus, MEMORY: memory, SHARE: share})
    body = lease_body(asked, choices)
    for key in ("ttl_seconds", "wait_seconds"):
        del body[key]
    body |= {"start": read_start(start), "seconds": read_duration("--for", lasts)}
    print_reservation(client.do("POST", "/reservations", body), as_json)


def print_reservation(reservation: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(reservation)
        return
    sheet(
        [
            ("id", cell(reservation, "id")),
            ("tenant", cell(reservation, "tenant")),
            ("name", cell(reservation, "label")),
            ("asked", request_text(cell(reservation, "request"))),
            ("from", f"{when(reservation.get('start'))} UTC"),
            ("until", f"{when(reservation.get('end'))} UTC"),
            ("certain", _certain(reservation)),
            ("then", f"gpupool run --lease {cell(reservation, 'id')} -- COMMAND"),
        ]
    )


def _certain(reservation: Mapping[str, Any]) -> str:
    return "yes" if reservation.get("certain") else f"no: {cell(reservation, 'reason')}"


def add_to(app: typer.Typer) -> None:
    pool_command(app, "reserve")(reserve)
