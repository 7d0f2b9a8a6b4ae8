"""What the admin socket answers to ``status``, checked and with types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpupool.admin import Admin
from gpupool_common.errors import ProtocolError

#: Policies by number (server/arbiter/board.h).
POLICIES = ("average", "preemptive", "weighted", "fixed", "weak", "native", "share")
UNLIMITED = "native"


#: Whatever a server says, it can be reckoned with and shown: what is larger is no answer.
Number = Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)]
#: Seconds since 1970, up to the year 5138.
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Process(_Part):
    """A worker on a GPU and the client process it works for."""

    pid: Number
    session: str | None = None
    client_pid: Number | None = None
    program: str | None = None
    memory_used_bytes: Number = 0


class Tenant(_Part):
    """A tenant, or one group of a tenant, on one GPU."""

    name: str
    memory_limit_bytes: Number = 0
    memory_used_bytes: Number = 0
    memory_peak_bytes: Number = 0
    memory_denied: Number = 0
    weight: Number = 1
    share_permille: Number = 1000
    ceiling_permille: Number = 1000
    high_priority: bool = False
    entitled_permille: Number | None = None
    utilisation_permille: Number | None = None
    sessions: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()


class Gpu(_Part):
    """One GPU, its settings and who is on it."""

    index: Number
    name: str
    uuid: str = ""
    memory_total_bytes: Number
    policy: str = "share"
    max_inst: Number = 20
    prio_ratio: Number = 90
    hardware: bool = False
    default_memory_bytes: Number | None = None
    free_weight: Number | None = None
    utilisation_permille: Number | None = None
    #: Why it is put aside; empty: it is not.
    sick: str = ""
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

    used: Number = 0
    limit: Number | None = None
    refused: Number = 0


class Session(_Part):
    """A session as ``gpupool info`` knows it."""

    session: str
    program: str = "?"
    client_host: str = "?"
    client_pid: Number = 0
    devices: tuple[Number, ...] = ()
    memory_bytes: Number | None = None
    budgets: dict[str, Budget] = Field(default_factory=dict)
    created: Seconds = 0.0
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
