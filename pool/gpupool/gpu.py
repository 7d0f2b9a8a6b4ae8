"""``gpupool gpu``: what an operator sets of each GPU, effective at once and after restarts.

Of the server on this machine, or of a pool's GPUs.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.admin import Admin
from gpupool.options import JsonOption, RunDirOption, one_line_errors, read_number, read_size
from gpupool.pool_address import choose
from gpupool.pool_client import PoolClient
from gpupool.pool_gpu import change_gpu, find_gpu, list_pool_gpus, open_gpu, print_gpu
from gpupool.pool_options import CaOption, PoolOption, TokenFileOption, is_pool, pool_command
from gpupool.status import POLICIES, ask_status
from gpupool_common.errors import ConfigError
from gpupool_common.protocol import one_line
from gpupool_common.sizes import short_size

app = typer.Typer(
    no_args_is_help=True,
    help="Show and set how each GPU is shared. With --pool or GPUPOOL_POOL the GPUs of a pool,"
    " else those of this machine's server.",
)


@app.command("list")
def list_gpus(
    node: Annotated[str | None, typer.Option(help="of a pool: those of this host")] = None,
    run_dir: RunDirOption = None,
    pool: PoolOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show GPUs and their settings."""
    with one_line_errors():
        if is_pool(pool, run_dir):
            with PoolClient(choose(pool, token_file, ca)) as client:
                list_pool_gpus(client, node, as_json)
            return
        if node is not None:
            raise ConfigError("--node is for --pool; this machine's server has its own GPUs only")
        status, answer = ask_status(Admin(run_dir))
    if as_json:
        gpus = [{k: v for k, v in gpu.items() if k != "tenants"} for gpu in answer.get("gpus", [])]
        show.print_json(gpus)
        return
    # Short, for 80 columns: max-inst, prio-ratio, free-weight, default-memory, hardware slices.
    columns = ("GPU", "name", "memory", "policy", "inst", "prio", "free", "default", "hw")
    rows = [
        (
            gpu.index,
            gpu.name,
            short_size(gpu.memory_total_bytes),
            gpu.policy,
            gpu.max_inst,
            f"{gpu.prio_ratio}%",
            "?" if gpu.free_weight is None else gpu.free_weight,
            "quota" if not gpu.default_memory_bytes else short_size(gpu.default_memory_bytes),
            "yes" if gpu.hardware else "no",
        )
        for gpu in status.gpus
    ]
    show.wide_console().print(show.plain_table(columns, rows))
    for gpu in status.gpus:
        if gpu.sick:
            print(f"GPU {gpu.index} is put aside: {one_line(gpu.sick)}")


@pool_command(app, "show")
def show_gpu(
    client: PoolClient,
    gpu: Annotated[str, typer.Argument(metavar="NODE/INDEX|UUID")],
    as_json: JsonOption = False,
) -> None:
    """Show one GPU of a pool."""
    print_gpu(find_gpu(client, gpu), as_json)


@app.command("set")
def set_gpu(
    index: Annotated[
        str, typer.Argument(metavar="INDEX", help="the GPU; of a pool: NODE/INDEX or its UUID")
    ],
    policy: Annotated[
        str | None, typer.Option(help=f"{', '.join(POLICIES)}, or its number 0..6")
    ] = None,
    max_inst: Annotated[str | None, typer.Option(help="slices of the GPU, 1..25")] = None,
    prio_ratio: Annotated[
        str | None, typer.Option(help="percent that high priority may take, 20..99")
    ] = None,
    default_memory: Annotated[
        str | None,
        typer.Option(help="of a session that asks for none, e.g. 8GiB; 'none': its tenant's quota"),
    ] = None,
    run_dir: RunDirOption = None,
    pool: PoolOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a GPU's settings while its tenants run."""
    with one_line_errors():
        of_pool = is_pool(pool, run_dir)
        number = 0 if of_pool else read_number("INDEX", index, 0, 63)
        changes: dict[str, Any] = {}
        if policy is not None:
            changes["policy"] = _read_policy(policy)
        if max_inst is not None:
            changes["max_inst"] = read_number("--max-inst", max_inst, 1, 25)
        if prio_ratio is not None:
            changes["prio_ratio"] = read_number("--prio-ratio", prio_ratio, 20, 99)
        if default_memory is not None:
            if of_pool:
                raise ConfigError("--default-memory: a pool's leases say their memory themselves")
            changes["default_memory_bytes"] = _read_default(default_memory)
        if not changes:
            raise ConfigError(
                "say what to set: --policy, --max-inst, --prio-ratio or --default-memory"
            )
        if of_pool:
            with PoolClient(choose(pool, token_file, ca)) as client:
                change_gpu(client, index, changes, as_json)
            return
        answer = Admin(run_dir).ask({"do": "gpu-set", "gpu": number, **changes})
    if as_json:
        show.print_json(answer)


@app.command("open")
def open_again(
    index: Annotated[
        str, typer.Argument(metavar="INDEX", help="the GPU; of a pool: NODE/INDEX or its UUID")
    ],
    run_dir: RunDirOption = None,
    pool: PoolOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Use a GPU again that was put aside as sick."""
    with one_line_errors():
        if is_pool(pool, run_dir):
            with PoolClient(choose(pool, token_file, ca)) as client:
                open_gpu(client, index, as_json)
            return
        number = read_number("INDEX", index, 0, 63)
        answer = Admin(run_dir).ask({"do": "gpu-open", "gpu": number})
    if as_json:
        show.print_json(answer)


@app.command("aside")
def put_aside(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="a GPU of this machine's server")],
    reason: Annotated[str, typer.Option(help="one line, which its tenants are told")],
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place nothing new on a GPU of this machine, nor its pool."""
    with one_line_errors():
        number = read_number("INDEX", index, 0, 63)
        answer = Admin(run_dir).ask({"do": "gpu-aside", "gpu": number, "reason": reason})
    if as_json:
        show.print_json(answer)


def _read_policy(text: str) -> str:
    if text in POLICIES:
        return text
    if text.isascii() and text.isdecimal() and int(text[:4]) < len(POLICIES):
        return POLICIES[int(text)]
    raise ConfigError(f"--policy: {text!r} is not one of {', '.join(POLICIES)}, 0..6")


def _read_default(text: str) -> int | None:
    if text == "none":
        return None
    size = read_size("--default-memory", text)
    if size == 0:
        raise ConfigError("--default-memory: 0 would leave nothing; write 'none' for no default")
    return size
