"""What the REST API says of the GPUs of a lease, and of the servers that have them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class GrantOut(BaseModel):
    ordinal: int
    gpu: str
    node: str
    address: str | None
    memory_bytes: int
    share_permille: int
    lost: bool
    aside: str | None = Field(description="why nothing new is placed on this GPU; null: it is well")
    leaves: datetime | None = Field(
        description="when it goes back while the lease goes on: save, and end; null: it stays"
    )
    draining: bool = Field(description="its node opens no sessions: save, end, and start again")
    busy_seconds: float = Field(description="how long its sessions have kept the GPU busy")


class ServerOut(BaseModel):
    node: str
    address: str
    key: str | None = Field(description="the CURVE key of its front end; null: in clear")
    devices: list[int] = Field(description="the ordinals of the lease that are there")
