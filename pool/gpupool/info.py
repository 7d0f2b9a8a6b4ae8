"""``gpupool info``: the devices and the sessions of servers."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gpupool import show
from gpupool.options import (
    ServerOption,
    ServerTokenOption,
    need_server,
    need_token,
    one_line_errors,
)
from gpupool.run import check_servers
from gpupool.show import age, plain_table
from gpupool_common.ask import ask_info
from gpupool_common.sizes import format_part, short_size


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
        secret = need_token(token, ",".join(urls))
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
                    d["pci"] + _part_of(d.get("instance")),
                    users.count(d["index"]),
                )
                for d in answer["devices"]
            ],
        )
    )
    if sessions:
        console.print(_session_table(sessions))


def _part_of(instance: dict[str, Any] | None) -> str:
    """Which GPU an instance is a part of, and how much of its compute it has."""
    if instance is None:
        return ""
    return f" {format_part(instance['share_permille'])} of GPU {instance['card']}"


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


def add_to(app: typer.Typer) -> None:
    app.command("info")(info)
