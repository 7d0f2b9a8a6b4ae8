"""How a GPU does, as the REST API shows it."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ReadingOut(BaseModel):
    """As the last heartbeat of its node said; null: the node does not know."""

    busy_permille: int | None = Field(
        description="thousandths of the last second in which leases were at work on it"
    )
    temperature_celsius: int | None
    memory_used_bytes: int | None = Field(description="whoever uses it")
    memory_errors: int | None = Field(
        description="errors of its memory that were not corrected, since the driver was loaded"
    )
