"""What a server and the manager say to each other, whatever carries it.

A server *reports* what it has when it joins, after its own restart, and whenever its
GPUs have changed; between that it sends *heartbeats*. The answer to both is *orders*.
The orders that matter are not steps but the whole state that the server should have
(``apply``), under a generation: a server that has applied this generation is not sent
it again, one that has another is sent all of it. So nothing is lost when either side
restarts, and nothing needs to be acknowledged.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

PROTOCOL = 1

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
#: One line of text.
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=256)]
Capability = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$")]
Labels = Annotated[dict[Name, Line], Field(max_length=64)]
GpuPolicy = Literal["share", "average", "preemptive", "weighted", "fixed", "weak", "native"]


class Message(BaseModel):
    """What both sides refuse: fields that the protocol does not have."""

    model_config = ConfigDict(extra="forbid")


class ReportedGpu(Message):
    """One GPU of the node."""

    uuid: Name
    index: int = Field(ge=0, le=63)
    model: Annotated[Line, Field(min_length=1)]
    compute_capability: Capability
    memory_mib: int = Field(ge=1, le=1 << 30)
    pci: Annotated[Line, Field(max_length=32)] = ""
    policy: GpuPolicy = "share"
    max_inst: int = Field(20, ge=1, le=25)
    prio_ratio: int = Field(90, ge=20, le=99)


class Report(Message):
    """What a node has: GPUs that are not in it are gone."""

    protocol: Literal[1] = 1
    address: Annotated[Line, Field(min_length=1)]
    server_version: Line
    labels: Labels = Field(default_factory=dict)
    gpus: list[ReportedGpu] = Field(max_length=64)


class ReportedSession(Message):
    """One client process on the node."""

    id: Name
    lease: Name
    program: Line = ""


class Heartbeat(Message):
    """The node is there, has applied these orders, and serves these sessions."""

    protocol: Literal[1] = 1
    applied: Line = ""
    sessions: list[ReportedSession] = Field(default_factory=list, max_length=4096)
    #: Leases whose last session on this node has ended since the last heartbeat.
    idle: list[Name] = Field(default_factory=list, max_length=4096)


class OrderedGrant(Message):
    """One virtual GPU that a tenant may use here."""

    lease: Name
    tenant: Name
    ordinal: int
    gpu: Name
    memory_mib: int
    share: int
    priority: int


class OrderedGpu(Message):
    """The settings of one GPU."""

    uuid: Name
    policy: GpuPolicy
    max_inst: int
    prio_ratio: int


class Apply(Message):
    """Everything that holds on the node now; a lease that is not in it has ended."""

    do: Literal["apply"] = "apply"
    generation: Line
    mode: Literal["open", "cordoned", "draining"]
    grants: list[OrderedGrant]
    gpus: list[OrderedGpu]


class SendReport(Message):
    """The manager does not know what the node has, or took it for lost."""

    do: Literal["report"] = "report"


class Orders(Message):
    """The answer to a report or a heartbeat."""

    protocol: Literal[1] = 1
    #: When to send the next heartbeat, in seconds.
    next_heartbeat: float
    commands: list[Annotated[Apply | SendReport, Field(discriminator="do")]] = []
