"""``gpupool tenant``: who may use a pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient, at
from gpupool.pool_options import pool_command
from gpupool.pool_show import cell, sheet, table, when
from gpupool.quota import (
    BorrowOption,
    BudgetOption,
    ComputeOption,
    GpusOption,
    MemoryOption,
    ModelsOption,
    PriorityOption,
    SessionsOption,
    TenantArgument,
    WeightOption,
    quota_changes,
    quota_row,
    read_budgets,
)
from gpupool_common.errors import ConfigError
from gpupool_common.secret_file import write_secret

app = typer.Typer(no_args_is_help=True, help="Who may use a pool.")

DescriptionOption = Annotated[str | None, typer.Option("--description", help="one line of text")]


@pool_command(app, "list")
def list_tenants(client: PoolClient, as_json: JsonOption = False) -> None:
    """Show the tenants with what they have of their quotas."""
    tenants = client.all("/tenants")
    if as_json:
        show.print_json(tenants)
        return
    columns = ("NAME", "STATE", "GPUS", "MEMORY", "COMPUTE", "SESSIONS", "DESCRIPTION")
    rows = []
    for tenant in tenants:
        used = quota_row(cell(tenant, "quota"))[1:5]
        state = "disabled" if tenant.get("disabled") else "enabled"
        rows.append((cell(tenant, "name"), state, *used, cell(tenant, "description")))
    table(columns, rows, "no tenant; `gpupool tenant create NAME` makes one")


@pool_command(app, "show")
def show_tenant(client: PoolClient, tenant: TenantArgument, as_json: JsonOption = False) -> None:
    """Show one tenant."""
    _print_tenant(client.get(at("tenants", tenant)), as_json)


def _print_tenant(tenant: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(tenant)
        return
    _, gpus, size, part, sessions, *_ = quota_row(cell(tenant, "quota"))
    sheet(
        [
            ("name", cell(tenant, "name")),
            ("description", cell(tenant, "description")),
            ("state", "disabled" if tenant.get("disabled") else "enabled"),
            ("created", when(tenant.get("created"))),
            ("GPUs", gpus),
            ("memory", size),
            ("compute", part),
            ("sessions", sessions),
        ]
    )


@pool_command(app, "create")
def create(
    client: PoolClient,
    tenant: TenantArgument,
    description: DescriptionOption = None,
    gpus: GpusOption = None,
    memory: MemoryOption = None,
    compute: ComputeOption = None,
    sessions: SessionsOption = None,
    priority: PriorityOption = None,
    model: ModelsOption = None,
    budget: BudgetOption = None,
    weight: WeightOption = None,
    borrow: BorrowOption = None,
    token_out: Annotated[
        Path | None, typer.Option(help="make a token for it, too, into this file (mode 0600)")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a tenant, with limits or without."""
    quota = quota_changes(gpus, memory, compute, sessions, priority, model, weight, borrow)
    if budget:
        quota["budgets"] = read_budgets(budget)
    body = {"name": tenant, "description": description or "", "quota": quota}
    if token_out is not None and token_out.exists():
        raise ConfigError(f"--token-out: {token_out} exists already")
    made = client.do("POST", "/tenants", body)
    if token_out is not None:
        token = client.do("POST", "/tokens", {"scope": "tenant", "tenant": tenant})
        write_secret(token_out, str(cell(token, "secret")))
    _print_tenant(made, as_json)


@pool_command(app, "change")
def change(
    client: PoolClient,
    tenant: TenantArgument,
    description: DescriptionOption = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="refuse its tokens; what it has continues"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change a tenant's description, disable or enable it."""
    body = {"description": description, "disabled": disabled}
    body = {key: value for key, value in body.items() if value is not None}
    if not body:
        raise ConfigError("say what to change: --description, --disable or --enable")
    _print_tenant(client.do("PATCH", at("tenants", tenant), body), as_json)


@pool_command(app, "remove")
def remove(client: PoolClient, tenant: TenantArgument) -> None:
    """Forget a tenant that has no leases, and its tokens."""
    client.do("DELETE", at("tenants", tenant))
