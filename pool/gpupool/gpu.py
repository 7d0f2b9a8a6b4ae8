"""``gpupool gpu``: what an operator sets of each GPU, effective at once and after restarts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.admin import Admin
from gpupool.errors import ConfigError
from gpupool.options import JsonOption, RunDirOption, one_line_errors, read_number, read_size
from gpupool.sizes import format_size
from gpupool.status import POLICIES, ask_status

app = typer.Typer(no_args_is_help=True, help="Show and set how each GPU is shared.")


@app.command("list")
def list_gpus(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Show the GPUs of this machine's server and their settings."""
    with one_line_errors():
        status, answer = ask_status(Admin(run_dir))
    if as_json:
        gpus = [{k: v for k, v in gpu.items() if k != "tenants"} for gpu in answer.get("gpus", [])]
        show.print_json(gpus)
        return
    columns = ("GPU", "name", "memory", "policy", "max-inst", "prio-ratio", "free-weight")
    rows = [
        (
            gpu.index,
            gpu.name,
            format_size(gpu.memory_total),
            gpu.policy,
            gpu.max_inst,
            f"{gpu.prio_ratio}%",
            "?" if gpu.free_weight is None else gpu.free_weight,
            "quota" if not gpu.default_memory else format_size(gpu.default_memory),
            "yes" if gpu.hardware else "no",
        )
        for gpu in status.gpus
    ]
    show.wide_console().print(show.plain_table((*columns, "default-memory", "slices"), rows))


@app.command("set")
def set_gpu(
    index: Annotated[str, typer.Argument(help="the GPU's index")],
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
    as_json: JsonOption = False,
) -> None:
    """Change a GPU's settings while its tenants run."""
    with one_line_errors():
        question: dict[str, Any] = {"do": "gpu-set", "gpu": read_number("INDEX", index, 0, 63)}
        if policy is not None:
            question["policy"] = _read_policy(policy)
        if max_inst is not None:
            question["max_inst"] = read_number("--max-inst", max_inst, 1, 25)
        if prio_ratio is not None:
            question["prio_ratio"] = read_number("--prio-ratio", prio_ratio, 20, 99)
        if default_memory is not None:
            question["default_memory"] = _read_default(default_memory)
        if len(question) == 2:
            raise ConfigError(
                "say what to set: --policy, --max-inst, --prio-ratio or --default-memory"
            )
        answer = Admin(run_dir).ask(question)
    if as_json:
        show.print_json(answer)


def _read_policy(text: str) -> str:
    if text in POLICIES:
        return text
    if text.isascii() and text.isdecimal() and int(text[:4]) < len(POLICIES):
        return POLICIES[int(text)]
    raise ConfigError(f"--policy: {text!r} is none of {', '.join(POLICIES)}, 0..6")


def _read_default(text: str) -> int | None:
    if text == "none":
        return None
    size = read_size("--default-memory", text)
    if size == 0:
        raise ConfigError("--default-memory: 0 would leave nothing; write 'none' for no default")
    return size
