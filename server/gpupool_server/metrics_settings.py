"""The settings of what a server serves for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from gpupool_common.ask import split_tcp
from gpupool_common.browser import HOST_NAMES_ALLOWED, HostNames
from gpupool_common.errors import ConfigError
from gpupool_common.hosts import is_loopback

#: What is only used where metrics are served, and what with TLS alone.
_OWN = ("metrics_token_file", "metrics_certificate", "metrics_key")
_PAIR = ("metrics_certificate", "metrics_key")


class MetricsSettings(BaseModel):
    """Where it listens, by which names it may be asked, and whom it answers."""

    metrics_listen: str = Field(
        "none",
        description="none, http://ADDRESS:PORT with an address of this machine's loopback"
        " (127.0.0.1, [::1] or localhost), or https://ADDRESS:PORT, for who has the token",
    )
    metrics_hosts: HostNames = Field((), description=HOST_NAMES_ALLOWED)
    metrics_token_file: Path | None = Field(
        None,
        description="the path of a file with the token of scrapers; it is read again when it"
        " changes. None: with https:// one is made in the state directory",
    )
    metrics_certificate: Path | None = Field(
        None,
        description="the path of a PEM file, for https; none: one is made in the state directory",
    )
    metrics_key: Path | None = Field(None, description="the path of a PEM file, for https")

    @field_validator("metrics_listen")
    @classmethod
    def _check_metrics_listen(cls, value: str) -> str:
        if value != "none":
            host, _ = split_listen(value)
            if value.startswith("http://") and not is_loopback(host):
                raise ValueError("not on the loopback")
        return value


def split_listen(value: str) -> tuple[str, int]:
    """Address and port of ``metrics_listen``; ValueError."""
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ValueError("no such address")
    return split_tcp(f"tcp://{rest.removesuffix('/')}")


def check_metrics(settings: MetricsSettings, sources: Mapping[str, str]) -> None:
    """ConfigError for what would be ignored, or lacks its other half."""
    given = [key for key in _OWN if getattr(settings, key) is not None]
    if given and settings.metrics_listen == "none":
        raise ConfigError(f"{sources[given[0]]}: is only used with 'metrics_listen'")
    pair = [key for key in _PAIR if key in given]
    if pair and not settings.metrics_listen.startswith("https://"):
        raise ConfigError(f"{sources[pair[0]]}: is only used with https in 'metrics_listen'")
    if len(pair) == 1:
        raise ConfigError(f"{sources[pair[0]]}: '{_PAIR[0]}' and '{_PAIR[1]}' go together")
