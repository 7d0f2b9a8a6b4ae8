"""What the REST API takes and gives of keys."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, StrictBool

from gpupool_manager.schemas import In


class KeyRoll(In):
    revoke: StrictBool = Field(
        False, description="true: refuse what was signed so far, as after a theft"
    )


class KeyOut(BaseModel):
    id: str
    age: Literal["upcoming", "current", "old"] = Field(
        description="upcoming: nodes are told of it; current: it signs; old: what it has signed is"
        " good until it expires"
    )
    public: str = Field(description="Ed25519, in hexadecimal")
    made: datetime
    signs: datetime | None = Field(description="since when it signs")
    until: datetime | None = Field(description="when nodes forget it")
    without: list[str] = Field(description="nodes that have not said that they have it")


class LinkKeyRetire(In):
    force: bool = Field(
        default=False, description="also where nodes would need a new join token after that"
    )


class LinkKeyOut(BaseModel):
    current: str = Field(description="CURVE, public, in hexadecimal: what the link has")
    upcoming: str | None = Field(description="what it has once the current one is retired")
    without: list[str] = Field(description="nodes that have not said that they have the next one")
