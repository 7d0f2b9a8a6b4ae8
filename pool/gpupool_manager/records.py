"""What the manager keeps: one class a table, one field a column.

Times are seconds since 1970, memory is in bytes, compute in thousandths of one GPU.
``version`` counts the changes of what an operator can change, for ETags.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_manager.placement_request import PlacementRequest

Scope = Literal["admin", "tenant", "node", "metrics"]
Mode = Literal["open", "cordoned", "draining"]
#: What becomes of a request that its tenant's quota has no room for.
Beyond = Literal["refuse", "wait", "borrow"]
#: What comes of a lease whose programs do nothing.
IdleAction = Literal["off", "warn", "reclaim"]
#: Why a lease is taken back before its tenant gives it back.
Cause = Literal["lent", "time", "idle", "reserved"]


@dataclass(slots=True)
class Tenant:
    name: str
    description: str
    disabled: bool
    created: float
    version: int = 1


@dataclass(slots=True)
class Quota:
    """What a tenant may have at once. None: as much as there is."""

    tenant: str
    gpus: int | None = None
    memory_bytes: int | None = None
    compute_permille: int | None = None
    sessions: int | None = None
    #: The highest priority that it may ask for.
    priority: int = 0
    models: list[str] | None = None
    #: What its sessions may have of each host (gpupool_common/budgets.py), by name.
    budgets: dict[str, int] = field(default_factory=dict)
    #: How large a share of the pool is its due, next to those of others.
    weight: int = 1
    #: Whether it may borrow what others leave free, beyond its quota.
    borrow: bool = False
    #: What comes of its idle leases, and after how long they are that; None: as of all tenants.
    idle_action: IdleAction | None = None
    idle_seconds: int | None = None
    version: int = 1


@dataclass(slots=True)
class Token:
    id: str
    #: SHA-256 of the token, in hexadecimal; the token itself is nowhere.
    digest: str
    scope: Scope
    tenant: str | None
    node: str | None
    description: str
    created: float
    expires: float | None
    revoked: float | None = None


@dataclass(slots=True)
class Node:
    name: str
    #: Where clients reach its server.
    address: str
    server_version: str
    labels: dict[str, str]
    mode: Mode
    lost: bool
    #: The token that it joined with: no other node token may speak for it.
    token: str
    created: float
    last_seen: float
    #: The CURVE public key that it joined with, in hexadecimal; no other one may speak for it.
    key: str = ""
    #: The CURVE public key of its front end; empty: clients speak to it in clear.
    front_end_key: str = ""
    #: The newest CUDA that its driver knows, e.g. 12.4; empty: it does not say.
    driver: str = ""
    #: Why nothing new is placed there, whatever its mode: what its server said, or did not say.
    trouble: str = ""
    version: int = 1


@dataclass(slots=True)
class Admission:
    """What holds for a node that is not in the pool: not yet, or not any more."""

    node: str
    labels: dict[str, str]
    mode: Mode
    #: When it was removed; None: it never was there.
    removed: float | None = None


@dataclass(slots=True)
class Gpu:
    uuid: str
    node: str
    number: int
    model: str
    capability: str
    memory_bytes: int
    pci: str
    #: Whether the last report of its node named it.
    present: bool
    policy: str
    max_inst: int
    prio_ratio: int
    #: Why its server has put it aside; empty: it has not.
    trouble: str = ""
    version: int = 1


@dataclass(slots=True)
class Grant:
    """One virtual GPU of a lease."""

    lease: str
    ordinal: int
    gpu: str
    node: str
    memory_bytes: int
    share_permille: int
    lost: bool = False
    #: How long its sessions have kept the GPU busy, as its node has counted.
    busy_ms: int = 0
    #: When it goes back while the lease goes on; None: it stays.
    leaves: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a lease can be changed while it is wanted."""

    #: Of each GPU; None: all of it.
    memory_bytes: int | None
    share_permille: int
    ceiling_permille: int
    priority: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of an active lease's limits: one that servers have not all made, or the last one
    if it was refused."""

    #: The version that the lease got by it.
    number: int
    asked: Limits
    #: What holds again if a server refuses.
    before: Limits
    since: float
    force: bool = False
    #: Why it was refused; what it had changed is undone.
    refused: str = ""
    #: Whether servers have not all said that what is asked, or undone, holds.
    open: bool = True


@dataclass(frozen=True, slots=True)
class Ending:
    """A lease is to be given back, and its programs are told so before."""

    at: float
    reason: str
    #: What it is then.
    state: Literal["reclaimed", "expired"] = "reclaimed"
    cause: Cause = "lent"


@dataclass(slots=True)
class Lease:
    id: str
    tenant: str
    state: LeaseState
    request: PlacementRequest
    priority: int
    #: How long it lasts without being renewed.
    ttl: float
    label: str
    created: float
    #: When it stops waiting in the queue.
    deadline: float
    granted: float | None = None
    expires: float | None = None
    ended: float | None = None
    reason: str = ""
    #: The id of the HTTP request that asked for it: it follows the lease into servers' logs.
    request_id: str = ""
    #: What the scheduler said of the placement.
    placement: dict[str, Any] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    until: LeaseEnd = LeaseEnd.RELEASED
    #: How many processes each server serves at once; None: no limit.
    sessions: int | None = None
    #: Up to how much it borrows of what others leave idle.
    ceiling_permille: int = 1000
    #: Another one after every change of its limits.
    version: int = 1
    resize: Resize | None = None
    beyond: Beyond = "refuse"
    #: Whether it is beyond its tenant's quota, until others want what is theirs.
    borrowed: bool = False
    ending: Ending | None = None
    #: How long it lasts at most, whoever renews it.
    time_limit: float | None = None
    #: Whether it was a reservation: then it goes before all that are none.
    reserved: bool = False

    @property
    def time_end(self) -> float:
        """When its time limit is over."""
        if self.time_limit is None or self.granted is None:
            return math.inf
        return self.granted + self.time_limit

    @property
    def latest_end(self) -> float:
        """When an active lease ends at the latest, as far as that is known."""
        return self.time_end if self.ending is None else min(self.time_end, self.ending.at)

    @property
    def limits(self) -> Limits:
        """What it is to have; its grants may still count more."""
        request = self.request
        return Limits(
            request.memory_bytes, request.share_permille, self.ceiling_permille, self.priority
        )

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self.request = replace(
            self.request, memory_bytes=limits.memory_bytes, share_permille=limits.share_permille
        )
        self.ceiling_permille, self.priority = limits.ceiling_permille, limits.priority

    @property
    def present(self) -> list[Grant]:
        """Its grants on GPUs that are there."""
        return [grant for grant in self.grants if not grant.lost]

    @property
    def leaving(self) -> list[Grant]:
        """Its grants that go back while it goes on."""
        return [grant for grant in self.grants if grant.leaves is not None]

    @property
    def staying(self) -> list[Grant]:
        """Its grants that programs which begin now have."""
        return [grant for grant in self.present if grant.leaves is None]

    @property
    def change(self) -> Resize | None:
        """The change that its servers have not all made."""
        return self.resize if self.resize is not None and self.resize.open else None


@dataclass(slots=True)
class Reservation:
    """GPUs for a time to come. At its start it becomes a lease of the same id."""

    id: str
    tenant: str
    request: PlacementRequest
    start: float
    end: float
    label: str
    created: float


@dataclass(slots=True)
class Usage:
    """What a tenant had during one hour, in seconds times amount."""

    tenant: str
    hour: int
    gpu_seconds: float = 0.0
    memory_byte_seconds: float = 0.0
    compute_seconds: float = 0.0
    busy_seconds: float = 0.0
    leases: int = 0


@dataclass(slots=True)
class Answer:
    """What was answered to a request with an idempotency key."""

    owner: str
    key: str
    fingerprint: str
    status: int
    body: str
    etag: str | None
    created: float


@dataclass(slots=True)
class AuditEntry:
    at: float
    actor: str
    action: str
    object: str
    tenant: str | None
    detail: dict[str, Any]
    request_id: str


@dataclass(slots=True)
class Note:
    """A value that the manager itself remembers."""

    name: str
    value: str


Record = (
    Tenant
    | Quota
    | Token
    | Node
    | Admission
    | Gpu
    | Grant
    | Lease
    | Reservation
    | Usage
    | Answer
    | AuditEntry
    | Note
)
