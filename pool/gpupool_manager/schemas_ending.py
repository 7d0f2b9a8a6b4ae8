"""What the REST API says of leases that go back before their tenants give them back."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from gpupool_manager.records import IdleAction


class EndingOut(BaseModel):
    """A lease is to be given back: save, end, and start again."""

    at: datetime
    reason: str


class IdlePolicyIn(BaseModel):
    """What of a quota is said of its idle leases."""

    idle_action: IdleAction | None = Field(
        None, description="what comes of leases that do nothing; null: as the manager's setting"
    )
    idle_seconds: Annotated[int, Field(ge=1, le=30 * 86400, strict=True)] | None = Field(
        None, description="how long they do nothing before that; null: as the manager's setting"
    )


class IdleOut(BaseModel):
    """Since when the programs of a lease have done nothing, and what comes of it."""

    since: datetime = Field(description="when it last had GPU time, or a session began")
    action: IdleAction = Field(description="what comes of it after `after_seconds`")
    after_seconds: float
    told: bool = Field(description="whether its programs hear of it")
