"""The table [collectives] of the configuration: what leases over several hosts get for NCCL."""

from __future__ import annotations

from ipaddress import IPv6Network
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from gpupool_common.quantities import SizeSetting


def _link_network(value: IPv6Network) -> IPv6Network:
    """A part of the network for each lease on each host must fit, and be nobody's by chance."""
    if value.prefixlen != 64 or value.is_multicast or value.is_link_local or value.is_reserved:
        raise ValueError("no network of 64 bits")
    return value


def _not_loopback(value: str) -> str:
    if value == "lo":
        raise ValueError("each lease has its own")
    return value


_NAME = StringConstraints(pattern=r"^[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,14}$")
Interface = Annotated[str, _NAME, AfterValidator(_not_loopback)]
RdmaDevice = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
Network = Annotated[IPv6Network, AfterValidator(_link_network)]


class CollectivesSettings(BaseModel):
    """Which interfaces and devices of this host, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interfaces: dict[Interface, Network] = Field(
        default_factory=dict,
        max_length=8,
        description="a table of up to 8 interfaces of this host, each with an IPv6 network of 64"
        ' bits that is the same on all hosts, e.g. {eth1 = "fd00:67:70:1::/64"}',
    )
    kind: Literal["macvlan", "ipvlan"] = Field(
        "macvlan",
        description="macvlan (each lease has a MAC address of its own) or ipvlan (the interface's)",
    )
    rdma: tuple[RdmaDevice, ...] = Field(
        (),
        max_length=16,
        description='names of RDMA devices, e.g. ["mlx5_0"]; with interfaces only, by which their'
        " users find each other",
    )
    locked_memory: SizeSetting = Field(
        64 << 30, ge=1 << 20, le=1 << 50, description="a size from 1MiB to 1PiB, e.g. 64GiB"
    )

    @field_validator("rdma")
    @classmethod
    def _check_rdma(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and not info.data.get("interfaces"):
            raise ValueError("no interface")
        return value

    @property
    def chosen(self) -> bool:
        """Whether there is anything for leases."""
        return bool(self.interfaces)
