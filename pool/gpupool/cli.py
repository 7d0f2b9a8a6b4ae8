"""The command ``gpupool``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from gpupool_common import collector

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
}
#: Commands that have commands, and are called as their modules.
GROUPS = ("gpu", "session", "node", "tenant", "quota", "token", "key", "lease", "queue", "context")
COMMANDS = (*MODULES, *GROUPS)


def _show_version(value: bool) -> None:
    if value:
        from gpupool_common import __version__

        typer.echo(f"gpupool {__version__}")
        raise typer.Exit


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
        help="CUDA programs on GPUs that their machine does not have.",
    )
    app.callback()(_root)
    names = tuple(names)
    for module in dict.fromkeys(MODULES[name] for name in names if name in MODULES):
        import_module(f"gpupool.{module}").add_to(app)
    for group in (name for name in names if name in GROUPS):
        app.add_typer(import_module(f"gpupool.{group}").app, name=group)
    return app


def main() -> None:
    """The entry point."""
    asked = sys.argv[1:2]
    with collector.importing():
        app = make_app(asked if asked and asked[0] in COMMANDS else COMMANDS)
    app(prog_name="gpupool")
