"""What the admin socket answers to ``status``, checked and with types."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpupool.admin import Admin
from gpupool_common.errors import ProtocolError

#: Policies by number (server/arbiter/board.h).
POLICIES = ("average", "preemptive", "weighted", "fixed", "weak", "native", "share")
UNLIMITED = "native"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Process(_Part):
    """A worker on a GPU and the client process it works for."""

    pid: int
    session: str | None = None
    client_pid: int | None = None
    program: str | None = None
    memory_used_bytes: int = 0


class Tenant(_Part):
    """A tenant, or one group of a tenant, on one GPU."""

    name: str
    memory_limit_bytes: int = 0
    memory_used_bytes: int = 0
    memory_peak_bytes: int = 0
    memory_denied: int = 0
    weight: int = 1
    share_permille: int = 1000
    ceiling_permille: int = 1000
    high_priority: bool = False
    entitled_permille: int | None = None
    utilisation_permille: int | None = None
    sessions: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()


class Gpu(_Part):
    """One GPU, its settings and who is on it."""

    index: int
    name: str
    uuid: str = ""
    memory_total_bytes: int
    policy: str = "share"
    max_inst: int = 20
    prio_ratio: int = 90
    hardware: bool = False
    default_memory_bytes: int | None = None
    free_weight: int | None = None
    utilisation_permille: int | None = None
    tenants: tuple[Tenant, ...] = ()

    def allotted(self, tenant: Tenant) -> int:
        """The bytes that a tenant sees as its GPU's total."""
        return min(tenant.memory_limit_bytes or self.memory_total_bytes, self.memory_total_bytes)

    def reserved(self, tenant: Tenant) -> int:
        """The bytes that nobody else can be promised: a limit, or without one what is in use."""
        return self.allotted(tenant) if tenant.memory_limit_bytes else tenant.memory_used_bytes

    @property
    def memory_used_bytes(self) -> int:
        return sum(tenant.memory_used_bytes for tenant in self.tenants)


class Budget(_Part):
    """How much there is of one thing, may be, and how often more was refused."""

    used: int = 0
    limit: int | None = None
    refused: int = 0


class Session(_Part):
    """A session as ``gpupool info`` knows it."""

    session: str
    program: str = "?"
    client_host: str = "?"
    client_pid: int = 0
    devices: tuple[int, ...] = ()
    memory_bytes: int | None = None
    budgets: dict[str, Budget] = Field(default_factory=dict)
    created: float = 0.0
    state: str = "?"


class Status(_Part):
    """A server's whole answer."""

    version: str = "?"
    host: str = "?"
    gpus: tuple[Gpu, ...] = ()
    sessions: tuple[Session, ...] = Field(default=())
    #: By tenant, then by name.
    budgets: dict[str, dict[str, Budget]] = Field(default_factory=dict)

    def tenant_of(self, session: str) -> str:
        """The name under which a session is on its GPUs; empty if it is on none yet."""
        for gpu in self.gpus:
            for tenant in gpu.tenants:
                if session in tenant.sessions:
                    return tenant.name
        return ""


def ask_status(admin: Admin) -> tuple[Status, dict[str, Any]]:
    """The status of a server, and the answer as it came (without its ``ok``)."""
    answer = admin.ask({"do": "status"})
    answer.pop("ok")
    try:
        return Status.model_validate(answer), answer
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ProtocolError(
            f"the server at {admin.path} answered a status without a right '{place}';"
            " is it of another release?"
        ) from None
