"""What the commands of ``gpupool-kubernetes`` have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_kubernetes.cluster import Address
from gpupool_kubernetes.config import Settings
from gpupool_kubernetes.setup_settings import SetupSettings


@contextmanager
def ended() -> Iterator[None]:
    """Every error of ours is one line on stderr and its exit code."""
    try:
        yield
    except GpupoolError as error:
        print(f"gpupool-kubernetes: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None


def api_address(settings: Settings | SetupSettings) -> Address:
    """Where the API server is: of the settings, else of this pod."""
    if settings.api_server is None:
        if settings.api_token_file is not None or settings.api_ca is not None:
            raise ConfigError("keys 'api_token_file' and 'api_ca' go with 'api_server'")
        return Address.in_cluster()
    return Address(settings.api_server, settings.api_token_file, settings.api_ca)
