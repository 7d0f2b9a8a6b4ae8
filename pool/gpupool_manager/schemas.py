"""What the REST API takes and gives, checked and documented."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints, model_validator

from gpupool_common.budgets import TenantBudgets
from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_common.node_protocol import (
    NAME,
    Capability,
    GpuPolicy,
    Labels,
    Line,
    Name,
    SessionState,
)
from gpupool_common.quantities import MOST_SESSIONS, Memory, Share, TotalCompute, TotalMemory
from gpupool_manager.placement_request import Hosts, Policy
from gpupool_manager.records import Beyond, Scope
from gpupool_manager.schemas_ending import EndingOut, IdleOut, IdlePolicyIn
from gpupool_manager.schemas_grants import GrantOut, ServerOut
from gpupool_manager.schemas_reading import ReadingOut
from gpupool_manager.schemas_resize import ResizeOut

T = TypeVar("T")

_TENANT = r"^[A-Za-z0-9._-]{1,32}$"
TenantName = Annotated[str, StringConstraints(pattern=_TENANT)]
#: What gets a name now: ``..`` cannot be part of a URL, nor ``-x`` a word of a command.
_NEW_TENANT = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,31}$"
_NEW_NODE = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$"
NewTenantName = Annotated[str, StringConstraints(pattern=_NEW_TENANT)]
NewNodeName = Annotated[str, StringConstraints(pattern=_NEW_NODE)]
Pattern = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]
Whole = Annotated[int, Field(strict=True)]

#: What a text of a pattern may hold, for who wrote another one.
ALLOWED = {
    NAME: "a name has 1 to 64 of A-Z a-z 0-9 . _ -, and no blank",
    _TENANT: "a tenant's name has 1 to 32 of A-Z a-z 0-9 . _ -, and no blank",
    _NEW_TENANT: "a tenant's name has 1 to 32 of A-Z a-z 0-9 . _ -, but no . or - first",
    _NEW_NODE: "a node's name has 1 to 64 of A-Z a-z 0-9 . _ -, but no . or - first",
}

#: For how long a node may join with a token, at most.
MOST_JOIN_SECONDS = 30 * 86400


class In(BaseModel):
    """A body: fields that are not known are refused."""

    model_config = ConfigDict(extra="forbid")


class Page(BaseModel, Generic[T]):
    """Some of a list. ``next`` is the cursor of the following page; null: this is the last."""

    items: list[T]
    next: str | None = None


class FieldError(BaseModel):
    field: str
    message: str


class Limit(BaseModel):
    quantity: str
    asked: int
    in_use: int | None = None
    queued: int | None = None
    quota: int


class ProblemOut(BaseModel):
    """RFC 9457, with the fields that were wrong (422) or the numbers of a quota (403)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldError] | None = None
    limits: list[Limit] | None = None


# Tenants, quotas, tokens ---------------------------------------------------------------


class QuotaIn(In, IdlePolicyIn):
    """What a tenant may have at once; null: as much as there is."""

    gpus: Annotated[Whole, Field(ge=0, le=1 << 31)] | None = Field(None, description="virtual GPUs")
    memory_bytes: TotalMemory | None = Field(None, description="over all virtual GPUs")
    compute_permille: TotalCompute | None = Field(
        None, description="thousandths of one GPU, over all virtual GPUs"
    )
    sessions: Annotated[Whole, Field(ge=0, le=1 << 31)] | None = Field(
        None, description="leases, granted and queued"
    )
    priority: Annotated[Whole, Field(ge=0, le=100)] = Field(
        0, description="the highest that may be asked for"
    )
    models: Annotated[list[Pattern], Field(max_length=64)] | None = Field(
        None, description="patterns of GPU models, e.g. 'NVIDIA H100*'; null: all"
    )
    budgets: TenantBudgets = Field(
        TenantBudgets.model_construct(),
        description="of each GPU host, for all its processes there together",
    )
    weight: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        1, description="how large a share of the pool is its due, next to those of others"
    )
    borrow: StrictBool = Field(
        False, description="whether it may borrow what others leave free, beyond its quota"
    )

    def values(self) -> dict[str, Any]:
        """As the manager keeps it."""
        return self.model_dump() | {"budgets": self.budgets.amounts()}


class UseOut(BaseModel):
    gpus: int
    memory_bytes: int
    compute_permille: int
    sessions: int


class QuotaOut(QuotaIn):
    model_config = ConfigDict(extra="ignore")

    tenant: str
    in_use: UseOut
    borrowed: UseOut = Field(description="of what is in use: beyond the quota, until others ask")
    queued: UseOut


class TenantIn(In):
    name: NewTenantName
    description: Line = ""
    quota: QuotaIn = QuotaIn.model_construct()


class TenantChange(In):
    """What is left out stays."""

    description: Line | None = None
    disabled: StrictBool | None = Field(
        None, description="its tokens are refused; what it has stays until it ends"
    )


class TenantOut(BaseModel):
    name: str
    description: str
    disabled: bool
    created: datetime
    quota: QuotaOut


class TokenIn(In):
    scope: Scope = Field(description="'metrics' reads metrics, and nothing else")
    tenant: TenantName | None = Field(None, description="scope 'tenant': whose it is")
    node: NewNodeName | None = Field(
        None, description="scope 'node': the only node that may use it"
    )
    labels: Labels | None = Field(
        None, description="scope 'node': what the node is labelled with when it joins"
    )
    description: Line = ""
    lifetime_seconds: Annotated[Whole, Field(ge=1, le=10 * 366 * 86400)] | None = Field(
        None,
        description="null: it does not expire; of the scope 'node', one day. There it ends joining"
        " for the first time, and 30 days are the most",
    )

    @model_validator(mode="after")
    def _check_scope(self) -> TokenIn:
        if (self.tenant is not None) != (self.scope == "tenant"):
            raise ValueError("'tenant' goes with the scope 'tenant', and only with it")
        if (self.node is not None) != (self.scope == "node"):
            raise ValueError("'node' goes with the scope 'node', and only with it")
        if self.labels is not None and self.scope != "node":
            raise ValueError("'labels' goes with the scope 'node' only")
        if self.scope == "node" and (self.lifetime_seconds or 0) > MOST_JOIN_SECONDS:
            raise ValueError("'lifetime_seconds' of the scope 'node' is at most 30 days")
        return self


class TokenOut(BaseModel):
    id: str
    scope: Scope
    tenant: str | None
    node: str | None
    description: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None


class NewTokenOut(TokenOut):
    secret: str = Field(description="the token itself; it is not kept and never shown again")
    nodes: str | None = Field(
        None, description="of scope node: where servers join with it (gpupool-server --pool)"
    )


# Nodes and GPUs ------------------------------------------------------------------------


class NodeChange(In):
    """What is left out stays."""

    mode: Literal["open", "cordoned", "draining"] | None = Field(
        None,
        description="cordoned: nothing new; draining: nothing new, and its server is told to"
        " take no new sessions",
    )
    labels: Labels | None = None


class NodeOut(BaseModel):
    name: str
    address: str
    server_version: str
    driver: str = Field(description="the newest CUDA that its driver knows, e.g. 12.4; or empty")
    labels: dict[str, str]
    mode: Literal["open", "cordoned", "draining"]
    state: Literal["ready", "aside", "lost"] = Field(
        description="aside: its sessions do not start, so nothing new is placed there"
    )
    reason: str = Field(description="why it is aside or lost")
    created: datetime
    last_seen: datetime
    gpus: int
    leases: int
    sessions: int


class GpuChange(In):
    """What is left out stays."""

    policy: GpuPolicy | None = None
    max_inst: Annotated[Whole, Field(ge=1, le=25)] | None = None
    prio_ratio: Annotated[Whole, Field(ge=20, le=99)] | None = None
    aside: Literal[False] | None = Field(
        None, description="false: it is well again, which its server had put aside"
    )


class GpuOut(BaseModel):
    uuid: str
    node: str
    index: int
    model: str
    compute_capability: str
    memory_bytes: int
    pci: str
    policy: GpuPolicy
    max_inst: int
    prio_ratio: int
    used_bytes: int
    used_permille: int
    grants: int
    usable: bool
    closed: str | None = Field(description="why nothing new is placed here")
    aside: str | None = Field(description="why its server has put it aside; null: it has not")
    reading: ReadingOut | None = Field(description="how it does; null: its node is lost or silent")


class SessionOut(BaseModel):
    id: str
    node: str
    lease: str
    tenant: str | None
    program: str
    state: SessionState = Field(description="waiting: its program has not connected yet")


# Leases --------------------------------------------------------------------------------


class PlacementRequestIn(In):
    """Which GPUs, and how much of each."""

    gpus: Annotated[Whole, Field(ge=1, le=64)] = 1
    memory_bytes: Memory | None = Field(
        None,
        description="of each GPU, from 1 MiB; null: a whole unused GPU each, with all its memory",
    )
    share_permille: Share = Field(1000, description="thousandths of each GPU's compute")
    policy: Policy = "binpack"
    hosts: Hosts = Field(
        "any", description="same: all on one node; spread: each on another; any: as few as will do"
    )
    model: Pattern | None = Field(None, description="a pattern, e.g. 'NVIDIA H100*'")
    capability: Capability | None = Field(None, description="at least this, e.g. 8.0")
    min_driver: Capability | None = Field(
        None, description="of a node whose driver knows at least this CUDA, e.g. 12.4"
    )
    labels: Labels = Field(default_factory=dict, description="what nodes must be labelled with")
    # No factory: leases are listed without it, and pydantic reads a factory's signature each time.
    avoid: Annotated[list[Name], Field(max_length=64)] = Field(
        [], description="nodes that the client cannot reach"
    )
    uuids: Annotated[list[Name], Field(max_length=64)] = Field(
        [],
        description="the GPUs themselves, which another scheduler has chosen, in the order of the"
        " lease's devices: the pool checks that they have room, and takes no others. 'gpus' may be"
        " left out",
    )


class LeaseRequestIn(PlacementRequestIn):
    tenant: TenantName | None = Field(None, description="for admin tokens; else the token's own")
    priority: Annotated[Whole, Field(ge=0, le=100)] = 0
    ceiling_permille: Share = Field(
        1000, description="up to how much it borrows of what others leave idle"
    )
    wait_seconds: Annotated[Whole, Field(ge=0, le=7 * 86400)] = Field(
        0, description="how long to wait in the queue when the pool is full; 0: not at all"
    )
    ttl_seconds: Annotated[Whole, Field(ge=5, le=86400)] = Field(
        60, description="how long the lease lasts without being renewed"
    )
    label: Line = ""
    until: LeaseEnd = Field(
        LeaseEnd.RELEASED, description="last-session: released when its last process has ended"
    )
    sessions: Annotated[Whole, Field(ge=1, le=MOST_SESSIONS)] | None = Field(
        None, description="how many of its processes each server serves at once; null: no limit"
    )
    beyond_quota: Beyond = Field(
        "refuse",
        description="wait: queue until the quota has room; borrow: take what others leave free,"
        " until they ask for it",
    )
    time_seconds: Annotated[Whole, Field(ge=1, le=366 * 86400)] | None = Field(
        None,
        description="the lease ends after so long, whoever renews it; who says it may go before"
        " larger requests that could not begin earlier; null: no limit",
    )


class LeaseChange(In):
    """What is left out stays."""

    gpus: Annotated[Whole, Field(ge=1, le=64)] | None = Field(
        None,
        description="how many it is to have, and nothing else at once: more of its host's, or"
        " fewer, without the last ones; programs to come have them",
    )
    memory_bytes: Memory | None = Field(None, description="of each GPU")
    share_permille: Share | None = Field(None, description="thousandths of each GPU's compute")
    ceiling_permille: Share | None = Field(None, description="not less than the share")
    priority: Annotated[Whole, Field(ge=0, le=100)] | None = None
    force: StrictBool = Field(
        False,
        description="true: less memory than is in use holds for what is new; false: it is refused",
    )


class PlacementRequestOut(PlacementRequestIn):
    model_config = ConfigDict(extra="ignore")


class LeaseOut(BaseModel):
    id: str
    tenant: str
    state: LeaseState
    request: PlacementRequestOut
    priority: int
    ceiling_permille: int
    resize: ResizeOut | None = Field(
        description="a change of its limits that is not made everywhere, or the last one if that"
        " was refused; `request` has what is asked, `grants` what counts"
    )
    label: str
    until: LeaseEnd
    sessions: int | None
    beyond_quota: Beyond
    time_seconds: float | None = Field(description="how long it lasts at most; null: no limit")
    borrowed: bool = Field(description="beyond its tenant's quota, until others ask for it")
    ending: EndingOut | None = Field(description="when it is to be given back, and why")
    reserved: bool = Field(description="a reservation that has begun: it goes before all others")
    idle: IdleOut | None = Field(description="of an active lease: since when it does no work")
    ttl_seconds: float
    created: datetime
    granted: datetime | None
    expires: datetime | None
    wait_until: datetime | None
    ended: datetime | None
    reason: str
    position: int | None = Field(description="in the queue; 1 is next")
    grants: list[GrantOut]
    servers: list[ServerOut] = Field(
        description="of an active lease: where clients go, in the order of its devices"
    )
    token: str | None = Field(
        None,
        description="of an active lease that is asked for by itself: what clients show to servers;"
        " short-lived, so every renewal gives another",
    )


class VerdictOut(BaseModel):
    gpu: str
    node: str
    index: int
    fits: bool
    reason: str | None = Field(description="why it does not fit")
    rank: int | None = Field(description="1 is what the policy likes best")
    free_bytes: int
    free_permille: int


class ExplainOut(BaseModel):
    lease: str | None
    decision: str
    placement: dict[str, Any] | None = Field(description="of a lease that was granted: as it was")
    summary: dict[str, int] = Field(description="GPUs that fit, and by reason those that do not")
    gpus: list[VerdictOut]
    expected_start: datetime | None = Field(
        default=None,
        description="of one that waits for room: when enough of what runs has ended by its time"
        " limit, if nobody before it takes that; null: it is not known",
    )


class QueueOut(BaseModel):
    position: int
    lease: str
    tenant: str
    priority: int
    gpus: int
    memory_bytes: int | None
    share_permille: int
    since: datetime
    until: datetime
    beyond_quota: Beyond
    reason: str


# Looking -------------------------------------------------------------------------------


class UsageOut(BaseModel):
    tenant: str | None = Field(description="null: of all tenants together")
    start: datetime
    gpu_hours: float
    memory_gib_hours: float
    compute_hours: float = Field(description="whole GPUs' compute")
    busy_hours: float = Field(description="for how long GPUs were busy, of what was granted")
    leases: int


class AuditOut(BaseModel):
    id: int
    at: datetime
    actor: str
    action: str
    object: str
    tenant: str | None
    detail: dict[str, Any]
    request_id: str


class HealthOut(BaseModel):
    status: Literal["ok"]
    version: str


class ReadyOut(BaseModel):
    status: Literal["ready"]
    nodes: int
    gpus: int


def when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def maybe_when(seconds: float | None) -> datetime | None:
    return None if seconds is None else when(seconds)
