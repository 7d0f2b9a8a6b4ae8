"""What every side says about a lease in the same words."""

from __future__ import annotations

from enum import StrEnum


class LeaseState(StrEnum):
    """Where a lease is in its life. Only the first two are not an end."""

    QUEUED = "queued"
    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RECLAIMED = "reclaimed"


#: States in which a lease counts.
LIVE = (LeaseState.QUEUED, LeaseState.ACTIVE)


class LeaseEnd(StrEnum):
    """What ends a lease that is renewed for as long as it is wanted."""

    RELEASED = "released"
    LAST_SESSION = "last-session"
