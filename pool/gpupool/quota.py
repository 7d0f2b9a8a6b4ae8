"""``gpupool quota``: what a tenant of a pool may have at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption, read_compute, read_number, read_size
from gpupool.pool_client import PoolClient, at
from gpupool.pool_options import pool_command
from gpupool.pool_request import read_duration
from gpupool.pool_show import NONE, cell, compute, memory, sheet, table, use
from gpupool_common.budgets import LEAST, TenantBudgets
from gpupool_common.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="What a tenant of a pool may have at once.")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="the tenant's name")]
GpusOption = Annotated[str | None, typer.Option("--gpus", help="virtual GPUs; 'none': no limit")]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="over all of them, e.g. 100GiB; 'none': no limit")
]
ComputeOption = Annotated[
    str | None, typer.Option("--compute", help="over all of them, e.g. 250%; 'none': no limit")
]
SessionsOption = Annotated[
    str | None, typer.Option("--sessions", help="leases at once, queued ones too; 'none'")
]
PriorityOption = Annotated[
    str | None, typer.Option("--priority", help="the highest that may be asked for, 0..100")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--model", help="patterns of the GPU models that are allowed; 'none': all"),
]

BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="NAME=AMOUNT",
        help=f"of each host, e.g. host_memory=64GiB; 'none'. Names: {', '.join(LEAST)}, sessions,"
        " pending",
    ),
]

WeightOption = Annotated[
    str | None,
    typer.Option("--weight", help="how large a share is its due in a fair queue, 1..1000"),
]
BorrowOption = Annotated[
    bool | None,
    typer.Option("--borrow/--no-borrow", help="let it have what others leave free, until they ask"),
]

IdleActionOption = Annotated[
    str | None,
    typer.Option(
        "--idle-action",
        help="what comes of its leases that do nothing: off, warn, reclaim; 'none': as of others",
    ),
]
IdleAfterOption = Annotated[
    str | None,
    typer.Option("--idle-after", help="how long they do nothing before, e.g. 30m; 'none'"),
]

UNLIMITED = "none"
IDLE_ACTIONS = ("off", "warn", "reclaim")
_MOST = 1 << 31
#: What an older manager does not know of a quota.
_LATER = ("weight", "borrow", "idle_action", "idle_seconds")


@pool_command(app, "list")
def list_quotas(client: PoolClient, as_json: JsonOption = False) -> None:
    """Show all tenants' quotas with what is in use."""
    quotas = client.all("/quotas")
    if as_json:
        show.print_json(quotas)
        return
    columns = ("TENANT", "GPUS", "MEMORY", "COMPUTE", "SESSIONS", "PRIORITY", "MODELS")
    table(columns, [quota_row(quota) for quota in quotas], "no tenant")


def quota_row(quota: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of each quantity what is in use, and the limit."""
    used = cell(quota, "in_use")
    models = cell(quota, "models")
    return (
        cell(quota, "tenant"),
        use(cell(used, "gpus"), cell(quota, "gpus")),
        use(cell(used, "memory_bytes"), cell(quota, "memory_bytes"), memory),
        use(cell(used, "compute_permille"), cell(quota, "compute_permille"), compute),
        use(cell(used, "sessions"), cell(quota, "sessions")),
        cell(quota, "priority"),
        NONE if models == NONE else ",".join(models),
    )


@pool_command(app, "show")
def show_quota(client: PoolClient, tenant: TenantArgument, as_json: JsonOption = False) -> None:
    """Show a tenant's quota, what is in use, and what waits."""
    _print_quota(client.get(at("tenants", tenant, "quota")), as_json)


def _print_quota(quota: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(quota)
        return
    _, gpus, size, part, sessions, priority, models = quota_row(quota)
    queued = cell(quota, "queued")
    waiting = f"{cell(queued, 'sessions')} requests for {cell(queued, 'gpus')} GPUs"
    sheet(
        [
            ("tenant", cell(quota, "tenant")),
            ("GPUs", gpus),
            ("memory", size),
            ("compute", part),
            ("sessions", sessions),
            ("priority", f"up to {priority}"),
            ("models", models),
            ("budgets", _shown(cell(quota, "budgets"))),
            ("weight", cell(quota, "weight")),
            ("borrows", _borrowed(quota)),
            ("idle leases", _idle(quota)),
            ("queued", waiting),
        ]
    )


def _borrowed(quota: Mapping[str, Any]) -> str:
    """Whether a tenant may borrow, and what it has of others."""
    gpus = cell(cell(quota, "borrowed"), "gpus")
    return f"{'yes' if quota.get('borrow') else 'no'}, now {gpus} GPUs"


def _idle(quota: Mapping[str, Any]) -> str:
    """What is said for this tenant alone."""
    action, seconds = quota.get("idle_action"), quota.get("idle_seconds")
    after = f", after {show.age(float(seconds))}" if isinstance(seconds, int) else ""
    return f"{action or 'as of all tenants'}{after}"


def _shown(budgets: Mapping[str, Any]) -> str:
    """Those that are set, as ``--budget`` has them."""
    sizes = {"host_memory", "pinned_memory", "disk"}
    found = [
        f"{name}={memory(amount) if name in sizes else amount}"
        for name, amount in budgets.items()
        if amount is not None
    ]
    return ", ".join(found) or NONE


@pool_command(app, "set")
def set_quota(
    client: PoolClient,
    tenant: TenantArgument,
    gpus: GpusOption = None,
    memory: MemoryOption = None,
    compute: ComputeOption = None,
    sessions: SessionsOption = None,
    priority: PriorityOption = None,
    model: ModelsOption = None,
    budget: BudgetOption = None,
    weight: WeightOption = None,
    borrow: BorrowOption = None,
    idle_action: IdleActionOption = None,
    idle_after: IdleAfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change limits. What is not named stays, and so does what is granted."""
    changes = quota_changes(gpus, memory, compute, sessions, priority, model, weight, borrow)
    changes |= idle_changes(idle_action, idle_after)
    budgets = read_budgets(budget or [])
    if not changes and not budgets:
        raise ConfigError("say what to set: --gpus, --memory, --compute, --sessions, --budget, …")
    path = at("tenants", tenant, "quota")
    answer = client.ask("GET", path)
    before = answer.object(client.url)
    names = ("gpus", "memory_bytes", "compute_permille", "sessions", "priority", "models")
    body = {name: before.get(name) for name in names}
    body |= {name: before[name] for name in _LATER if name in before} | changes
    body["budgets"] = {**(before.get("budgets") or {}), **budgets}
    _print_quota(client.do("PUT", path, body, etag=answer.etag), as_json)


def quota_changes(
    gpus: str | None,
    memory: str | None,
    compute: str | None,
    sessions: str | None,
    priority: str | None,
    models: list[str] | None,
    weight: str | None,
    borrow: bool | None,
) -> dict[str, Any]:
    """The options that are there, as fields of a quota."""
    found: dict[str, Any] = {}
    if gpus is not None:
        found["gpus"] = _count("--gpus", gpus)
    if memory is not None:
        found["memory_bytes"] = None if memory == UNLIMITED else read_size("--memory", memory)
    if compute is not None:
        found["compute_permille"] = (
            None if compute == UNLIMITED else read_compute("--compute", compute)
        )
    if sessions is not None:
        found["sessions"] = _count("--sessions", sessions)
    if priority is not None:
        found["priority"] = read_number("--priority", priority, 0, 100)
    if models is not None:
        found["models"] = None if models == [UNLIMITED] else models
    if weight is not None:
        found["weight"] = read_number("--weight", weight, 1, 1000)
    if borrow is not None:
        found["borrow"] = borrow
    return found


def idle_changes(action: str | None, after: str | None) -> dict[str, Any]:
    """What is said of idle leases, as fields of a quota."""
    found: dict[str, Any] = {}
    if action is not None:
        if action not in (*IDLE_ACTIONS, UNLIMITED):
            words = ", ".join(IDLE_ACTIONS)
            raise ConfigError(f"--idle-action: {action!r} is none of {words}, {UNLIMITED}")
        found["idle_action"] = None if action == UNLIMITED else action
    if after is not None:
        found["idle_seconds"] = None if after == UNLIMITED else read_duration("--idle-after", after)
    return found


def read_budgets(texts: list[str]) -> dict[str, int | None]:
    """What ``--budget`` says, by name; ConfigError names what cannot be."""
    found: dict[str, int | None] = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        field = TenantBudgets.model_fields.get(name)
        if not equals or field is None:
            names = ", ".join(TenantBudgets.model_fields)
            raise ConfigError(f"--budget {text}: give NAME=AMOUNT; the names are {names}")
        try:
            value = int(amount) if amount.isascii() and amount.isdecimal() else amount
            read = TenantBudgets.model_validate({name: None if amount == UNLIMITED else value})
        except ValueError:  # pydantic's, or int's of thousands of digits
            raise ConfigError(f"--budget {text[:80]}: {name} is {field.description}") from None
        found[name] = read.amounts().get(name)
    return found


def _count(option: str, text: str) -> int | None:
    return None if text == UNLIMITED else read_number(option, text, 0, _MOST)
