"""What the REST API says of a change of a lease's limits."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class LimitsOut(BaseModel):
    memory_bytes: int | None
    share_permille: int
    ceiling_permille: int
    priority: int


class ResizeOut(BaseModel):
    state: Literal["pending", "refused"] = Field(
        description="pending: not all servers have said that it holds; refused: nothing has changed"
    )
    asked: LimitsOut
    since: datetime
    reason: str = Field(description="what it waits for, or why it was refused")
