"""``gpupool lease``: what tenants have been granted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.options import JsonOption, read_compute, read_number, read_size
from gpupool.pool_client import PoolClient, at
from gpupool.pool_options import pool_command
from gpupool.pool_request import PoolChoices, lease_body, pool_fields
from gpupool.pool_show import (
    NONE,
    cell,
    compute,
    memory,
    parse_time,
    request_text,
    sheet,
    since,
    table,
    until,
    when,
)
from gpupool_common.errors import ConfigError
from gpupool_common.request_variables import CEILING, GPUS, MEMORY, SHARE
from gpupool_common.sizes import WHOLE_GPU

app = typer.Typer(no_args_is_help=True, help="Leases of a pool: who has which GPUs, and why.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="of `gpupool lease list`")]

LIVE = ("queued", "active")


@pool_command(app, "list")
def list_leases(
    client: PoolClient,
    tenant: Annotated[str | None, typer.Option(help="of this tenant")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="queued, active, released, expired, timed-out, cancelled, lost or reclaimed"
        ),
    ] = None,
    node: Annotated[str | None, typer.Option(help="on this host")] = None,
    all_leases: Annotated[bool, typer.Option("--all", help="those that have ended, too")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show leases, oldest first."""
    states = None if all_leases else state or list(LIVE)
    leases = client.all("/leases", {"tenant": tenant, "state": states, "node": node})
    if as_json:
        show.print_json(leases)
        return
    columns = ("ID", "TENANT", "STATE", "REQUEST", "NODES", "AGE", "NAME")
    table(columns, [_row(lease) for lease in leases], "no lease")


def _row(lease: Mapping[str, Any]) -> tuple[Any, ...]:
    nodes = dict.fromkeys(cell(grant, "node") for grant in cell(lease, "grants"))
    return (
        cell(lease, "id"),
        cell(lease, "tenant"),
        "idle" if _is_idle(lease) else cell(lease, "state"),
        request_text(cell(lease, "request")),
        ",".join(nodes) or NONE,
        since(lease.get("created")),
        cell(lease, "label"),
    )


@pool_command(app, "show")
def show_lease(client: PoolClient, lease: IdArgument, as_json: JsonOption = False) -> None:
    """Show one lease and where its GPUs are."""
    found = client.get(at("leases", lease))
    found.pop("token", None)  # a look should not leave a secret on a screen
    _print_lease(found, as_json)


def _print_lease(lease: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(lease)
        return
    rows: list[tuple[str, Any]] = [(key, cell(lease, key)) for key in ("id", "tenant", "state")]
    if lease.get("position") is not None:
        rows.append(("position", lease["position"]))
    rows.append(("reason", cell(lease, "reason")))
    rows.append(("name", cell(lease, "label")))
    asked = cell(lease, "request")
    rows.append(
        ("asked", f"{request_text(asked)}, {cell(asked, 'policy')}, hosts: {cell(asked, 'hosts')}")
    )
    rows.append(("priority", cell(lease, "priority")))
    if lease.get("ceiling_permille", WHOLE_GPU) != WHOLE_GPU:
        rows.append(("ceiling", compute(cell(lease, "ceiling_permille"))))
    if lease.get("borrowed"):
        rows.append(("borrowed", "yes: beyond the quota, until others ask for theirs"))
    if ending := lease.get("ending"):
        rows.append(("goes back", f"in {until(ending.get('at'))}: {cell(ending, 'reason')}"))
    grants = cell(lease, "grants")
    if going := [grant for grant in grants if grant.get("leaves")]:
        devices = ", ".join(str(cell(grant, "ordinal")) for grant in going)
        first = until(min(cell(grant, "leaves") for grant in going))
        rows.append(("made smaller", f"device {devices} goes back, in {first} at the latest"))
    if idle := lease.get("idle"):
        rows.append(("idle", _idle(idle)))
    change = lease.get("resize") or {}
    if change:
        rows.append(("change", f"{cell(change, 'state')}: {cell(change, 'reason')}"))
    if lease.get("sessions") is not None:
        rows.append(("sessions", f"{lease['sessions']} at once on each host"))
    rows += [(key, when(lease.get(key))) for key in ("created", "granted", "ended")]
    if lease.get("state") == "active":
        rows.append(("expires", f"in {until(lease.get('expires'))}, unless it is renewed"))
    sheet(rows)
    if grants:
        columns = ("DEVICE", "NODE", "MEMORY", "COMPUTE", "LOST", "GPU")
        table(columns, [_grant_row(grant) for grant in grants], "")


def _is_idle(lease: Mapping[str, Any]) -> bool:
    """Whether an active lease has done nothing for as long as makes it idle."""
    idle = lease.get("idle") or {}
    found = parse_time(idle.get("since"))
    seconds = idle.get("after_seconds")
    if found is None or not isinstance(seconds, int | float):
        return False
    return (datetime.now(UTC) - found).total_seconds() >= seconds


def _idle(idle: Mapping[str, Any]) -> str:
    """For how long nothing was done, and what comes of it."""
    after = show.age(float(cell(idle, "after_seconds")))
    then = {
        "warn": f"; its programs are told after {after}",
        "reclaim": f"; goes back after {after}",
    }
    return f"for {since(idle.get('since'))}{then.get(str(idle.get('action')), '')}"


def _grant_row(grant: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        cell(grant, "ordinal"),
        cell(grant, "node"),
        memory(cell(grant, "memory_bytes")),
        compute(cell(grant, "share_permille")),
        "yes" if grant.get("lost") else "no",
        cell(grant, "gpu"),
    )


@pool_command(app, "create")
def create(
    client: PoolClient,
    tenant: Annotated[str | None, typer.Option(help="with an admin's token: for whom")] = None,
    gpus: Annotated[str | None, typer.Option(help="how many, 1..64")] = None,
    memory: Annotated[str | None, typer.Option(help="of each GPU, e.g. 8GiB (all)")] = None,
    share: Annotated[str | None, typer.Option(help="of each GPU, e.g. 50% (all)")] = None,
    ceiling: Annotated[str | None, typer.Option(help="most that it may borrow up to (all)")] = None,
    policy: Annotated[str | None, typer.Option(help="binpack, spread or fragmentation")] = None,
    model: Annotated[str | None, typer.Option(help="a pattern of GPU models")] = None,
    capability: Annotated[str | None, typer.Option(help="at least this, e.g. 8.0")] = None,
    min_driver: Annotated[str | None, typer.Option(help="hosts that know this CUDA, 12.4")] = None,
    same_host: Annotated[bool, typer.Option("--same-host", help="all on one host")] = False,
    spread: Annotated[bool, typer.Option("--spread", help="each on another host")] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE that the hosts must have")
    ] = None,
    uuid: Annotated[
        list[str] | None, typer.Option(help="this GPU and no other; may come several times")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="0..100")] = None,
    wait: Annotated[str, typer.Option(help="longest time in the queue, e.g. 30, 2h")] = "0",
    ttl: Annotated[
        str, typer.Option(help="how long it lasts without `lease renew` or a session")
    ] = "1h",
    name: Annotated[str | None, typer.Option(help="what it is shown as")] = None,
    sessions: Annotated[
        str | None, typer.Option(help="how many of its processes a host serves at once (any)")
    ] = None,
    beyond_quota: Annotated[
        str | None, typer.Option(help="what comes over the quota: refuse, wait, borrow (refuse)")
    ] = None,
    time: Annotated[str | None, typer.Option(help="it ends after so long, e.g. 2h (never)")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only say what would come of it, GPU by GPU")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask for GPUs without a program. --json has its servers and token."""
    choices = PoolChoices(
        policy,
        model,
        capability,
        min_driver,
        same_host,
        spread,
        tuple(label or ()),
        priority,
        wait,
        name,
        tenant,
        ttl,
        sessions,
        tuple(uuid or ()),
        beyond_quota=beyond_quota,
        time=time,
    )
    _, asked = pool_fields({}, {GPUS: gpus, MEMORY: memory, SHARE: share, CEILING: ceiling})
    path, shown = ("/leases/explain", _print_explanation) if dry_run else ("/leases", _print_lease)
    shown(client.do("POST", path, lease_body(asked, choices)), as_json)


@pool_command(app, "renew")
def renew(client: PoolClient, lease: IdArgument, as_json: JsonOption = False) -> None:
    """Let a lease last for another of its periods. --json has a new token."""
    _print_lease(client.do("POST", at("leases", lease, "renew")), as_json)


@pool_command(app, "resize")
def resize(
    client: PoolClient,
    lease: IdArgument,
    memory: Annotated[str | None, typer.Option(help="of each GPU, e.g. 8GiB")] = None,
    share: Annotated[str | None, typer.Option(help="of each GPU, e.g. 50%")] = None,
    ceiling: Annotated[str | None, typer.Option(help="most that it may borrow up to")] = None,
    priority: Annotated[str | None, typer.Option(help="0..100")] = None,
    gpus: Annotated[
        str | None, typer.Option(help="more of its host's, or fewer, for programs that start then")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="less memory than is in use: keep it, and give no more"),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Change what a lease has, while its programs run or it waits."""
    body: dict[str, Any] = {}
    if memory is not None:
        body["memory_bytes"] = read_size("--memory", memory)
    if share is not None:
        body["share_permille"] = read_compute("--share", share)
    if ceiling is not None:
        body["ceiling_permille"] = read_compute("--ceiling", ceiling)
    if priority is not None:
        body["priority"] = read_number("--priority", priority, 0, 100)
    if gpus is not None:
        body["gpus"] = read_number("--gpus", gpus, 1, 64)
    if not body:
        raise ConfigError("say what to change: --memory, --share, --ceiling, --priority or --gpus")
    found = client.do("PATCH", at("leases", lease), {**body, "force": force})
    found.pop("token", None)
    _print_lease(found, as_json)


@pool_command(app, "release")
def release(client: PoolClient, lease: IdArgument, as_json: JsonOption = False) -> None:
    """End a lease and its programs' sessions, or stop waiting for it."""
    found = client.do("POST", at("leases", lease, "release"))
    if as_json:
        show.print_json(found)
    else:
        print(f"{cell(found, 'id')} is {cell(found, 'state')}")


@pool_command(app, "explain")
def explain(
    client: PoolClient,
    lease: IdArgument,
    limit: Annotated[int, typer.Option(help="the most GPUs to show, 0..1000")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Say why a lease is where it is, or why it waits. For admins GPU by GPU."""
    if not 0 <= limit <= 1000:
        raise ConfigError(f"--limit: {limit} is not 0..1000")
    answer = client.get(at("leases", lease, "explain"), {"limit": limit})
    _print_explanation(answer, as_json)


def _print_explanation(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(answer)
        return
    rows: list[tuple[str, Any]] = []
    if answer.get("lease") is not None:
        rows.append(("lease", answer["lease"]))
    rows.append(("decision", cell(answer, "decision")))
    if answer.get("expected_start") is not None:
        rows.append(("room", f"by {when(answer['expected_start'])}, if nobody before it takes it"))
    placement = answer.get("placement") or {}
    rows += [(key, value) for key, value in placement.items() if isinstance(value, str | int)]
    sheet(rows)
    summary = cell(answer, "summary")
    if summary:
        print()
        table(("GPUS", "WHY"), [(count, why) for why, count in summary.items()], "")
    gpus = cell(answer, "gpus")
    if gpus:
        print()
        columns = ("GPU", "FITS", "RANK", "FREE", "COMPUTE", "WHY NOT")
        table(columns, [_verdict_row(gpu) for gpu in gpus], "")


def _verdict_row(gpu: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        f"{cell(gpu, 'node')}/{cell(gpu, 'index')}",
        "yes" if gpu.get("fits") else "no",
        cell(gpu, "rank"),
        memory(cell(gpu, "free_bytes")),
        compute(cell(gpu, "free_permille")),
        cell(gpu, "reason"),
    )
