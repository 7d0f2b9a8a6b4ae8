"""``gpupool node``: the hosts of a pool."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from gpupool import show
from gpupool.options import JsonOption
from gpupool.pool_client import PoolClient, at
from gpupool.pool_options import pool_command
from gpupool.pool_request import read_duration, read_labels
from gpupool.pool_show import cell, labels, sheet, since, table, when
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.hosts import is_loopback
from gpupool_common.secret_file import write_secret

app = typer.Typer(no_args_is_help=True, help="The hosts of a pool, and how one joins.")

NameArgument = Annotated[str, typer.Argument(metavar="NODE", help="the node's name")]

#: A join token is for one evening's work; a longer one must be asked for.
JOIN_LIFETIME = "1d"
_ANY = ("0.0.0.0", "::", "*", "")


@pool_command(app, "list")
def list_nodes(
    client: PoolClient,
    state: Annotated[str | None, typer.Option(help="ready, aside or lost")] = None,
    mode: Annotated[str | None, typer.Option(help="open, cordoned or draining")] = None,
    label: Annotated[str | None, typer.Option(help="KEY=VALUE")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the hosts."""
    nodes = client.all("/nodes", {"state": state, "mode": mode, "label": label})
    if as_json:
        show.print_json(nodes)
        return
    columns = ("NAME", "STATE", "MODE", "GPUS", "LEASES", "SESSIONS", "SEEN", "LABELS")
    rows = [
        (
            *(cell(node, key) for key in ("name", "state", "mode", "gpus", "leases", "sessions")),
            since(node.get("last_seen")),
            labels(node.get("labels")),
        )
        for node in nodes
    ]
    table(columns, rows, "no node; `gpupool node join --name NAME` says how one joins")
    for node in nodes:
        if node.get("reason"):
            print(f"{cell(node, 'name')}: {cell(node, 'reason')}")


@pool_command(app, "show")
def show_node(client: PoolClient, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show one host."""
    _print_node(client.get(at("nodes", name)), as_json)


def _print_node(node: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(node)
        return
    keys = (
        "name",
        "address",
        "state",
        "reason",
        "mode",
        "gpus",
        "leases",
        "sessions",
        "server_version",
        "driver",
    )
    rows: list[tuple[str, Any]] = [(key.replace("_", " "), cell(node, key)) for key in keys]
    rows += [("labels", labels(node.get("labels"))), ("joined", when(node.get("created")))]
    sheet([*rows, ("last seen", when(node.get("last_seen")))])


def _set_mode(client: PoolClient, name: str, mode: str, as_json: bool) -> None:
    node = client.do("PATCH", at("nodes", name), {"mode": mode})
    if as_json:
        show.print_json(node)
    else:
        print(f"{cell(node, 'name')} is {cell(node, 'mode')}, leases on it: {cell(node, 'leases')}")


@pool_command(app, "cordon")
def cordon(client: PoolClient, name: NameArgument, as_json: JsonOption = False) -> None:
    """Place nothing new on a host; what runs there continues."""
    _set_mode(client, name, "cordoned", as_json)


@pool_command(app, "drain")
def drain(client: PoolClient, name: NameArgument, as_json: JsonOption = False) -> None:
    """As cordon, and its server takes no new sessions. Those that run finish."""
    _set_mode(client, name, "draining", as_json)


@pool_command(app, "open")
def open_node(client: PoolClient, name: NameArgument, as_json: JsonOption = False) -> None:
    """Use a host again that was cordoned or drained."""
    _set_mode(client, name, "open", as_json)


@pool_command(app, "label")
def label_node(
    client: PoolClient,
    name: NameArgument,
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help="to set, and to take away")
    ],
    as_json: JsonOption = False,
) -> None:
    """Set and take away labels of a host, by which requests choose."""
    removed = {text[:-1] for text in changes if text.endswith("-") and "=" not in text}
    added = read_labels("label", tuple(t for t in changes if t[:-1] not in removed or "=" in t))
    path = at("nodes", name)
    answer = client.ask("GET", path)
    before = answer.object(client.url).get("labels") or {}
    after = {key: value for key, value in before.items() if key not in removed} | added
    _print_node(client.do("PATCH", path, {"labels": after}, etag=answer.etag), as_json)


@pool_command(app, "remove")
def remove(
    client: PoolClient,
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="end its leases first, on all their hosts")
    ] = False,
) -> None:
    """Forget a host that has no leases. `node join` lets it in again."""
    client.do("DELETE", at("nodes", name) + ("?force=true" if force else ""))


@pool_command(app, "roll-key")
def roll_key(client: PoolClient, name: NameArgument) -> None:
    """Have a host make another key, by which the manager knows it."""
    client.do("POST", at("nodes", name, "roll-key"))
    print(f"{name} makes another key; its server's log says when")


@pool_command(app, "join")
def join(
    client: PoolClient,
    name: Annotated[str, typer.Option(help="the host's name in the pool")],
    lifetime: Annotated[
        str, typer.Option(help="how long the token is good for joining, e.g. 1h; 30d at most")
    ] = JOIN_LIFETIME,
    label: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, by which requests choose; several times")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="write the token into this file (mode 0600)")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token with which a host joins, and print what to run there."""
    body: dict[str, Any] = {"scope": "node", "node": name, "description": "gpupool node join"}
    body["lifetime_seconds"] = read_duration("--lifetime", lifetime)
    if label:
        body["labels"] = read_labels("--label", tuple(label))
    if out is not None and out.exists():
        raise ConfigError(f"--out: {out} exists already")
    made = client.do("POST", "/tokens", body)
    url, secret = where_to_join(made.get("nodes"), client.url), str(cell(made, "secret"))
    _warn_of_loopback(url)
    file = "join.token"
    if out is not None:
        write_secret(out, secret)
        file = out.name
    if as_json:
        show.print_json({**made, "nodes": url})
        return
    if out is None:
        print("On the GPU host, once:\n")
        print(f"  (umask 077; echo '{secret}' > {file})\n")
    else:
        print(f"Copy {out} to the GPU host (its mode must stay 0600), and there:\n")
    print(f"  gpupool-server --listen tcp://0.0.0.0:7700 \\\n    --pool {url} \\")
    print(f"    --join-token {file}" + f" --node-name {name}")


def _warn_of_loopback(url: str) -> None:
    """On the GPU host this address would mean that host itself."""
    if is_loopback(urlsplit(url).hostname or ""):
        print(
            f"gpupool: {url} reaches the manager from its own machine only; for other hosts let the"
            " manager listen beyond it (--nodes tcp://0.0.0.0:7781), and name the pool here by an"
            " address that they reach",
            file=sys.stderr,
        )


def where_to_join(nodes: Any, pool: str) -> str:
    """The address for a server, where the manager only knows that it listens everywhere."""
    if not isinstance(nodes, str):
        raise GpupoolError(
            f"the manager at {pool} takes no servers; start it with --nodes tcp://ADDRESS:7781"
        )
    parts = urlsplit(nodes)
    if (parts.hostname or "") not in _ANY:
        return nodes
    host = urlsplit(pool).hostname or ""
    return f"tcp://{f'[{host}]' if ':' in host else host}:{parts.port}"
