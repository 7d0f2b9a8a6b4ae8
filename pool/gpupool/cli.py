"""The command ``gpupool``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gpupool import events, gpu, key, lease, node, queue, quota, session, show, tenant, token, usage
from gpupool.inspect import inspect
from gpupool.options import (
    ServerOption,
    ServerTokenOption,
    need_server,
    need_token,
    one_line_errors,
)
from gpupool.run import check_servers
from gpupool.run_command import run
from gpupool.show import age, plain_table
from gpupool.smi import smi
from gpupool.top import top
from gpupool_common import __version__, paths
from gpupool_common.ask import ask_info
from gpupool_common.sizes import short_size

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut names and defaults at 80 columns
    no_args_is_help=True,
    help="CUDA programs on GPUs that their machine does not have.",
)
app.command("run", context_settings={"allow_interspersed_args": False})(run)
app.command("smi")(smi)
app.command("top")(top)
app.command("inspect")(inspect)
app.add_typer(gpu.app, name="gpu")
app.add_typer(session.app, name="session")
app.add_typer(node.app, name="node")
app.add_typer(tenant.app, name="tenant")
app.add_typer(quota.app, name="quota")
app.add_typer(token.app, name="token")
app.add_typer(key.app, name="key")
app.add_typer(lease.app, name="lease")
app.add_typer(queue.app, name="queue")
usage.add_to(app)
events.add_to(app)


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


@app.command("info")
def info(
    server: ServerOption = None,
    token: ServerTokenOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON list, a server an entry")
    ] = False,
) -> None:
    """Show the devices and the sessions of one or several servers."""
    with one_line_errors():
        urls = check_servers(need_server(server)).split(",")
        secret = need_token(token)
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
                    short_size(d["memory_bytes"]),
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
        return short_size(value) if isinstance(value, int) else "?"

    return plain_table(
        ("session", "program", "client", "GPUs", "memory", "calls", "state", "age"),
        [
            (
                s["session"],
                s["program"],
                f"{s['client_host']}:{s['client_pid']}",
                ",".join(map(str, s["devices"])),
                size(s.get("memory_bytes")),
                s.get("calls", s.get("trouble", "?")),
                s.get("state", "?"),
                age(time.time() - s["created"]),
            )
            for s in sessions
        ],
    )


def main() -> None:
    """The entry point."""
    app(prog_name="gpupool")
