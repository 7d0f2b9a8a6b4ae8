"""The server's settings: defaults, then a TOML file, then the environment, then flags.

Everything is checked before anything is started, and every error says where the
wrong value is, under which key, and what is allowed there.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from gpupool_common import lease_token
from gpupool_common.ask import split_tcp
from gpupool_common.errors import ConfigError
from gpupool_common.hosts import is_loopback
from gpupool_common.node_protocol import Line, Name
from gpupool_common.quantities import SizeSetting
from gpupool_common.settings import Given
from gpupool_server.budget_settings import BudgetSettings
from gpupool_server.collectives_settings import CollectivesSettings
from gpupool_server.data_ports import data_place
from gpupool_server.device_indexes import check_indexes, parse_indexes
from gpupool_server.health_settings import HealthSettings
from gpupool_server.metrics_settings import MetricsSettings, check_metrics
from gpupool_server.sharing import (
    NAME_ALLOWED,
    GpuIndex,
    GpuSettings,
    TenantName,
    TenantSettings,
    token_allowed,
)
from gpupool_server.transport_settings import TransportSettings, check_transports
from gpupool_server.watch_settings import WatchSettings

#: How tokens begin with which servers join a pool.
JOIN_PREFIX = "gpn_"

#: The tenant of who has the server's own token.
DEFAULT_TENANT = "default"


class Settings(BudgetSettings, HealthSettings, MetricsSettings, TransportSettings):
    """What an operator may choose. The description of a field says what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    listen: str = Field(
        "tcp://127.0.0.1:7700",
        description="tcp://ADDRESS:PORT (0.0.0.0 or * for every address) or ipc:///PATH",
    )
    data_listen: str = Field(
        "auto",
        description="auto (the address of 'listen', any port), none (this machine's clients"
        " only), tcp://ADDRESS:*, or tcp://ADDRESS:FIRST-LAST",
    )
    shm_listen: str = Field(
        "auto",
        description="auto, none, or the absolute path of a socket at which this machine's"
        " programs get shared memory",
    )
    shm_allow: tuple[str, ...] = Field(
        (),
        description="who may use it: names or numbers of users, and of groups with @ before"
        " them, e.g. alice,@gpu; empty: every user with a token",
    )
    curve: bool = Field(
        False, description="true or false: encrypt tcp://; true beyond the loopback"
    )
    insecure_plain: bool = Field(False, description="true or false: tcp:// to others in clear")
    run_dir: Path | None = Field(None, description="an absolute path of at most 70 bytes")
    driver: str = Field(
        "auto", description="auto, cuda, soft, or the absolute path of a driver library"
    )
    cupti: Path | None = Field(
        None, description="the path of CUPTI's library, for profilers and timelines of clients"
    )
    nccl: Path | None = Field(None, description="the path of NCCL's library, for collectives")
    soft_gpus: int = Field(1, ge=1, le=16, description="a whole number 1..16")
    soft_memory: SizeSetting = Field(
        1 << 30, ge=1 << 20, le=1 << 42, description="a size from 1MiB to 4TiB, e.g. 1GiB"
    )
    devices: tuple[int, ...] | None = Field(
        None, description="indexes of the GPUs to serve, e.g. 0,2; each once, 0..63"
    )
    token: SecretStr | None = Field(
        None, description="1 to 256 characters without blanks or control characters"
    )
    token_file: Path | None = Field(None, description="the path of a file that holds the token")
    worker: Path | None = Field(None, description="the path of the worker program")
    worker_start_seconds: float = Field(
        30.0, ge=0.1, le=600.0, description="a number of seconds 0.1..600"
    )
    silence_seconds: int = Field(
        90, ge=2, le=86400, description="a whole number of seconds 2..86400"
    )
    tcp_lanes: int = Field(4, ge=1, le=8, description="a number of connections 1..8")
    confinement: Literal["off", "best", "required"] = Field(
        "best",
        description="off, best (each worker in a jail of the layers that this host allows) or"
        " required (all of them, or the server does not start)",
    )
    require_confinement: bool = Field(
        False, description="true or false: the same as confinement = required"
    )
    gangs: bool = Field(
        False, description="true or false: a group has its turns on all of its GPUs at once"
    )
    jail_uids: str = Field(
        "200000-265535",
        description="FIRST-LAST: user ids that no one else on this host has, one for each worker",
    )
    jail_users: Literal["worker", "lease"] = Field(
        "lease",
        description="lease (its workers here have one user) or worker (each has its own)",
    )
    seccomp: Literal["off", "log", "enforce"] = Field(
        "enforce",
        description="enforce (a worker that makes a system call which no worker makes is ended),"
        " log (the kernel's log names it) or off",
    )
    learn_syscalls: Path | None = Field(
        None,
        description="the path of a file that counts workers' system calls; none is refused then",
    )
    cgroup: Path | None = Field(
        None,
        description="the absolute path of a control group (cgroup v2) for those of the workers",
    )
    on_stop: Literal["leave", "end"] = Field(
        "leave", description="leave (sessions continue when the server stops) or end"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    log_json: bool = Field(False, description="true or false: one JSON object an event")
    pool: str | None = Field(
        None, description="tcp://HOST:PORT[,…], where the pool's manager, or each, takes servers"
    )
    join_token: SecretStr | None = Field(
        None, description="the path of a file with the token with which servers join the pool"
    )
    own_token: bool = Field(
        False,
        description="true or false: in a pool the server's own token opens sessions, too, beside"
        " its leases",
    )
    node_name: str | None = Field(
        None, description="1 to 64 of A-Z a-z 0-9 . _ -, but no . or - first"
    )
    advertise: str | None = Field(
        None, description="tcp://HOST:PORT, the address at which the pool's clients reach 'listen'"
    )
    labels: dict[Name, Line] = Field(
        default_factory=dict, max_length=64, description="KEY=VALUE,KEY=VALUE, or a table [labels]"
    )
    state_dir: Path | None = Field(
        None,
        description="an absolute path; it holds what must outlast a reboot: the token that was"
        " made, and keys",
    )
    peer_key: Path | None = Field(
        None,
        description="the path of a file with 64 hexadecimal digits, the same on all servers whose"
        " GPUs one program may use together without a pool",
    )
    tenants: dict[TenantName, TenantSettings] = Field(
        default_factory=dict, description=f"tables [tenants.NAME], with {NAME_ALLOWED}"
    )
    gpu: GpuSettings = Field(
        default_factory=GpuSettings.model_construct, description="a table [gpu]"
    )
    gpus: dict[GpuIndex, GpuSettings] = Field(
        default_factory=dict, description="tables [gpus.N] with the index of a GPU, 0..63"
    )
    watch: WatchSettings = Field(
        default_factory=WatchSettings.model_construct, description="a table [watch]"
    )
    collectives: CollectivesSettings = Field(
        default_factory=CollectivesSettings.model_construct, description="a table [collectives]"
    )

    _token_borrowed: bool = PrivateAttr(False)

    @property
    def token_borrowed(self) -> bool:
        """Whether the token is the one that the environment has for clients."""
        return self._token_borrowed

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        if value.startswith("tcp://"):
            split_tcp(value)
        elif not value.startswith("ipc:///") or len(os.fsencode(value)) > 100:
            raise ValueError("no such address")
        return value

    @field_validator("data_listen")
    @classmethod
    def _check_data_listen(cls, value: str) -> str:
        if value not in ("auto", "none"):
            data_place(value)
        return value

    @field_validator("shm_listen")
    @classmethod
    def _check_shm_listen(cls, value: str) -> str:
        if value not in ("auto", "none"):
            if not os.path.isabs(value) or len(os.fsencode(value)) > 100:
                raise ValueError("too long, or relative")
            if "?" in value or not value.isprintable():
                raise ValueError("clients could not be told this path")
        return value

    @field_validator("shm_allow", mode="before")
    @classmethod
    def _parse_shm_allow(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("shm_allow")
    @classmethod
    def _check_shm_allow(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"@?[A-Za-z0-9._$-]{1,64}", name) for name in value):
            raise ValueError("not allowed")
        return value

    @field_validator("run_dir")
    @classmethod
    def _check_run_dir(cls, value: Path | None) -> Path | None:
        # A Unix socket's path has at most 107 bytes; what we append takes 35.
        if value is not None and (not value.is_absolute() or len(os.fsencode(value)) > 70):
            raise ValueError("too long, or relative")
        return value

    @field_validator("driver")
    @classmethod
    def _check_driver(cls, value: str) -> str:
        if value not in ("auto", "cuda", "soft") and not os.path.isabs(value):
            raise ValueError("no such driver")
        return value

    @field_validator("devices", mode="before")
    @classmethod
    def _parse_devices(cls, value: object) -> object:
        return parse_indexes(value) if isinstance(value, str) else value

    @field_validator("devices")
    @classmethod
    def _check_devices(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None:
            check_indexes(value)
        return value

    @field_validator("pool", "advertise")
    @classmethod
    def _check_pool(cls, value: str | None, info: ValidationInfo) -> str | None:
        parts = [] if value is None else value.split(",") if info.field_name == "pool" else [value]
        if any(split_tcp(each)[0] in ("*", "0.0.0.0", "::") for each in parts):
            raise ValueError("nobody can connect to that")
        return value

    @field_validator("node_name")
    @classmethod
    def _check_node_name(cls, value: str | None) -> str | None:
        if value is not None and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", value) is None:
            raise ValueError("not allowed")
        return value

    @field_validator("labels", mode="before")
    @classmethod
    def _parse_labels(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        parts = [part.partition("=") for part in value.split(",")]
        labels = {key.strip(): text.strip() for key, equals, text in parts if equals}
        if len(labels) != len(parts):
            raise ValueError("no list of labels, or one comes twice")
        return labels

    @field_validator("state_dir", "cgroup")
    @classmethod
    def _check_state_dir(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("relative")
        return value

    @field_validator("jail_uids")
    @classmethod
    def _check_jail_uids(cls, value: str) -> str:
        found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", value)
        if found is None or not 1000 <= int(found[1]) <= int(found[2]) < 2**32 - 2:
            raise ValueError("no range of user ids from 1000")
        return value

    @property
    def jail_uid_range(self) -> tuple[int, int]:
        """The first and the last user id for workers."""
        first, _, last = self.jail_uids.partition("-")
        return int(first), int(last)

    @property
    def confined(self) -> Literal["off", "best", "required"]:
        """How far workers are confined."""
        return "required" if self.require_confinement else self.confinement

    @field_validator("token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not token_allowed(value.get_secret_value()):
            raise ValueError("not allowed")
        return value

    @property
    def node(self) -> str:
        """The name of this host in the pool."""
        return self.node_name or re.sub(r"[^A-Za-z0-9._-]", "-", platform.node())[:64] or "node"

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on another machine reaches anything that listens here."""
        hosts = [split_tcp(self.listen)[0]] if self.listen.startswith("tcp://") else []
        if self.data_listen.startswith("tcp://"):
            hosts.append(data_place(self.data_listen)[0])
        return all(is_loopback(host) for host in hosts)

    @property
    def data_url(self) -> str | None:
        """Where workers listen for clients of other machines; None: nowhere."""
        if self.data_listen == "none":
            return None
        key = "?key=own" if self.curve else ""  # each makes a pair of its own
        if self.data_listen != "auto":
            return self.data_listen + key
        if self.listen.startswith("ipc://"):
            return None
        address = self.listen.removeprefix("tcp://").rpartition(":")[0]
        return f"tcp://{'0.0.0.0' if address == '*' else address}:*{key}"


#: The settings that may come from the environment, which arguments of a program are not.
VARIABLES = {"token": "GPUPOOL_SERVER_TOKEN", "join_token": "GPUPOOL_JOIN_TOKEN"}


#: What clients show. A server that nobody gives a token takes it for its own.
CLIENTS_TOKEN = "GPUPOOL_TOKEN"


def _borrow_token(values: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """The clients' token, if the server is to have it; ConfigError if it cannot be one server's.

    Whoever tries a server and a program on one machine exports one token for both.
    """
    token = env.get(CLIENTS_TOKEN)
    if not token or not values.keys().isdisjoint(("token", "token_file", "pool")):
        return None
    if lease_token.looks_like(token) or "," in token:
        what = "several tokens" if "," in token else "the token of a pool's lease"
        raise ConfigError(
            f"environment: {CLIENTS_TOKEN} is what clients show, and holds {what}; give the server"
            " its own in GPUPOOL_SERVER_TOKEN or with --token-file"
        )
    return token


def _check_variables(values: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """ConfigError where a variable is set that means something to others and nothing to us."""
    if env.get("GPUPOOL_POOL_TOKEN", "").startswith(JOIN_PREFIX) and "join_token" not in values:
        raise ConfigError(
            "environment: GPUPOOL_POOL_TOKEN is what people show to the pool, and this is a"
            " server's: set GPUPOOL_JOIN_TOKEN to it"
        )


def load_settings(
    config: Path | None,
    flags: Mapping[str, object],
    env: Mapping[str, str] | None = None,
) -> Settings:
    """Gather and check everything; ConfigError names source, key and what is allowed.

    ``flags`` has the keys of :class:`Settings`; None means not given. Of ``env`` only
    what VARIABLES names is read.
    """
    given = Given.gather(config, flags, VARIABLES, env)
    if "token" in given.values and "token_file" in given.values:
        # The stronger source wins; within one source it is a contradiction.
        _choose_token(given)
    environment = os.environ if env is None else env
    _check_variables(given.values, environment)
    borrowed = _borrow_token(given.values, environment)
    if borrowed is not None:
        given.put("token", borrowed, f"environment: {CLIENTS_TOKEN}")
    try:
        settings = Settings.model_validate(given.values)
        settings._token_borrowed = borrowed is not None
    except ValidationError as error:
        raise given.explain(error, Settings, ("token", "join_token"), _TABLES) from None
    if "curve" not in given.values and not (settings.is_loopback or settings.insecure_plain):
        settings = settings.model_copy(update={"curve": True})
    _check_plain(settings, given.sources)
    _check_pool(settings, given.sources)
    check_metrics(settings, given.sources)
    if settings.shm_listen == "none" and settings.data_url is None:
        raise ConfigError(
            f"{given.sources['shm_listen']}: without shared memory clients need 'data_listen' at"
            " tcp://"
        )
    check_transports(settings, given.sources, settings.curve, settings.data_url)
    for name, tenant in settings.tenants.items():
        _check_tokens(f"{config}: key 'tenants.{name}'", name, tenant)
    return settings


def _check_tokens(source: str, name: str, tenant: TenantSettings) -> None:
    given = (tenant.token is not None) + (tenant.token_file is not None)
    if name == DEFAULT_TENANT and given:
        raise ConfigError(
            f"{source}: the token of the tenant '{name}' is the server's own; set 'token' or"
            " 'token_file' at the top of the file instead"
        )
    if name != DEFAULT_TENANT and given != 1:
        raise ConfigError(f"{source}: exactly one of 'token' and 'token_file' must be set")


def _check_plain(settings: Settings, sources: Mapping[str, str]) -> None:
    if settings.curve or settings.insecure_plain or settings.is_loopback:
        return
    source = sources.get("curve", "key 'curve'")
    raise ConfigError(
        f"{source}: tokens and data would travel in clear text; leave encryption on, or say that"
        " this is meant: --insecure-plain"
    )


#: Without a pool these would be ignored. A node's name and state directory have other uses.
_POOLS_OWN = ("join_token", "advertise", "labels", "own_token")


def _check_pool(settings: Settings, sources: Mapping[str, str]) -> None:
    if settings.pool is None:
        given = [key for key in _POOLS_OWN if key in sources]
        if given and not sources[given[0]].startswith("environment"):
            raise ConfigError(f"{sources[given[0]]}: is only used with 'pool'")
        return
    if settings.join_token is None:
        raise ConfigError(
            f"{sources['pool']}: needs 'join_token', the path of a file with the token that the"
            " manager gave for servers"
        )
    if settings.listen.startswith("ipc://") and settings.advertise is None:
        raise ConfigError(f"{sources['pool']}: needs 'listen' at tcp://, or 'advertise'")
    if join_token_given(settings.join_token) and sources["join_token"].startswith("flag"):
        raise ConfigError(
            f"{sources['join_token']}: a token in a command can be read by every user of the host;"
            " put it into a file and name that, or set GPUPOOL_JOIN_TOKEN"
        )


def join_token_given(value: SecretStr) -> bool:
    """Whether it is the token itself, and not the path of a file that holds it."""
    return value.get_secret_value().startswith(JOIN_PREFIX)


def _choose_token(given: Given) -> None:
    ranks = {"flag": 3, "environment": 2}
    rank = {
        key: ranks.get(given.sources[key].split(" ")[0].rstrip(":"), 1)
        for key in ("token", "token_file")
    }
    if rank["token"] == rank["token_file"]:
        sources = given.sources
        raise ConfigError(f"{sources['token']} and {sources['token_file']} exclude each other")
    given.drop(min(rank, key=lambda key: rank[key]))


#: Keys whose value is a table, and how many names lead to a key in it.
_TABLES: dict[str, tuple[int, type[BaseModel]]] = {
    "tenants": (3, TenantSettings),
    "gpu": (2, GpuSettings),
    "gpus": (3, GpuSettings),
    "watch": (2, WatchSettings),
    "collectives": (2, CollectivesSettings),
}
