"""The settings of what a server serves for Prometheus."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

from gpupool_common.ask import split_tcp
from gpupool_common.browser import HOST_NAMES_ALLOWED, HostNames
from gpupool_common.hosts import is_loopback


class MetricsSettings(BaseModel):
    """Where it listens, and by which names it may be asked."""

    metrics_listen: str = Field(
        "none",
        description="none, or http://ADDRESS:PORT with an address of this machine's"
        " loopback (127.0.0.1, [::1] or localhost)",
    )
    metrics_hosts: HostNames = Field((), description=HOST_NAMES_ALLOWED)

    @field_validator("metrics_listen")
    @classmethod
    def _check_metrics_listen(cls, value: str) -> str:
        if value != "none":
            if not value.startswith("http://"):
                raise ValueError("no such address")
            host, _ = split_tcp(value.replace("http://", "tcp://", 1).removesuffix("/"))
            if not is_loopback(host):
                raise ValueError("not on the loopback")
        return value
