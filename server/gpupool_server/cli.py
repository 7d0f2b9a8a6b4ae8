"""The command ``gpupool-server``."""

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
from gpupool_common.space import FULL, no_space
from gpupool_server.config import Settings, load_settings
from gpupool_server.server import serve, server_keys

_help = partial(setting_help, Settings)
_text = partial(setting_option, Settings)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"gpupool-server {__version__}")
        raise typer.Exit


def command(
    config: Annotated[
        Path | None, typer.Option(help="a TOML file; its keys are these flags' names with _")
    ] = None,
    listen: Annotated[str | None, _text("listen")] = None,
    data_listen: Annotated[str | None, _text("data_listen")] = None,
    curve: Annotated[
        bool | None,
        typer.Option("--curve/--no-curve", help="encrypt tcp://; clients then need the key"),
    ] = None,
    show_key: Annotated[
        bool, typer.Option("--show-key", help="print this server's public key, and end")
    ] = False,
    run_dir: Annotated[str | None, _text("run_dir")] = None,
    driver: Annotated[str | None, _text("driver")] = None,
    soft_gpus: Annotated[str | None, _text("soft_gpus")] = None,
    soft_memory: Annotated[str | None, _text("soft_memory")] = None,
    devices: Annotated[str | None, _text("devices")] = None,
    token: Annotated[str | None, _text("token")] = None,
    token_file: Annotated[str | None, _text("token_file")] = None,
    max_sessions: Annotated[str | None, _text("max_sessions")] = None,
    session_host_memory: Annotated[str | None, _text("session_host_memory")] = None,
    worker: Annotated[str | None, _text("worker")] = None,
    worker_start_seconds: Annotated[str | None, _text("worker_start_seconds")] = None,
    silence_seconds: Annotated[str | None, _text("silence_seconds")] = None,
    on_stop: Annotated[str | None, _text("on_stop")] = None,
    log_level: Annotated[str | None, _text("log_level")] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--no-log-json", help="one JSON object an event")
    ] = None,
    metrics_listen: Annotated[str | None, _text("metrics_listen")] = None,
    pool: Annotated[str | None, _text("pool")] = None,
    join_token: Annotated[str | None, _text("join_token")] = None,
    own_token: Annotated[
        bool | None,
        typer.Option(
            "--own-token/--no-own-token", help="in a pool, let the server's own token in, too"
        ),
    ] = None,
    node_name: Annotated[str | None, _text("node_name")] = None,
    advertise: Annotated[str | None, _text("advertise")] = None,
    labels: Annotated[str | None, _text("labels")] = None,
    state_dir: Annotated[str | None, _text("state_dir")] = None,
    peer_key: Annotated[str | None, _text("peer_key")] = None,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    private: Annotated[bool, typer.Option(hidden=True)] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Serve this host's GPUs to gpupool clients."""
    flags = {
        key: value
        for key, value in locals().items()
        if key in Settings.model_fields and value is not None
    }
    try:
        settings = load_settings(config, flags)
        if show_key:
            typer.echo(server_keys(settings).public)
            return
        logs.configure(settings.log_level, settings.log_json)
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


def main() -> None:
    """The entry point."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut names and defaults at 80 columns
    )
    app.command()(command)
    app(prog_name="gpupool-server")
