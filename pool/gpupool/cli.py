"""The command ``gpupool``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gpupool import __version__, gpu, paths, request, session, show
from gpupool.ask import ask_info
from gpupool.errors import ConfigError
from gpupool.inspect import inspect
from gpupool.options import one_line_errors
from gpupool.run import (
    LocalOptions,
    check_servers,
    client_environment,
    local_server,
    replace_process,
    run_child,
)
from gpupool.show import age, plain_table
from gpupool.sizes import format_size
from gpupool.smi import smi
from gpupool.top import top

LOG_LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="CUDA programs on GPUs that their machine does not have.",
)
app.command("smi")(smi)
app.command("top")(top)
app.command("inspect")(inspect)
app.add_typer(gpu.app, name="gpu")
app.add_typer(session.app, name="session")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gpupool {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("lib-path")
def lib_path() -> None:
    """Print the folder to put first in LD_LIBRARY_PATH."""
    with one_line_errors():
        print(paths.find_home().lib_path)


ServerOption = Annotated[
    str | None,
    typer.Option(envvar="GPUPOOL_SERVER", help="tcp://HOST:PORT or ipc:///PATH of the server"),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="GPUPOOL_TOKEN",
        show_envvar=True,
        help="the server's token (seen by ps; prefer the variable)",
    ),
]


def _need(value: str | None, flag: str, variable: str, more: str = "") -> str:
    if not value:
        raise ConfigError(f"name it with {flag} or the variable {variable}{more}")
    return value


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="what to run")],
    local: Annotated[
        bool, typer.Option("--local", help="start a server for this program alone, on this machine")
    ] = False,
    server: ServerOption = None,
    token: TokenOption = None,
    gpus: Annotated[str | None, typer.Option(help="how many GPUs it gets, 1..64")] = None,
    memory: Annotated[str | None, typer.Option(help="of each GPU, e.g. 8GiB")] = None,
    share: Annotated[str | None, typer.Option(help="of each GPU, e.g. 50% or 0.5")] = None,
    ceiling: Annotated[
        str | None, typer.Option(help="up to what it borrows idle compute, e.g. 90%")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="0..25 slices, where the GPU's policy has weights")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high or normal")] = None,
    group: Annotated[
        str | None, typer.Option(help="share one request with others of this name; else a new one")
    ] = None,
    vcuda_core: Annotated[
        str | None, typer.Option(help="as vCUDA: percent of a GPU, or a multiple of 100")
    ] = None,
    vcuda_memory: Annotated[str | None, typer.Option(help="as vCUDA: units of 256 MiB")] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="with --local: soft GPUs even where a real one is")
    ] = False,
    log: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
    pool: Annotated[str | None, typer.Option(hidden=True)] = None,
    policy: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a program whose CUDA calls go to a gpupool server."""
    options = {
        request.GROUP: group,
        request.GPUS: gpus,
        request.MEMORY: memory,
        request.SHARE: share,
        request.CEILING: ceiling,
        request.WEIGHT: weight,
        request.PRIORITY: priority,
        request.VCUDA_CORE: vcuda_core,
        request.VCUDA_MEMORY: vcuda_memory,
    }
    with one_line_errors():
        _refuse(pool, policy)
        if log is not None and log not in LOG_LEVELS:
            raise ConfigError(f"--log: {log!r} is not one of {', '.join(LOG_LEVELS)}")
        given = context.get_parameter_source("server")
        if local and given is not None and given.name == "COMMANDLINE":
            raise ConfigError("--local and --server exclude each other")
        if soft and not local:
            raise ConfigError("--soft is for --local; a server chooses its driver itself")
        env, asked = request.with_options(os.environ, options)
        if local:
            count = int(asked["gpus"]) if "gpus" in asked else None
            code = _run_local(command, LocalOptions(soft, count, log or "warning"), env, log)
        else:
            code = _run_remote(command, server, token, env, log)
    raise typer.Exit(code)


def _refuse(pool: str | None, policy: str | None) -> None:
    """Options that scripts may already use; to take them and do nothing would be a lie."""
    if pool is not None:
        raise ConfigError(
            "--pool is not in this release (it needs a gpupool-manager); leave it out"
        )
    if policy is not None:
        raise ConfigError(
            "--policy: a GPU's policy is its operator's (gpupool gpu set); leave it out"
        )


def _run_local(
    command: list[str], options: LocalOptions, env: Mapping[str, str], log: str | None
) -> int:
    home = paths.find_home()
    home.part(paths.CLIENT_LIBRARY)
    with local_server(options) as (url, token):
        return run_child(command, client_environment(home, url, token, env, log))


def _run_remote(
    command: list[str],
    server: str | None,
    token: str | None,
    env: Mapping[str, str],
    log: str | None,
) -> int:
    url = check_servers(_need(server, "--server", "GPUPOOL_SERVER", ", or use --local"))
    secret = _need(token, "--token", "GPUPOOL_TOKEN")
    replace_process(command, client_environment(paths.find_home(), url, secret, env, log))
    raise AssertionError("execvpe returned")


@app.command("info")
def info(
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON list, a server an entry")
    ] = False,
) -> None:
    """Show the devices and the sessions of one or several servers."""
    with one_line_errors():
        urls = check_servers(_need(server, "--server", "GPUPOOL_SERVER")).split(",")
        secret = _need(token, "--token", "GPUPOOL_TOKEN")
        answers = [{"url": url, **ask_info(url, secret)} for url in urls]
    if as_json:
        show.print_json(answers)
        return
    console = show.wide_console()
    for answer in answers:
        _print_server(console, answer)


def _print_server(console: Console, answer: dict[str, Any]) -> None:
    sessions = answer["sessions"]
    console.print(
        f"{answer['url']}  gpupool {answer['server']} on {answer['host']},"
        f" {len(sessions)} of {answer['max_sessions']} sessions"
    )
    users = [index for session in sessions for index in session["devices"]]
    console.print(
        plain_table(
            ("GPU", "name", "memory", "PCI", "sessions"),
            [
                (
                    d["index"],
                    d["name"],
                    format_size(d["memory_bytes"]),
                    d["pci"],
                    users.count(d["index"]),
                )
                for d in answer["devices"]
            ],
        )
    )
    if sessions:
        console.print(_session_table(sessions))


def _session_table(sessions: list[dict[str, Any]]) -> Table:
    def size(value: Any) -> str:
        return format_size(value) if isinstance(value, int) else "?"

    return plain_table(
        ("session", "program", "client", "GPUs", "memory", "calls", "age"),
        [
            (
                s["session"],
                s["program"],
                f"{s['client_host']}:{s['client_pid']}",
                ",".join(map(str, s["devices"])),
                size(s.get("memory_bytes")),
                s.get("calls", s.get("trouble", "?")),
                age(time.time() - s["created"]),
            )
            for s in sessions
        ],
    )


def main() -> None:
    """The entry point."""
    app(prog_name="gpupool")
