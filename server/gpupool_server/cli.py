"""The command ``gpupool-server``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpupool_common import __version__, logs, service_unit
from gpupool_common.closed_memory import close_memory
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.program import Program
from gpupool_common.service_unit import Service
from gpupool_common.setting_options import with_settings
from gpupool_common.space import FULL, no_space
from gpupool_server.config import Settings, load_settings
from gpupool_server.server import serve, server_keys

#: Only a file can have them.
TABLES = ("tenants", "gpu", "gpus", "watch", "collectives")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gpupool-server {__version__}")
        raise typer.Exit


def command(
    config: Annotated[
        Path | None, typer.Option(help="a TOML file; its keys are these flags' names with _")
    ] = None,
    show_key: Annotated[
        bool, typer.Option("--show-key", help="print this server's public key, and end")
    ] = False,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    private: Annotated[bool, typer.Option(hidden=True)] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
    **flags: object,
) -> None:
    """Serve this host's GPUs to gpupool clients."""
    try:
        settings = load_settings(config, flags)
        if show_key:
            typer.echo(server_keys(settings).public)
            return
        logs.configure(settings.log_level, settings.log_json)
        close_memory()
        uvloop.run(serve(settings, ready_fd, private))
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = Path(error.filename).parent if error.filename else Path("the run directory")
        print(f"gpupool-server: {no_space(where)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except GpupoolError as error:
        print(f"gpupool-server: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def examine(
    config: Annotated[
        Path | None, typer.Option(help="a TOML file; its keys are these flags' names with _")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    **flags: object,
) -> None:
    """Say whether this host can serve, and which layers of confinement its workers would have.

    The exit code is 0 if nothing is missing, else 1.
    """
    from gpupool_server import doctor

    try:
        settings = load_settings(config, flags)
        logs.configure("error", False)
        findings, layers = doctor.examine(settings)
    except (GpupoolError, OSError) as error:
        print(f"gpupool-server: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    typer.echo((doctor.as_json if as_json else doctor.as_text)(findings, layers))
    if not doctor.healthy(findings, layers):
        raise typer.Exit(1)


PROGRAM = Program(
    "gpupool-server",
    with_settings(Settings, command, leave_out=TABLES),
    {
        "doctor": with_settings(Settings, examine, leave_out=TABLES),
        "install-service": service_unit.install_of(
            Service("gpupool-server", Path("/etc/gpupool/server.toml"))
        ),
    },
)


def main() -> None:
    """The entry point."""
    PROGRAM.run()
