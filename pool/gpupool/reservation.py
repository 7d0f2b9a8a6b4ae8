"""``gpupool reservation``: those that have not begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient, at
from gpupool.pool_options import pool_command
from gpupool.pool_show import NONE, cell, parse_time, request_text, table, when
from gpupool.reserve import print_reservation

app = typer.Typer(no_args_is_help=True, help="GPUs of a pool that are kept for a time to come.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="of `gpupool reservation list`")]


@pool_command(app, "list")
def list_reservations(
    client: PoolClient,
    tenant: Annotated[str | None, typer.Option(help="of this tenant")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show reservations that have not begun. Those that have are leases."""
    found = client.all("/reservations", {"tenant": tenant})
    if as_json:
        show.print_json(found)
        return
    rows = [
        (
            cell(each, "id"),
            cell(each, "tenant"),
            request_text(cell(each, "request")),
            when(each.get("start"))[:-3],
            _length(each),
            cell(each, "label"),
        )
        for each in sorted(found, key=lambda each: str(each.get("start")))
    ]
    table(("ID", "TENANT", "REQUEST", "FROM (UTC)", "FOR", "NAME"), rows, "no reservation")


def _length(reservation: Mapping[str, Any]) -> str:
    start, end = parse_time(reservation.get("start")), parse_time(reservation.get("end"))
    return NONE if start is None or end is None else show.age((end - start).total_seconds())


@pool_command(app, "show")
def show_reservation(
    client: PoolClient, reservation: IdArgument, as_json: JsonOption = False
) -> None:
    """Show one that has not begun, and what is in its way."""
    print_reservation(client.get(at("reservations", reservation)), as_json)


@pool_command(app, "cancel")
def cancel(client: PoolClient, reservation: IdArgument) -> None:
    """Give it up: what it kept free is everybody's again."""
    client.do("DELETE", at("reservations", reservation))
