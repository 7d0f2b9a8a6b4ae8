"""The command ``gpupool-manager``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpupool_common import __version__, logs
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.setting_options import setting_help, setting_option
from gpupool_manager.config import Settings, load_settings
from gpupool_manager.service import TOKEN_FILE, default_state_dir, serve

_help = partial(setting_help, Settings)
_text = partial(setting_option, Settings)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gpupool-manager {__version__}")
        raise typer.Exit


def command(
    config: Annotated[
        Path | None, typer.Option(help="a TOML file; its keys are these flags' names with _")
    ] = None,
    listen: Annotated[str | None, _text("listen")] = None,
    nodes: Annotated[str | None, _text("nodes")] = None,
    tls_certificate: Annotated[str | None, _text("tls_certificate")] = None,
    tls_key: Annotated[str | None, _text("tls_key")] = None,
    require_tls: Annotated[
        bool | None, typer.Option("--require-tls/--no-require-tls", help=_help("require_tls"))
    ] = None,
    database: Annotated[str | None, _text("database")] = None,
    database_password_file: Annotated[str | None, _text("database_password_file")] = None,
    state_dir: Annotated[str | None, _text("state_dir")] = None,
    heartbeat_seconds: Annotated[str | None, _text("heartbeat_seconds")] = None,
    lost_after_seconds: Annotated[str | None, _text("lost_after_seconds")] = None,
    patience_seconds: Annotated[str | None, _text("patience_seconds")] = None,
    longest_queue: Annotated[str | None, _text("longest_queue")] = None,
    unasked_seconds: Annotated[str | None, _text("unasked_seconds")] = None,
    lease_token_seconds: Annotated[str | None, _text("lease_token_seconds")] = None,
    confirm_seconds: Annotated[str | None, _text("confirm_seconds")] = None,
    history_days: Annotated[str | None, _text("history_days")] = None,
    connections_each: Annotated[str | None, _text("connections_each")] = None,
    request_seconds: Annotated[str | None, _text("request_seconds")] = None,
    open_metrics: Annotated[
        bool | None, typer.Option("--open-metrics/--no-open-metrics", help=_help("open_metrics"))
    ] = None,
    new_admin_token: Annotated[
        bool | None,
        typer.Option("--new-admin-token", help="make another admin token, into its file"),
    ] = None,
    log_level: Annotated[str | None, _text("log_level")] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--no-log-json", help="one JSON object an event")
    ] = None,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Manage a pool: tenants, quotas, leases and placement over all its servers."""
    flags = {
        key: value
        for key, value in locals().items()
        if key in Settings.model_fields and value is not None
    }
    try:
        settings = load_settings(config, flags)
        logs.configure(settings.log_level, settings.log_json)
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
    state_dir: Annotated[str | None, _text("state_dir")] = None,
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


def _ended(error: GpupoolError) -> typer.Exit:
    print(f"gpupool-manager: {error}", file=sys.stderr)
    return typer.Exit(2 if isinstance(error, ConfigError) else 1)


def main() -> None:
    """The manager, or the one command beside it."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut names and defaults at 80 columns
    )
    if sys.argv[1:2] == ["token"]:
        app.add_typer(token, name="token")
        app.callback()(_tokens)
    else:
        app.command(epilog="gpupool-manager token path: prints where the admin token lies")(command)
    app(prog_name="gpupool-manager")
