"""What the REST API takes and gives of reservations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field

from gpupool_common.node_protocol import Line
from gpupool_manager.schemas import PlacementRequestIn, PlacementRequestOut, TenantName, Whole


class ReservationIn(PlacementRequestIn):
    tenant: TenantName | None = Field(None, description="for admin tokens; else the token's own")
    start: AwareDatetime = Field(description="with its zone, e.g. 2027-01-15T08:00:00Z")
    seconds: Annotated[Whole, Field(ge=60, le=31 * 86400)]
    label: Line = ""


class ReservationOut(BaseModel):
    id: str = Field(description="also of the lease that it becomes")
    tenant: str
    request: PlacementRequestOut
    start: datetime
    end: datetime
    label: str
    created: datetime
    certain: bool = Field(description="whether there is room however long other leases last")
    reason: str = Field(description="why it is not certain")
