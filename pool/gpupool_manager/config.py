"""The manager's settings: defaults, then a TOML file, then the environment, then flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from sqlalchemy.engine import make_url

from gpupool_common import hosts
from gpupool_common.ask import split_tcp
from gpupool_common.browser import HOST_NAMES_ALLOWED, HostNames
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.secret_file import read_secret
from gpupool_common.settings import Given
from gpupool_common.text_file import read_text
from gpupool_manager.console.openid import Issuer, is_safe
from gpupool_manager.console.openid import Rules as OpenIdRules
from gpupool_manager.idle import IdleRules
from gpupool_manager.pool import Rules
from gpupool_manager.records import IdleAction
from gpupool_manager.reservations import Reclaims
from gpupool_manager.store import check_url
from gpupool_manager.waiting import OrderRules

_ORIGIN = re.compile(r"https?://([A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(:[0-9]{1,5})?/?")
_SECONDS = "a number of seconds {} .. {}"


class Settings(BaseModel):
    """What an operator may choose. The description of a field says what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field(
        "http://127.0.0.1:7780",
        description="http://ADDRESS:PORT on the loopback, or https://ADDRESS:PORT; port 0: any",
    )
    nodes: str = Field(
        "auto",
        description="where servers join: tcp://ADDRESS:PORT, none, or auto (the address of"
        " 'listen' and the port after its own)",
    )
    tls_certificate: Path | None = Field(
        None, description="the path of a PEM file, for https; none: one is made in 'state_dir'"
    )
    tls_key: Path | None = Field(None, description="the path of a PEM file, for https")
    insecure_plain: bool = Field(
        False, description="true or false: allow http:// beyond the loopback, tokens in clear text"
    )
    database: SecretStr | None = Field(
        None, description="sqlite:////PATH or postgresql://USER:PASSWORD@HOST/NAME"
    )
    database_password_file: Path | None = Field(
        None, description="the path of a file with the password for 'database'"
    )
    state_dir: Path | None = Field(None, description="an absolute path")
    standby: bool = Field(
        False,
        description="true or false: wait while another manager leads the pool, and lead when it"
        " ends; needs a PostgreSQL 'database'",
    )
    heartbeat_seconds: float = Field(10.0, ge=0.1, le=600, description=_SECONDS.format("0.1", 600))
    lost_after_seconds: float = Field(
        40.0, ge=0.3, le=3600, description=_SECONDS.format("0.3", 3600)
    )
    patience_seconds: float = Field(60.0, ge=0, le=86400, description=_SECONDS.format(0, 86400))
    queue: Literal["strict", "fair"] = Field(
        "strict",
        description="strict or fair: fair serves first who has the smallest share of the pool",
    )
    aging_seconds: float = Field(
        3600.0, ge=1, le=7 * 86400, description=_SECONDS.format(1, 7 * 86400)
    )
    starving_seconds: float = Field(
        6 * 3600.0, ge=1, le=7 * 86400, description=_SECONDS.format(1, 7 * 86400)
    )
    reclaim_seconds: float = Field(60.0, ge=0, le=86400, description=_SECONDS.format(0, 86400))
    idle_action: IdleAction = Field(
        "off", description="off, warn or reclaim: what comes of leases whose programs do nothing"
    )
    idle_seconds: float = Field(
        1800.0, ge=1, le=30 * 86400, description=_SECONDS.format(1, 2592000)
    )
    reservation_reclaims: Reclaims = Field(
        "none",
        description="none, borrowed or all: which leases go back for reservations that need"
        " their GPUs",
    )
    longest_queue: int = Field(10_000, ge=0, le=100_000, description="a whole number 0..100000")
    unasked_seconds: float = Field(
        90.0, ge=20, le=7 * 86400, description=_SECONDS.format(20, 7 * 86400)
    )
    scheduler: Literal["places", "checks"] = Field(
        "places",
        description="places or checks: checks refuses requests that name no GPUs, because another"
        " scheduler places them",
    )
    lease_token_seconds: float = Field(
        3600.0, ge=10, le=7 * 86400, description=_SECONDS.format(10, 7 * 86400)
    )
    offline_seconds: float = Field(
        900.0, ge=1, le=7 * 86400, description=_SECONDS.format(1, 7 * 86400)
    )
    confirm_seconds: float = Field(3.0, ge=0.1, le=600, description=_SECONDS.format("0.1", 600))
    history_days: float = Field(
        365.0, ge=1, le=36500, description="for how long ended leases and the audit log are kept"
    )
    connections_each: int = Field(
        256, ge=1, le=8192, description="connections to 'listen' from one address, 1..8192"
    )
    request_seconds: float = Field(
        20.0, ge=0.1, le=600, description="how long a request may take to come in, 0.1 .. 600"
    )
    tenant_requests: float = Field(
        100.0,
        ge=0.1,
        le=1e6,
        allow_inf_nan=False,
        description="requests a second of one tenant, 0.1 .. 1000000; ten seconds' worth at once",
    )
    console_url: str = Field(
        "",
        description="http[s]://HOST[:PORT] by which browsers find the console behind a proxy",
    )
    openid_issuer: str = Field(
        "",
        description="https://HOST[/PATH], as it calls itself: who signs people in",
    )
    openid_client: str = Field("", max_length=256, description="the manager's name at the issuer")
    openid_secret_file: Path | None = Field(
        None, description="the path of a file with the client's secret; none: a public client"
    )
    openid_claim: str = Field(
        "groups", min_length=1, max_length=128, description="which claim says who somebody is"
    )
    openid_operators: str = Field(
        "gpupool-operators", min_length=1, max_length=256, description="its value of operators"
    )
    openid_tenants: str = Field(
        "gpupool-", max_length=256, description="what comes before a tenant's name in its values"
    )
    open_metrics: bool = Field(False, description="true or false: metrics need no token")
    metrics_hosts: HostNames = Field((), description=HOST_NAMES_ALLOWED)
    new_admin_token: bool = Field(
        False, description="true or false: make another admin token at this start, a way back in"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    log_json: bool = Field(False, description="true or false: one JSON object an event")

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        _split_listen(value)
        return value

    @field_validator("console_url")
    @classmethod
    def _check_console_url(cls, value: str) -> str:
        if value and not _ORIGIN.fullmatch(value):
            raise ValueError("no such address")
        return value.rstrip("/")

    @field_validator("openid_issuer")
    @classmethod
    def _check_issuer(cls, value: str) -> str:
        if value and not is_safe(value):
            raise ValueError("no such address")
        return value

    @field_validator("nodes")
    @classmethod
    def _check_nodes(cls, value: str) -> str:
        if value not in ("auto", "none"):
            split_tcp(value.removesuffix("*") + "1" if value.endswith(":*") else value)
        return value

    @field_validator("database")
    @classmethod
    def _check_database(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_url(value.get_secret_value())
        return value

    @field_validator("state_dir")
    @classmethod
    def _check_state_dir(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("relative")
        return value

    @property
    def address(self) -> tuple[str, int]:
        return _split_listen(self.listen)

    @property
    def nodes_url(self) -> str | None:
        """Where servers join; None: nowhere."""
        if self.nodes == "none":
            return None
        if self.nodes != "auto":
            return self.nodes
        host, port = self.address
        shown = f"[{host}]" if ":" in host else host
        # After the last port there is none: any will do there, too.
        return f"tcp://{shown}:{port + 1 if 0 < port < 65535 else '*'}"

    def database_url(self) -> str | None:
        """The database's address with its password; GpupoolError if that cannot be read."""
        if self.database is None:
            return None
        url = self.database.get_secret_value()
        if self.database_password_file is None:
            return url
        try:
            password = read_text(self.database_password_file).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise GpupoolError(f"{self.database_password_file}: cannot be read: {reason}") from None
        return make_url(url).set(password=password).render_as_string(hide_password=False)

    def openid(self) -> Issuer | None:
        """Who signs people in; GpupoolError if its secret cannot be read."""
        if not self.openid_issuer:
            return None
        path, secret = self.openid_secret_file, ""
        if path is not None:
            secret = read_secret(path, "the client's secret").strip()
        back = f"{self.console_url}/console/openid/back"
        return Issuer(self._openid_rules(secret, back))

    def _openid_rules(self, secret: str, back: str) -> OpenIdRules:
        who = (self.openid_claim, self.openid_operators, self.openid_tenants)
        return OpenIdRules(self.openid_issuer, self.openid_client, secret, back, *who)

    @property
    def is_tls(self) -> bool:
        return self.listen.startswith("https://")

    @property
    def is_loopback(self) -> bool:
        return hosts.is_loopback(self.address[0])

    @property
    def rules(self) -> Rules:
        return Rules(
            heartbeat_seconds=self.heartbeat_seconds,
            lost_after=self.lost_after_seconds,
            patience=self.patience_seconds,
            longest_queue=self.longest_queue,
            order=OrderRules(
                self.queue == "fair",
                self.aging_seconds,
                self.starving_seconds,
                self.reclaim_seconds,
            ),
            unasked=self.unasked_seconds,
            history_days=self.history_days,
            only_checks=self.scheduler == "checks",
            token_seconds=self.lease_token_seconds,
            confirm_seconds=self.confirm_seconds,
            offline_seconds=self.offline_seconds,
            idle=IdleRules(self.idle_action, self.idle_seconds),
            reservation_reclaims=self.reservation_reclaims,
            no_tenant=self._openid_rules("", "").barred if self.openid_issuer else None,
        )


def _split_listen(value: str) -> tuple[str, int]:
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ValueError("no such address")
    if rest.endswith(":0"):
        return split_tcp(f"tcp://{rest.removesuffix('0')}1")[0], 0
    return split_tcp(f"tcp://{rest.removesuffix('/')}")


#: The settings that may come from the environment.
VARIABLES = {"database": "GPUPOOL_MANAGER_DATABASE"}


def load_settings(
    config: Path | None, flags: Mapping[str, object], env: Mapping[str, str] | None = None
) -> Settings:
    """Gather and check everything; ConfigError names source, key and what is allowed."""
    given = Given.gather(config, flags, VARIABLES, env)
    try:
        settings = Settings.model_validate(given.values)
    except ValidationError as error:
        # A database's address may hold a password.
        raise given.explain(error, Settings, secret=("database",)) from None
    _check_together(settings)
    return settings


def _is_postgresql(database: SecretStr | None) -> bool:
    return database is not None and database.get_secret_value().startswith("postgresql")


def _check_together(settings: Settings) -> None:
    given = [key for key in ("tls_certificate", "tls_key") if getattr(settings, key) is not None]
    if settings.is_tls and len(given) == 1:
        raise ConfigError(f"key '{given[0]}': 'tls_certificate' and 'tls_key' go together")
    if given and not settings.is_tls:
        raise ConfigError(f"key '{given[0]}': is only used with https in 'listen'")
    for key in ("database_password_file", "standby"):
        if getattr(settings, key) and not _is_postgresql(settings.database):
            raise ConfigError(f"key '{key}': is only used with a PostgreSQL 'database'")
    if not (settings.is_tls or settings.is_loopback or settings.insecure_plain):
        raise ConfigError(
            f"key 'listen': tokens would travel in clear text to {settings.listen}; write https://"
            " (the manager makes a certificate), or set --insecure-plain"
        )
    if settings.openid_issuer and not (settings.openid_client and settings.console_url):
        lacking = "console_url" if settings.openid_client else "openid_client"
        raise ConfigError(f"key '{lacking}': is needed with 'openid_issuer'")
    if settings.lost_after_seconds < 2 * settings.heartbeat_seconds:
        raise ConfigError(
            "key 'lost_after_seconds': must be at least twice 'heartbeat_seconds'"
            f" ({settings.heartbeat_seconds:g})"
        )
