"""``gpupool context``: the places that `gpupool login` has kept."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpupool import contexts, show
from gpupool.options import JsonOption, one_line_errors
from gpupool.pool_show import NONE, sheet, table
from gpupool_common.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True, help="Pools and servers by name, as `gpupool login` has kept them."
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="of `gpupool context list`")]


def _shown(name: str, context: contexts.Context, current: str) -> dict[str, Any]:
    """All but the token, which nobody should have on a screen."""
    return {
        "name": name,
        "current": name == current,
        "pool": context.pool or None,
        "server": context.server.partition("?")[0] or None,
        "ca": context.ca or None,
        "fingerprint": context.fingerprint or None,
    }


@app.command("list")
def list_contexts(as_json: JsonOption = False) -> None:
    """Show all contexts; never their tokens."""
    with one_line_errors():
        known = contexts.load(contexts.default_path())
    rows = [_shown(name, each, known.current) for name, each in sorted(known.named.items())]
    if as_json:
        show.print_json(rows)
        return
    cells = [
        ("*" if row["current"] else "", row["name"], row["pool"] or row["server"]) for row in rows
    ]
    table(("", "NAME", "PLACE"), cells, "no context; gpupool login makes one")


@app.command("show")
def show_context(
    name: Annotated[str | None, typer.Argument(help="else the one that is in use")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one context, else the one in use; never the token."""
    with one_line_errors():
        if name is None:
            found = contexts.chosen()
            if found is None:
                raise ConfigError(_none_in_use())
        else:
            found = name, contexts.load(contexts.default_path()).of(name)
    row = _shown(*found, contexts.load(contexts.default_path()).current)
    if as_json:
        show.print_json(row)
    else:
        sheet([(key, NONE if value is None else value) for key, value in row.items()])


def _none_in_use() -> str:
    place = contexts.place_variable()
    if place:
        return f"no context is in use: the variable {place} names the place"
    return "no context is in use; gpupool login makes one, gpupool context use takes one"


@app.command("use")
def use(name: NameArgument) -> None:
    """Make another context the current one."""
    with one_line_errors():
        path = contexts.default_path()
        contexts.load(path).of(name)
        contexts.change(path, lambda known: known.with_one(name, known.of(name)))
        place = contexts.place_variable()
    print(f"{name} is the current context now")
    if place:
        print(f"the variable {place} comes before it in this shell", file=sys.stderr)


@app.command("remove")
def remove(name: NameArgument) -> None:
    """Forget a context and its token, which stays valid."""
    with one_line_errors():
        path = contexts.default_path()
        contexts.load(path).of(name)
        contexts.change(path, lambda known: known.without(name))
