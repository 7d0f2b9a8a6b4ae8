"""``gpupool token``: with what one comes to a pool."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient, at
from gpupool.pool_options import pool_command
from gpupool.pool_request import read_duration
from gpupool.pool_show import NONE, cell, parse_time, sheet, table, when
from gpupool_common.errors import ConfigError
from gpupool_common.secret_file import write_secret

app = typer.Typer(
    no_args_is_help=True, help="Tokens of a pool: of admins, tenants, hosts and scrapers."
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="of `gpupool token list`")]


def _state(token: dict[str, Any]) -> str:
    if token.get("revoked") is not None:
        return "revoked"
    expires = parse_time(token.get("expires"))
    return "expired" if expires is not None and expires <= datetime.now(UTC) else "valid"


@pool_command(app, "list")
def list_tokens(
    client: PoolClient,
    scope: Annotated[str | None, typer.Option(help="admin, tenant, node or metrics")] = None,
    tenant: Annotated[str | None, typer.Option(help="of this tenant")] = None,
    all_tokens: Annotated[
        bool, typer.Option("--all", help="revoked and expired ones, too")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show tokens; never the secrets."""
    tokens = client.all("/tokens", {"scope": scope, "tenant": tenant})
    tokens = [token for token in tokens if all_tokens or _state(token) == "valid"]
    if as_json:
        show.print_json(tokens)
        return
    columns = ("ID", "SCOPE", "OF", "EXPIRES", "DESCRIPTION")
    rows = [
        (
            cell(token, "id"),
            cell(token, "scope"),
            token.get("tenant") or token.get("node") or NONE,
            when(token.get("expires")) if (state := _state(token)) == "valid" else state,
            cell(token, "description"),
        )
        for token in tokens
    ]
    table(columns, rows, "no token of this kind")


@pool_command(app, "show")
def show_token(client: PoolClient, token: IdArgument, as_json: JsonOption = False) -> None:
    """Show one token; never the secret."""
    found = client.get(at("tokens", token))
    if as_json:
        show.print_json(found)
        return
    rows: list[tuple[str, Any]] = [
        (key, cell(found, key)) for key in ("id", "scope", "tenant", "node", "description")
    ]
    rows += [(key, when(found.get(key))) for key in ("created", "expires", "revoked")]
    sheet([*rows, ("state", _state(found))])


@pool_command(app, "create")
def create(
    client: PoolClient,
    tenant: Annotated[str | None, typer.Option(help="for this tenant")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="for an operator")] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="for Prometheus: it reads metrics, and nothing else")
    ] = False,
    lifetime: Annotated[
        str | None, typer.Option(help="how long it is valid, e.g. 12h, 30d (for ever)")
    ] = None,
    description: Annotated[str, typer.Option(help="one line of text")] = "",
    out: Annotated[
        Path | None, typer.Option(help="write it into this file (mode 0600), not to stdout")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it: it is shown only this once. For hosts: gpupool node join."""
    if admin + metrics + (tenant is not None) != 1:
        raise ConfigError("say whose it is to be: --tenant NAME, --admin or --metrics")
    scope = "admin" if admin else "metrics" if metrics else "tenant"
    body: dict[str, Any] = {"scope": scope, "tenant": tenant}
    body["description"] = description
    if lifetime is not None:
        body["lifetime_seconds"] = read_duration("--lifetime", lifetime)
    if out is not None and out.exists():
        raise ConfigError(f"--out: {out} exists already")
    made = client.do("POST", "/tokens", body)
    secret = str(cell(made, "secret"))
    if out is not None:
        write_secret(out, secret)
        made.pop("secret")
    if as_json:
        show.print_json(made)
    elif out is None:
        print(secret)


@pool_command(app, "revoke")
def revoke(client: PoolClient, token: IdArgument) -> None:
    """Refuse a token from now on."""
    client.do("DELETE", at("tokens", token))
