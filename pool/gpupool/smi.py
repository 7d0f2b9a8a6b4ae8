"""``gpupool smi``: a server's GPUs and the tenants on them, in 80 columns."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpupool import show
from gpupool.admin import Admin
from gpupool.options import JsonOption, RunDirOption, one_line_errors
from gpupool.status import UNLIMITED, Gpu, Status, Tenant, ask_status


def smi(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Show the GPUs of this machine's server and their tenants."""
    with one_line_errors():
        status, answer = ask_status(Admin(run_dir))
    if as_json:
        show.print_json(answer)
        return
    print_status(show.console(show.WIDTH), status)


def print_status(console: Console, status: Status) -> None:
    left = f"gpupool {status.version} on {status.host}"[: show.WIDTH - 20]
    console.print(left + time.strftime("%F %T").rjust(show.WIDTH - len(left)))
    console.print(_gpus(status))
    console.print(_tenants(status))
    if any(tenant.processes for gpu in status.gpus for tenant in gpu.tenants):
        console.print(_processes(status))


def limit(gpu: Gpu, tenant: Tenant) -> str:
    """The most compute that the policy gives a tenant now."""
    return "none" if gpu.policy == UNLIMITED else show.part(tenant.entitled_permille)


def _used_of(used: int, total: int) -> str:
    return f"{show.mebibytes(used)} / {show.mebibytes(total)}"


def _gpus(status: Status) -> Table:
    table = show.boxed_table(
        ("GPU", 3, "right"),
        ("Name", 21, "left"),
        ("Util", 6, "right"),
        ("Memory used / total", 20, "right"),
        ("Policy", 14, "left"),
    )
    for gpu in status.gpus:
        policy = (
            gpu.policy if gpu.policy in ("share", UNLIMITED) else f"{gpu.policy} {gpu.max_inst}"
        )
        table.add_row(
            str(gpu.index),
            Text(gpu.name),
            show.part(gpu.utilisation_permille),
            _used_of(gpu.memory_used_bytes, gpu.memory_total_bytes),
            Text(policy),
        )
    return table


def _tenants(status: Status) -> Table | str:
    table = show.boxed_table(
        ("GPU", 3, "right"),
        ("Tenant", 29, "left"),
        ("Util", 6, "right"),
        ("Limit", 6, "right"),
        ("Memory used/allotted", 20, "right"),
    )
    for gpu in status.gpus:
        for tenant in gpu.tenants:
            table.add_row(
                str(gpu.index),
                Text(tenant.name + (" (high)" if tenant.high_priority else "")),
                show.part(tenant.utilisation_permille),
                limit(gpu, tenant),
                _used_of(tenant.memory_used_bytes, gpu.allotted(tenant)),
            )
    return table if table.row_count else "No tenant is on a GPU."


def _processes(status: Status) -> Table:
    table = show.boxed_table(
        ("GPU", 3, "right"),
        ("Worker", 7, "right"),
        ("Client", 7, "right"),
        ("Tenant", 18, "left"),
        ("Program", 16, "left"),
        ("Memory", 10, "right"),
    )
    for gpu in status.gpus:
        for tenant in gpu.tenants:
            for process in tenant.processes:
                table.add_row(
                    str(gpu.index),
                    str(process.pid),
                    "?" if process.client_pid is None else str(process.client_pid),
                    Text(tenant.name),
                    Text(Path(process.program or "?").name),
                    show.mebibytes(process.memory_used_bytes),
                )
    return table


def add_to(app: typer.Typer) -> None:
    app.command("smi")(smi)
