"""What a tenant asks for when it asks for a lease."""

from __future__ import annotations

from dataclasses import dataclass

from gpupool_common.lease import LeaseEnd
from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.records import Beyond


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a tenant asks for; checked by the API."""

    tenant: str
    request: PlacementRequest
    priority: int = 0
    #: How long to wait in the queue, in seconds; 0: not at all.
    wait: float = 0.0
    ttl: float = 60.0
    label: str = ""
    until: LeaseEnd = LeaseEnd.RELEASED
    #: Of each server at once; None: no limit.
    sessions: int | None = None
    ceiling_permille: int = WHOLE_GPU
    beyond: Beyond = "refuse"
    #: The lease ends after so many seconds, whoever renews it; None: it does not.
    time_limit: float | None = None
