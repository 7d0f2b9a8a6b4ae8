"""The command ``gpupool-manager``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpupool_common import __version__, collector, logs, service_unit
from gpupool_common import certificate as certificates
from gpupool_common.closed_memory import close_memory
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.program import Program
from gpupool_common.service_unit import Service
from gpupool_common.setting_options import setting_help, with_settings
from gpupool_manager.config import Settings, load_settings
from gpupool_manager.state_dir import TOKEN_FILE, default_state_dir


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gpupool-manager {__version__}")
        raise typer.Exit


def command(
    config: Annotated[
        Path | None, typer.Option(help="a TOML file; its keys are these flags' names with _")
    ] = None,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
    **flags: object,
) -> None:
    """Manage a pool: tenants, quotas, leases and placement over all its servers."""
    try:
        settings = load_settings(config, flags)
        logs.configure(settings.log_level, settings.log_json)
        close_memory()
        with collector.importing():  # which the commands below need not wait for
            from gpupool_manager.service import serve
        uvloop.run(serve(settings, ready_fd))
    except GpupoolError as error:
        raise _ended(error) from None


token = typer.Typer(no_args_is_help=True, help="The token with which an operator begins.")


@token.callback()
def _tokens() -> None:
    pass


@token.command("path")
def token_path(
    config: Annotated[Path | None, typer.Option(help="the manager's own TOML file")] = None,
    state_dir: Annotated[str | None, typer.Option(help=setting_help(Settings, "state_dir"))] = None,
) -> None:
    """Print the file with the admin token that the manager's first start made."""
    try:
        settings = load_settings(config, {"state_dir": state_dir} if state_dir else {})
        path = (settings.state_dir or default_state_dir()) / TOKEN_FILE
        if not path.is_file():
            raise GpupoolError(
                f"{path}: there is none, or this user may not look; run it as the manager's user"
                " and with its --config or --state-dir; --new-admin-token makes another"
            )
        print(path)
    except GpupoolError as error:
        raise _ended(error) from None


certificate = typer.Typer(no_args_is_help=True, help="The certificate of the REST API.")


@certificate.callback()
def _certificates() -> None:
    pass


@certificate.command("fingerprint")
def certificate_fingerprint(
    config: Annotated[Path | None, typer.Option(help="the manager's own TOML file")] = None,
    state_dir: Annotated[str | None, typer.Option(help=setting_help(Settings, "state_dir"))] = None,
) -> None:
    """Print by what clients know the manager: their GPUPOOL_POOL_FINGERPRINT."""
    try:
        settings = load_settings(config, {"state_dir": state_dir} if state_dir else {})
        folder = settings.state_dir or default_state_dir()
        path = settings.tls_certificate or folder / certificates.CERTIFICATE
        if not path.exists():
            raise GpupoolError(
                f"there is no certificate {path}; the manager makes one at its first start with"
                " --listen https://ADDRESS:PORT"
            )
        print(certificates.read(path, path).fingerprint)
    except GpupoolError as error:
        raise _ended(error) from None


def _ended(error: GpupoolError) -> typer.Exit:
    print(f"gpupool-manager: {error}", file=sys.stderr)
    return typer.Exit(2 if isinstance(error, ConfigError) else 1)


PROGRAM = Program(
    "gpupool-manager",
    with_settings(Settings, command),
    {
        "token": token,
        "certificate": certificate,
        "install-service": service_unit.install_of(
            Service("gpupool-manager", Path("/etc/gpupool/manager.toml"))
        ),
    },
)


def main() -> None:
    """The manager, or a command beside it."""
    PROGRAM.run()
