"""What a tenant uses, and whether it may have more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpupool_common.sizes import format_part, format_size
from gpupool_manager.problems import Problem
from gpupool_manager.records import Lease, Quota

#: Amounts of the quantities as people read them.
QUANTITIES: dict[str, tuple[str, Callable[[int], str]]] = {
    "gpus": ("virtual GPUs", str),
    "memory_bytes": ("memory", format_size),
    "compute_permille": ("compute", format_part),
    "sessions": ("sessions", str),
}


@dataclass(slots=True)
class Use:
    """Amounts of everything that is counted."""

    gpus: int = 0
    memory_bytes: int = 0
    compute_permille: int = 0
    sessions: int = 0

    def add(self, other: Use, sign: int = 1) -> None:
        self.gpus += sign * other.gpus
        self.memory_bytes += sign * other.memory_bytes
        self.compute_permille += sign * other.compute_permille
        self.sessions += sign * other.sessions

    def less(self, other: Use) -> Use:
        """What is left of it without the other."""
        left = replace(self)
        left.add(other, -1)
        return left

    @property
    def nothing(self) -> bool:
        return self == Use()


def use_of(lease: Lease) -> Use:
    """What a lease counts as: what was granted, or what is known of what it waits for."""
    if lease.grants:
        return Use(
            len(lease.grants),
            sum(grant.memory_bytes for grant in lease.grants),
            sum(grant.share_permille for grant in lease.grants),
            1,
        )
    request = lease.request
    gpus = request.gpus
    return Use(gpus, gpus * (request.memory_bytes or 0), gpus * request.share_permille, 1)


@dataclass(frozen=True, slots=True)
class Excess:
    """One quantity of which there would be too much."""

    quantity: str
    asked: int
    in_use: int
    queued: int
    quota: int

    def __str__(self) -> str:
        name, shown = QUANTITIES[self.quantity]
        waiting = f" and {shown(self.queued)} queued" if self.queued else ""
        return (
            f"{name}: {shown(self.asked)} asked, {shown(self.in_use)} in use{waiting},"
            f" quota {shown(self.quota)}"
        )


def excesses(quota: Quota, asked: Use, active: Use, queued: Use) -> list[Excess]:
    """Every quantity that would go over the quota."""
    found: list[Excess] = []
    for quantity in QUANTITIES:
        limit: int | None = getattr(quota, quantity)
        more, have, wait = (getattr(use, quantity) for use in (asked, active, queued))
        if limit is not None and more + have + wait > limit:
            found.append(Excess(quantity, more, have, wait, limit))
    return found


def of_leases(found: list[Excess]) -> list[Excess]:
    """The excess of leases themselves, which are never lent."""
    return [excess for excess in found if excess.quantity == "sessions"]


def over_quota(tenant: str, found: list[Excess]) -> Problem:
    """403 with the numbers."""
    numbers: list[dict[str, Any]] = [asdict(excess) for excess in found]
    detail = f"tenant '{tenant}': " + "; ".join(map(str, found))
    return Problem(403, "over-quota", detail, limits=numbers)


def check_priority(quota: Quota, tenant: str, priority: int) -> None:
    """Problem with the numbers if the quota does not allow it."""
    if priority > quota.priority:
        raise Problem(
            403,
            "over-quota",
            f"tenant '{tenant}': priority {priority} asked, quota {quota.priority}",
            limits=[{"quantity": "priority", "asked": priority, "quota": quota.priority}],
        )
