"""Who a token belongs to, and what its owner may have."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpupool_common.errors import ConfigError
from gpupool_server.config import DEFAULT_TENANT, Settings
from gpupool_server.rundir import read_token
from gpupool_server.sharing import TenantSettings


@dataclass(frozen=True)
class Quota:
    """The most that a tenant's groups may have of one GPU together; None: no limit."""

    memory: int | None = None
    share: int = 1000
    ceiling: int = 1000
    weight: int | None = None
    high_priority: bool = True


@dataclass(frozen=True)
class Promise:
    """What a lease of the pool has of one GPU."""

    memory: int  # bytes; 0: all there is
    share: int  # thousandths
    ceiling: int | None = None  # thousandths; None: as its tenant's quota here says
    high_priority: bool = False


@dataclass(frozen=True)
class LeasePart:
    """The part of a pool's lease that is on this server."""

    lease: str
    #: The id of the request that asked for it, for logs.
    request_id: str
    #: By the index of the GPU, in the order in which a session sees them.
    promises: Mapping[int, Promise]
    #: What the lease's workers on all servers seal their addresses with, 64 hexadecimal digits;
    #: empty: the manager has not told it yet.
    peer_key: str = ""
    #: How many sessions it may have here at once; None: no limit.
    sessions: int | None = None
    #: The name of this host in the pool, and of all that the lease is on, as the token says.
    node: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(self.promises)


@dataclass(frozen=True)
class Tenant:
    """One tenant; the defaults are those of the server's own token."""

    name: str
    quota: Quota = Quota()
    gpus: frozenset[int] | None = None
    #: Who came with a lease of the pool has exactly what that says.
    lease: LeasePart | None = None
    #: What its sessions may have together, by name (gpupool_common/budgets.py); what is not in it
    #: has no limit of the tenant's own.
    budgets: Mapping[str, int] = field(default_factory=dict)

    @property
    def sessions(self) -> int | None:
        return self.budgets.get("sessions")

    @property
    def lease_name(self) -> str | None:
        return None if self.lease is None else self.lease.lease

    def may_use(self, index: int) -> bool:
        return self.gpus is None or index in self.gpus


def _tenant(name: str, settings: TenantSettings) -> Tenant:
    quota = Quota(
        memory=settings.memory,
        share=settings.share,
        ceiling=settings.ceiling,
        weight=settings.weight,
        high_priority=settings.high_priority,
    )
    if name == DEFAULT_TENANT:
        # It is not limited in what its table does not speak of.
        free = Quota()
        said = settings.model_fields_set
        quota = Quota(**{key: getattr(quota if key in said else free, key) for key in vars(free)})
    gpus = None if settings.gpus is None else frozenset(settings.gpus)
    return Tenant(name, quota, gpus, budgets=settings.amounts())


class Tenants:
    """All tenants of a server."""

    def __init__(self, own_token: str, others: Mapping[str, str], settings: Settings) -> None:
        self._by_name = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT)}
        for name, table in settings.tenants.items():
            self._by_name[name] = _tenant(name, table)
        tokens = {DEFAULT_TENANT: own_token, **others}
        self._digests = [(_digest(token), self._by_name[name]) for name, token in tokens.items()]
        #: Of tenants of a pool: what their sessions may have together here, by name.
        self.of_pool: Mapping[str, Mapping[str, int]] = {}

    @classmethod
    def load(cls, own_token: str, settings: Settings) -> Tenants:
        """Read the token files; ConfigError if one is bad or two tenants have one token."""
        owners = {own_token: DEFAULT_TENANT}
        others: dict[str, str] = {}
        for name, table in settings.tenants.items():
            if name == DEFAULT_TENANT:
                continue
            token = _token(name, table)
            if token in owners:
                raise ConfigError(
                    f"the tenants '{owners[token]}' and '{name}' have the same token; give each"
                    f" its own: key 'tenants.{name}.token' or 'token_file'"
                )
            owners[token] = name
            others[name] = token
        return cls(own_token, others, settings)

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Tenant | None:
        return self._by_name.get(name)

    def known(self, name: str) -> Tenant:
        """One of ours or a pool's, with what the pool's manager has said of it."""
        tenant = self.named(name) or Tenant(name)
        return replace(tenant, budgets={**tenant.budgets, **self.of_pool.get(name, {})})

    def of_token(self, token: str) -> Tenant | None:
        """Whose token this is. Takes as long whichever it is, and if it is nobody's."""
        digest = _digest(token)
        found: Tenant | None = None
        for known, tenant in self._digests:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def _digest(token: str) -> bytes:
    """Of one length for every token, so that a comparison tells nothing of that either."""
    return hashlib.sha256(token.encode("utf-8", errors="replace")).digest()


def _token(name: str, table: TenantSettings) -> str:
    if table.token is not None:
        return table.token.get_secret_value()
    if table.token_file is None:
        raise ConfigError(f"key 'tenants.{name}': one of 'token' and 'token_file' must be set")
    try:
        return read_token(table.token_file)
    except ConfigError as error:
        raise ConfigError(f"key 'tenants.{name}.token_file': {error}") from None
