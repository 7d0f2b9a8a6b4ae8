"""``gpupool inspect``: whose memory the GPUs' memory is, as ``kubectl inspect cgpu`` shows it.

Allocated is what has been promised: the limits of the tenants. A tenant without a
limit is promised nothing, and counts with what it has in use.
"""

from __future__ import annotations

import socket
from typing import Annotated, Any

import typer
from rich.console import Console

from gpupool import show
from gpupool.admin import Admin
from gpupool.options import JsonOption, RunDirOption, one_line_errors
from gpupool.pool_address import choose
from gpupool.pool_client import PoolClient
from gpupool.pool_inspect import inspect_pool
from gpupool.pool_options import CaOption, PoolOption, TokenFileOption, is_pool
from gpupool.status import Gpu, Status, ask_status


def inspect(
    details: Annotated[bool, typer.Option("-d", "--details", help="a line per tenant")] = False,
    run_dir: RunDirOption = None,
    pool: PoolOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how much of each GPU's memory is allocated; -d: to whom.

    Of a whole pool with --pool or GPUPOOL_POOL (an admin's token); else, or with
    --run-dir, of this machine's server.
    """
    with one_line_errors():
        if is_pool(pool, run_dir):
            with PoolClient(choose(pool, token_file, ca)) as client:
                inspect_pool(client, details, as_json)
            return
        status, answer = ask_status(Admin(run_dir))
    if as_json:
        show.print_json({**summary(status), "confinement": answer.get("confinement", {})})
        return
    console = show.wide_console()
    if details:
        _print_details(console, status)
    else:
        _print_node(console, status)
    total = sum(gpu.memory_total_bytes for gpu in status.gpus)
    console.print("Allocated/Total GPU Memory In Pool:")
    console.print(_of(sum(map(allocated, status.gpus)), total) + " GiB")
    if isinstance(layers := answer.get("confinement"), dict):
        off = [str(name) for name, state in layers.items() if state != "on"]
        console.print(f"Confinement of workers off: {', '.join(off) or 'none'}")


def allocated(gpu: Gpu) -> int:
    return sum(gpu.reserved(tenant) for tenant in gpu.tenants)


def summary(status: Status) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "name": status.host,
        "address": address(),
        "gpus": [
            {
                "index": gpu.index,
                "allocated_bytes": allocated(gpu),
                "total_bytes": gpu.memory_total_bytes,
                "tenant_bytes": {tenant.name: gpu.reserved(tenant) for tenant in gpu.tenants},
            }
            for gpu in status.gpus
        ],
        "allocated_bytes": sum(map(allocated, status.gpus)),
        "total_bytes": sum(gpu.memory_total_bytes for gpu in status.gpus),
    }


def address() -> str:
    """The address under which others see this machine; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address of documentation
            return str(sock.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _of(part: int, total: int) -> str:
    percent = round(100 * part / total) if total else 0
    return f"{show.gibibytes(part)}/{show.gibibytes(total)} ({percent}%)"


def _print_node(console: Console, status: Status) -> None:
    heads = [f"GPU{gpu.index}(Allocated/Total)" for gpu in status.gpus]
    cells = [
        f"{show.gibibytes(allocated(gpu))}/{show.gibibytes(gpu.memory_total_bytes)}"
        for gpu in status.gpus
    ]
    total = sum(gpu.memory_total_bytes for gpu in status.gpus)
    whole = f"{show.gibibytes(sum(map(allocated, status.gpus)))}/{show.gibibytes(total)}"
    rows = [(status.host, address(), *cells, whole)]
    console.print(show.plain_table(("NAME", "IPADDRESS", *heads, "GPU Memory(GiB)"), rows))
    console.print("-" * 60)


def _print_details(console: Console, status: Status) -> None:
    console.print(f"NAME:       {status.host}")
    console.print(f"IPADDRESS:  {address()}\n")
    names = sorted({tenant.name for gpu in status.gpus for tenant in gpu.tenants})
    rows = [(name, *(_share_of(gpu, name) for gpu in status.gpus)) for name in names]
    heads = [f"GPU{gpu.index}(Allocated)" for gpu in status.gpus]
    console.print(show.plain_table(("NAME", *heads), rows))
    for gpu in status.gpus:
        console.print(
            f"GPU{gpu.index} Allocated: {_of(allocated(gpu), gpu.memory_total_bytes)} GiB"
        )
    console.print("-" * 60)


def _share_of(gpu: Gpu, name: str) -> str:
    for tenant in gpu.tenants:
        if tenant.name == name:
            return show.gibibytes(gpu.reserved(tenant))
    return "0"


def add_to(app: typer.Typer) -> None:
    app.command("inspect")(inspect)
