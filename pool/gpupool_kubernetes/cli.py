"""The command ``gpupool-kubernetes``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from gpupool_common import __version__

#: The module of each command, which has a function ``add_to``. The one that is asked for imports
#: no other's.
COMMANDS = {
    "webhook": "webhook",
    "controller": "controller",
    "pod": "pod_files",
    "dra-driver": "dra.drive",
    "kubelet-plugin": "dra.serve",
    "setup": "setup",
    "inspect": "inspect_command",
}


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gpupool-kubernetes {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def make_app(names: Iterable[str]) -> typer.Typer:
    """The command with these commands."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut names and defaults at 80 columns
        no_args_is_help=True,
        help="What gpupool runs on Kubernetes.",
    )
    app.callback()(_root)
    for name in names:
        import_module(f"gpupool_kubernetes.{COMMANDS[name]}").add_to(app)
    return app


def main() -> None:
    """The entry point."""
    asked = sys.argv[1:2]
    app = make_app(asked if asked and asked[0] in COMMANDS else COMMANDS)
    app(prog_name="gpupool-kubernetes")
