"""The command ``gpupool-slurm``, which Slurm's scripts run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gpupool_common.errors import GpupoolError
from gpupool_slurm import hooks
from gpupool_slurm.settings import Settings, load_settings

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Leases of a pool for Slurm's jobs.",
)

ConfigOption = Annotated[Path, typer.Option(help="a TOML file, which root alone can read")]
CONFIG = Path("/etc/gpupool/slurm.toml")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except GpupoolError as error:
        print(f"gpupool-slurm: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None


@app.command()
def prolog(config: ConfigOption = CONFIG) -> None:
    """As root, before a job's first task: take its lease."""
    with _one_line_errors():
        hooks.prolog(load_settings(config), os.environ)


@app.command()
def task_prolog(
    run_dir: Annotated[Path, typer.Option(help="as the setting run_dir")] = Settings.model_fields[
        "run_dir"
    ].default,
) -> None:
    """As the job's user, before each task: give it its environment."""
    with _one_line_errors():
        lines, code = hooks.task_prolog(run_dir, os.environ)
        for line in lines:
            print(line)
        raise typer.Exit(code)


@app.command()
def epilog(config: ConfigOption = CONFIG) -> None:
    """As root, behind a job's last task: give its lease back."""
    with _one_line_errors():
        hooks.epilog(load_settings(config), os.environ)


@app.command()
def renew(config: ConfigOption = CONFIG) -> None:
    """As root, every few minutes: renew what this node's jobs have."""
    with _one_line_errors():
        for line in hooks.renew(load_settings(config)):
            print(f"gpupool-slurm: {line}", file=sys.stderr)


def main() -> None:
    """The entry point."""
    app(prog_name="gpupool-slurm")
