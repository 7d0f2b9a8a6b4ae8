"""The command ``gpupool``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from gpupool.nearly_right import Helpful
from gpupool_common import collector, manual
from gpupool_common.errors import GpupoolError

#: The modules of commands. Each adds its own: the one that is asked for imports no other's.
MODULES = {
    "run": "run_command",
    "smi": "smi",
    "top": "top",
    "inspect": "inspect",
    "usage": "usage",
    "audit": "usage",
    "events": "events",
    "lib-path": "lib_path",
    "info": "info",
    "doctor": "doctor",
    "login": "login",
    "reserve": "reserve",
}
#: Commands that have commands, and are called as their modules.
GROUPS = (
    "gpu",
    "session",
    "node",
    "tenant",
    "quota",
    "token",
    "key",
    "lease",
    "reservation",
    "queue",
    "context",
)
COMMANDS = (*MODULES, *GROUPS)


def _show_version(value: bool) -> None:
    if value:
        from gpupool_common import __version__

        typer.echo(f"gpupool {__version__}")
        raise typer.Exit


def _context_names(incomplete: str) -> list[str]:
    """For a shell that completes; a file that is wrong has none."""
    from gpupool import contexts

    try:
        names = contexts.load(contexts.default_path()).named
    except GpupoolError:
        return []
    return [name for name in sorted(names) if name.startswith(incomplete)]


def _use_context(value: str | None) -> None:
    """For this command and what it starts; options come before variables."""
    if value:
        from gpupool import contexts

        for name in contexts.OVERRIDDEN:
            os.environ.pop(name, None)
        os.environ[contexts.CONTEXT] = value


def _root(
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            callback=_use_context,
            autocompletion=_context_names,
            help="which of `gpupool context list`, instead of the current one",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command with these commands."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut names and defaults at 80 columns
        no_args_is_help=True,
        cls=Helpful,
        help="CUDA programs on GPUs that their machine does not have.",
    )
    app.callback()(_root)
    names = tuple(names)
    for module in dict.fromkeys(MODULES[name] for name in names if name in MODULES):
        import_module(f"gpupool.{module}").add_to(app)
    for group in (name for name in names if name in GROUPS):
        app.add_typer(import_module(f"gpupool.{group}").app, name=group)
    app.command("completion")(manual.completion_of("gpupool"))
    app.command("man")(manual.man_of("gpupool", manual.USERS, _parsers))
    return app


def _parsers() -> dict[str, Any]:
    """All parsers by their words, for pages."""
    root = typer.main.get_command(make_app())
    commands = getattr(root, "commands", {})
    return {"gpupool": root, **{f"gpupool {word}": each for word, each in commands.items()}}


def main() -> None:
    """The entry point."""
    manual.prepare("gpupool")
    asked = sys.argv[1:2]
    with collector.importing():
        app = make_app(asked if asked and asked[0] in COMMANDS else COMMANDS)
    app(prog_name="gpupool")
