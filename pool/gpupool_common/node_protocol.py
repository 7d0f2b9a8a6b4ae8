"""What a server and the manager say to each other, and how it is written.

A server *joins* with its token and a *report* of what it has; it reports again whenever
its GPUs have changed. Between that it sends *heartbeats*. The answer to all of them is
*orders*, which also come unasked when they have changed. The orders that matter are not
steps but the whole state that the server should have (``apply``), under a generation: a
server that has applied this generation is not sent it again, one that has another is
sent all of it. So nothing is lost when either side restarts, and nothing needs to be
acknowledged.

A message is one frame of MessagePack with a map in it, of at most MAX_BYTES.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgpack
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gpupool_common import __version__
from gpupool_common.errors import ProtocolError
from gpupool_common.protocol import one_line
from gpupool_common.quantities import MOST_MEMORY, Memory, Share

PROTOCOL = 2

#: The most that one message may have: the orders of 64 full GPUs fit in it twice.
MAX_BYTES = 2 << 20

NAME = r"^[A-Za-z0-9._-]{1,64}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
#: One line of text.
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=256)]
Capability = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$")]
Driver = Annotated[str, StringConstraints(pattern=r"^([0-9]{1,2}\.[0-9]{1,2})?$")]
#: A public key in hexadecimal.
PublicKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
#: The ids of the keys that a node checks lease tokens with.
KeyIds = Annotated[list[Name], Field(max_length=8)]
#: A CURVE public key, or as many bytes of another kind, in hexadecimal; or nothing.
KeyHex = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
Labels = Annotated[dict[Name, Line], Field(max_length=64)]
GpuPolicy = Literal["share", "average", "preemptive", "weighted", "fixed", "weak", "native"]
Mode = Literal["open", "cordoned", "draining"]
#: Which change of a lease's limits; the first is 1.
ChangeNumber = Annotated[int, Field(ge=0, le=1 << 31)]
#: Seconds since 1970, by the manager's clock.
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Message(BaseModel):
    """Fields that we do not have are a later release's, and ignored.

    So a release may add a field that has a default. What the other side must understand (a
    new kind of message or command, another meaning) needs a new number of the protocol.
    """

    model_config = ConfigDict(extra="ignore")


# What a node has -----------------------------------------------------------------------


class ReportedGpu(Message):
    """One GPU of the node."""

    uuid: Name
    index: int = Field(ge=0, le=63)
    model: Annotated[Line, Field(min_length=1)]
    compute_capability: Capability
    memory_bytes: Memory
    pci: Annotated[Line, Field(max_length=32)] = ""
    policy: GpuPolicy = "share"
    max_inst: int = Field(default=20, ge=1, le=25)
    prio_ratio: int = Field(default=90, ge=20, le=99)
    #: Why nothing new is to be placed on it; empty: it is well.
    sick: Line = ""


class Report(Message):
    """What a node has: GPUs that are not in it are gone."""

    protocol: Literal[2] = 2
    address: Annotated[Line, Field(min_length=1)]
    #: The public key of its front end; empty: clients speak to it in clear.
    front_end_key: KeyHex = ""
    server_version: Line
    #: The newest CUDA that its driver knows, e.g. 12.4; empty: it does not say.
    driver: Driver = ""
    labels: Labels = Field(default_factory=dict)
    gpus: list[ReportedGpu] = Field(max_length=64)


#: Whether a session's client has come to it.
SessionState = Literal["waiting", "running"]


class ReportedSession(Message):
    """One client process on the node."""

    id: Name
    lease: Name
    program: Line = ""
    state: SessionState = "running"
    #: Those that it sees; none: its server does not say.
    gpus: list[Name] = Field(default_factory=list, max_length=64)


class BusyTime(Message):
    """For how long a lease has kept a GPU busy since its first session there."""

    lease: Name
    gpu: Name
    busy_ms: int = Field(ge=0, le=1 << 50)


#: What gave a worker away that was taken over: what it wrote to its arbiter, or what the driver
#: says of its memory or its time.
Cause = Literal["page", "memory", "time"]

#: Of so many a heartbeat tells at most.
MOST_LIARS = 64


class ReportedLiar(Message):
    """A session that the node has ended, because its worker did what no worker of ours does."""

    session: Name
    lease: Name
    gpu: Name
    cause: Cause
    reason: Line = ""


class GrantChange(Message):
    """What has come of a change of a lease's limits on one GPU."""

    lease: Name
    gpu: Name
    number: ChangeNumber
    #: Why they are not these; empty: they are.
    reason: Line = ""
    #: Whether that is for good: they are as they were.
    refused: bool = False


#: Every grant of a node may have been changed.
GrantChanges = Annotated[list[GrantChange], Field(max_length=4096)]


class GpuReading(Message):
    """How one GPU does at this moment; None: the node does not know."""

    gpu: Name
    #: Thousandths of the last second in which leases were at work on it.
    busy_permille: Annotated[int, Field(ge=0, le=1000)] | None = None
    temperature_celsius: Annotated[int, Field(ge=0, le=1000)] | None = None
    memory_used_bytes: Annotated[int, Field(ge=0, le=MOST_MEMORY)] | None = None
    #: Of its memory, not corrected, since the driver was loaded.
    memory_errors: Annotated[int, Field(ge=0, le=1 << 50)] | None = None


class Heartbeat(Message):
    """The node is there, has applied these orders, and serves these sessions."""

    protocol: Literal[2] = 2
    applied: Line = ""
    keys: KeyIds = Field(default_factory=list)
    #: The newest key that it knows its manager by.
    manager_key: KeyHex = ""
    sessions: list[ReportedSession] = Field(default_factory=list, max_length=4096)
    #: Leases that had sessions on this node and have none now.
    idle: list[Name] = Field(default_factory=list, max_length=4096)
    #: Why sessions do not start here; empty: they do.
    trouble: Line = ""
    #: What has changed of it since the last heartbeat that was answered.
    busy: list[BusyTime] = Field(default_factory=list, max_length=4096)
    #: Those that were found since the last heartbeat that was answered.
    liars: list[ReportedLiar] = Field(default_factory=list, max_length=MOST_LIARS)
    #: By UUID: why nothing new is to be placed on GPUs. None: a server that does not know.
    sick: Annotated[dict[Name, Line], Field(max_length=64)] | None = None
    #: Of the changes that its orders have, all of them each time.
    changes: GrantChanges = Field(default_factory=list)
    readings: Annotated[list[GpuReading], Field(max_length=64)] = Field(default_factory=list)


# What holds on a node ------------------------------------------------------------------


class OrderedGrant(Message):
    """One virtual GPU that a tenant may use here."""

    lease: Name
    tenant: Name
    ordinal: int = Field(ge=0, le=1023)
    gpu: Name
    memory_bytes: Memory
    share_permille: Share
    priority: int = Field(ge=0, le=100)
    #: Up to how much it borrows of what others leave idle.
    ceiling_permille: Share | None = None
    #: Of the change of its limits that the manager waits for; 0: of none.
    number: ChangeNumber = 0
    #: Whether less memory than is in use holds for what is new.
    force: bool = False
    #: The id of the request that asked for it, for logs.
    request_id: Line = ""
    #: A secret of the lease's, which its servers have in common and its client has not.
    peer_key: KeyHex = ""


class LeavingGrant(Message):
    """A virtual GPU that a lease gives back while it goes on: no new session has it.

    The node says with a :class:`GrantChange` what still has it. A server of an earlier release
    says nothing, and the manager counts it until the lease ends.
    """

    lease: Name
    tenant: Name
    gpu: Name
    number: ChangeNumber
    #: Until when sessions that have it may go on, for those who are told.
    at: Time = 0.0
    #: Whether that is over: what has it is to be ended.
    over: bool = False


class OrderedGpu(Message):
    """The settings of one GPU."""

    uuid: Name
    policy: GpuPolicy
    max_inst: int = Field(ge=1, le=25)
    prio_ratio: int = Field(ge=20, le=99)
    #: What the node said of it, and an operator says is over; empty: nothing.
    opened: Line = ""


class OrderedTenant(Message):
    """What all sessions of a tenant may have together on this node."""

    tenant: Name
    #: By the names of :class:`gpupool_common.budgets.TenantBudgets`.
    budgets: Annotated[
        dict[Name, Annotated[int, Field(ge=1, le=MOST_MEMORY)]], Field(max_length=64)
    ]


class EndedLease(Message):
    """Why a lease ended, for those who still use it."""

    lease: Name
    reason: Line


class Apply(Message):
    """Everything that holds on the node now; a lease that is not in it has ended."""

    do: Literal["apply"] = "apply"
    generation: Line
    #: When this held: a lease that was granted later is not in it and has not ended.
    at: Time = 0.0
    mode: Mode
    grants: list[OrderedGrant] = Field(max_length=4096)
    #: Not among these, and not of ended leases either.
    leaving: list[LeavingGrant] = Field(default_factory=list, max_length=4096)
    gpus: list[OrderedGpu] = Field(max_length=64)
    #: What lease tokens are checked with (Ed25519): one signs, the others may be upcoming or old.
    keys: list[PublicKey] = Field(min_length=1, max_length=8)
    #: The key that the link will have once the operator retires the one it has; empty: none.
    manager_key: KeyHex = ""
    #: For how long a node that does not hear of its manager opens sessions of leases, in seconds.
    offline_seconds: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    #: Of leases that ended lately; one may be missing here and has ended all the same.
    ended: list[EndedLease] = Field(default_factory=list, max_length=64)
    #: Of tenants that have leases here and budgets of their own.
    tenants: list[OrderedTenant] = Field(default_factory=list, max_length=4096)


class SendReport(Message):
    """The manager does not know what the node has, or took it for lost."""

    do: Literal["report"] = "report"


class RollKey(Message):
    """The node is to have another key in place of this one."""

    do: Literal["roll-key"] = "roll-key"
    key: PublicKey


class Orders(Message):
    """The answer to a report or a heartbeat."""

    protocol: Literal[2] = 2
    #: When to send the next heartbeat, in seconds.
    next_heartbeat: float = Field(gt=0, le=3600, allow_inf_nan=False)
    commands: list[Annotated[Apply | SendReport | RollKey, Field(discriminator="do")]] = Field(
        default_factory=list, max_length=8
    )


# The messages of the link --------------------------------------------------------------

Number = Annotated[int, Field(ge=0, lt=1 << 63)]


class Join(Message):
    """The first message of a node on every new connection."""

    do: Literal["join"] = "join"
    protocol: Literal[2] = 2
    number: Number
    node: Name
    token: Line
    report: Report
    #: Set by a node that knows the manager's next key: the answer must prove that it has it.
    challenge: KeyHex = ""


class Again(Message):
    """A later report."""

    do: Literal["report"] = "report"
    protocol: Literal[2] = 2
    number: Number
    report: Report


class Beat(Message):
    """A heartbeat."""

    do: Literal["heartbeat"] = "heartbeat"
    protocol: Literal[2] = 2
    number: Number
    heartbeat: Heartbeat


class Applied(Message):
    """The orders of this generation hold here. Is not answered."""

    do: Literal["applied"] = "applied"
    protocol: Literal[2] = 2
    number: Number = 0
    generation: Line
    keys: KeyIds = Field(default_factory=list)
    manager_key: KeyHex = ""
    #: What has come of the changes of limits that are in them.
    changes: GrantChanges = Field(default_factory=list)


class Rekey(Message):
    """By this key the node is known from now on; the connection was made with the one before."""

    do: Literal["rekey"] = "rekey"
    protocol: Literal[2] = 2
    number: Number
    key: PublicKey


class Leave(Message):
    """The last message: the server stops, and its sessions continue."""

    do: Literal["leave"] = "leave"
    protocol: Literal[2] = 2
    number: Number


class Told(Message):
    """Orders: the answer to the message ``number``, or (0) unasked."""

    do: Literal["orders"] = "orders"
    protocol: Literal[2] = 2
    number: Number
    now: Time
    orders: Orders
    #: The answer to the challenge of a join (link_proof.py).
    proof: KeyHex = ""


class Refused(Message):
    """The message ``number`` was not taken."""

    do: Literal["refused"] = "refused"
    protocol: Literal[2] = 2
    number: Number = 0
    #: "unknown-node" asks for a join; the others are those of the REST API's problems.
    code: Name
    message: str = Field(max_length=1024)


FromNode = Annotated[Join | Again | Beat | Applied | Rekey | Leave, Field(discriminator="do")]
FromManager = Annotated[Told | Refused, Field(discriminator="do")]

T = TypeVar("T")

_FROM_NODE: TypeAdapter[Join | Again | Beat | Applied | Rekey | Leave] = TypeAdapter(FromNode)
_FROM_MANAGER: TypeAdapter[Told | Refused] = TypeAdapter(FromManager)


class VersionError(ProtocolError):
    """The other side speaks another version of the protocol."""


def encode(message: Message) -> bytes:
    """The bytes of a message; ProtocolError if it is too large for one."""
    payload: bytes = msgpack.packb(message.model_dump(mode="python"), use_bin_type=True)
    if len(payload) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(payload)} bytes; at most {MAX_BYTES} are allowed")
    return payload


def decode_from_node(payload: bytes) -> Join | Again | Beat | Applied | Rekey | Leave:
    """What a node says; ProtocolError says in one line what is wrong with it."""
    return _decode(payload, _FROM_NODE)


def decode_from_manager(payload: bytes) -> Told | Refused:
    """What the manager says; ProtocolError says in one line what is wrong with it."""
    return _decode(payload, _FROM_MANAGER)


def _decode(payload: bytes, kind: TypeAdapter[T]) -> T:
    raw = _unpack(payload)
    _check_version(raw)
    try:
        return kind.validate_python(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        raise ProtocolError(one_line(f"{where}: {first['msg']}")[:300]) from None


def _unpack(payload: bytes) -> dict[Any, Any]:
    if len(payload) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(payload)} bytes; at most {MAX_BYTES} are allowed")
    try:
        raw = msgpack.unpackb(payload, raw=False)
    except (ValueError, msgpack.UnpackException, RecursionError, OverflowError):
        raise ProtocolError("this is not MessagePack") from None
    if not isinstance(raw, dict):
        raise ProtocolError("a message is a map")
    return raw


def _check_version(raw: dict[Any, Any]) -> None:
    spoken = raw.get("protocol")
    if type(spoken) is not int:
        raise ProtocolError("protocol: the version of the protocol is missing")
    if spoken != PROTOCOL:
        raise VersionError(
            f"the other side speaks protocol {spoken} of the link between manager and servers,"
            f" gpupool {__version__} speaks protocol {PROTOCOL}; install the same release on both"
        )
