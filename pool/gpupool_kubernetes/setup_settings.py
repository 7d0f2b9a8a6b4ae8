"""The settings of ``gpupool-kubernetes setup``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gpupool.pool_address import check_url
from gpupool_common import certificate
from gpupool_common.settings import Given

_NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"


class SetupSettings(BaseModel):
    """What an operator may choose. The description of a field says what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool: str = Field(
        "https://127.0.0.1:7780", description="the manager, on this host: http[s]://HOST[:7780]"
    )
    state_dir: Path = Field(
        Path("/var/lib/gpupool"), description="the path of the manager's state directory"
    )
    namespace: str = Field(
        "gpupool-system", pattern=_NAME, description="where the Secrets are, a namespace's name"
    )
    webhook: str = Field(
        "gpupool", pattern=_NAME, description="the name of the MutatingWebhookConfiguration"
    )
    services: tuple[str, ...] = Field(
        ("gpupool-webhook", "gpupool-controller"),
        min_length=1,
        description="a list: the services that the certificate names",
    )
    node_selectors: tuple[str, ...] = Field(
        (), description='a list: selectors of nodes whose servers may join; "" is all nodes'
    )
    every_seconds: float = Field(
        15.0, ge=0.01, le=3600, description="a number of seconds between two looks, 0.01..3600"
    )
    api_server: str | None = Field(
        None, description="the cluster's API server, http[s]://HOST:PORT; none: that of this pod"
    )
    api_token_file: Path | None = Field(
        None, description="with 'api_server': the path of a file with a token"
    )
    api_ca: Path | None = Field(None, description="with 'api_server': the path of a PEM file")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    log_json: bool = Field(False, description="true or false: one JSON object an event")

    @field_validator("pool")
    @classmethod
    def _check_pool(cls, value: str) -> str:
        return check_url("pool", value)

    @property
    def pin(self) -> Path | None:
        """The file with the fingerprint of the manager's certificate; None: it has none."""
        return self.state_dir / certificate.FINGERPRINT if self.pool.startswith("https") else None

    @property
    def awaited(self) -> tuple[str, ...]:
        """Files that the manager's first start makes."""
        return ("admin.token", certificate.FINGERPRINT, certificate.CERTIFICATE)


def load_settings(
    config: Path | None, flags: Mapping[str, object], env: Mapping[str, str] | None = None
) -> SetupSettings:
    """Gather and check everything; ConfigError names source, key and what is allowed."""
    given = Given.gather(config, flags, {}, env)
    for key in ("services", "node_selectors"):
        if isinstance(written := given.values.get(key), str):  # a flag
            given.values[key] = [written]
    try:
        return SetupSettings.model_validate(given.values)
    except ValidationError as error:
        raise given.explain(error, SetupSettings, secret=()) from None
