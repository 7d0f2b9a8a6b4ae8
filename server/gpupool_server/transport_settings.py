"""The settings of how clients of other machines come to their workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, Field

from gpupool_common.errors import ConfigError


class TransportSettings(BaseModel):
    """By which transports, and what these need."""

    tcp: bool = Field(True, description="true or false: workers listen by TCP, or TLS by 'curve'")
    zmq: bool = Field(
        True, description="true or false: clients without tcp, or of several servers, get ZeroMQ"
    )
    ucx: bool = Field(
        False,
        description="true or false: clients that ask for it get UCX (RDMA), which does not encrypt",
    )
    ucx_library: Path | None = Field(
        None, description="the path of UCX's library libucp.so.0, of 1.20 or later"
    )


def check_transports(
    settings: TransportSettings, sources: Mapping[str, str], encrypts: bool, data_url: str | None
) -> None:
    """ConfigError where nothing is left, or the others do not go with it."""
    if not (settings.tcp or settings.zmq or data_url is None):
        raise ConfigError(f"{sources['zmq']}: without it clients need 'tcp'")
    if settings.ucx and encrypts:
        raise ConfigError(
            f"{sources['ucx']}: UCX does not encrypt, and this server does; say that this is"
            " meant: --insecure-plain"
        )
    if settings.ucx and not (data_url or "").startswith("tcp://"):
        raise ConfigError(f"{sources['ucx']}: needs 'data_listen' at tcp://")
