"""The command ``gpupool``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from gpupool import __version__, paths
from gpupool.ask import ask_info
from gpupool.errors import ConfigError, GpupoolError
from gpupool.run import (
    LocalOptions,
    StartError,
    check_servers,
    client_environment,
    local_server,
    replace_process,
    run_child,
)
from gpupool.sizes import format_size

LOG_LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="CUDA programs on GPUs that their machine does not have.",
)


def _fail(error: GpupoolError) -> NoReturn:
    print(f"gpupool: {error}", file=sys.stderr)
    if isinstance(error, StartError):
        raise typer.Exit(error.exit_code)
    raise typer.Exit(2 if isinstance(error, ConfigError) else 1)


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
    try:
        print(paths.find_home().lib_path)
    except GpupoolError as error:
        _fail(error)


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


def _refuse_later(**options: str | None) -> None:
    """Options that scripts may already use; to take them and do nothing would be a lie."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"--{name} is not in this release (it needs a gpupool-manager); leave it out"
            )


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="what to run")],
    local: Annotated[
        bool, typer.Option("--local", help="start a server for this program alone, on this machine")
    ] = False,
    server: ServerOption = None,
    token: TokenOption = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=64, help="how many GPUs it gets")] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="with --local: soft GPUs even where a real one is")
    ] = False,
    log: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
    pool: Annotated[str | None, typer.Option(hidden=True)] = None,
    memory: Annotated[str | None, typer.Option(hidden=True)] = None,
    share: Annotated[str | None, typer.Option(hidden=True)] = None,
    policy: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a program whose CUDA calls go to a gpupool server."""
    try:
        _refuse_later(pool=pool, memory=memory, share=share, policy=policy)
        if log is not None and log not in LOG_LEVELS:
            raise ConfigError(f"--log: {log!r} is not one of {', '.join(LOG_LEVELS)}")
        given = context.get_parameter_source("server")
        if local and given is not None and given.name == "COMMANDLINE":
            raise ConfigError("--local and --server exclude each other")
        if local:
            code = _run_local(command, LocalOptions(soft, gpus, log or "warning"), log)
        else:
            code = _run_remote(command, server, token, gpus, soft, log)
    except GpupoolError as error:
        _fail(error)
    raise typer.Exit(code)


def _run_local(command: list[str], options: LocalOptions, log: str | None) -> int:
    home = paths.find_home()
    home.part(paths.CLIENT_LIBRARY)
    with local_server(options) as (url, token):
        return run_child(command, client_environment(home, url, token, os.environ, log))


def _run_remote(
    command: list[str],
    server: str | None,
    token: str | None,
    gpus: int | None,
    soft: bool,
    log: str | None,
) -> int:
    if soft:
        raise ConfigError("--soft is for --local; a server chooses its driver itself")
    url = check_servers(_need(server, "--server", "GPUPOOL_SERVER", ", or use --local"))
    env = client_environment(
        paths.find_home(), url, _need(token, "--token", "GPUPOOL_TOKEN"), os.environ, log
    )
    if gpus is not None:
        env["GPUPOOL_GPUS"] = str(gpus)
    replace_process(command, env)
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
    try:
        urls = check_servers(_need(server, "--server", "GPUPOOL_SERVER")).split(",")
        secret = _need(token, "--token", "GPUPOOL_TOKEN")
        answers = [{"url": url, **ask_info(url, secret)} for url in urls]
    except GpupoolError as error:
        _fail(error)
    if as_json:
        print(json.dumps(answers, indent=2))
        return
    console = Console()
    for answer in answers:
        _print_server(console, answer)


def _print_server(console: Console, answer: dict[str, Any]) -> None:
    sessions = answer["sessions"]
    console.print(
        f"{answer['url']}  gpupool {answer['server']} on {answer['host']},"
        f" {len(sessions)} of {answer['max_sessions']} sessions",
        highlight=False,
        markup=False,
    )
    users = [index for session in sessions for index in session["devices"]]
    console.print(
        _table(
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

    return _table(
        ("session", "program", "client", "GPUs", "memory", "calls", "age"),
        [
            (
                s["session"],
                s["program"],
                f"{s['client_host']}:{s['client_pid']}",
                ",".join(map(str, s["devices"])),
                size(s.get("memory_bytes")),
                s.get("calls", s.get("trouble", "?")),
                _age(time.time() - s["created"]),
            )
            for s in sessions
        ],
    )


def _age(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Table:
    from rich.markup import escape

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def main() -> None:
    """The entry point."""
    app(prog_name="gpupool")
