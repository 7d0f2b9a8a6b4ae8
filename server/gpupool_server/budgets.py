"""What a session, and a tenant's sessions together, may take of this host: budgets by name.

Workers keep those of memory (server/worker/sharing/budget.c) and say how they stand; the
limits are the server's own. Log lines and sessions the server counts by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool_common.budgets import LEAST
from gpupool_common.sizes import format_size
from gpupool_server.claims import Refusal
from gpupool_server.config import Settings
from gpupool_server.tenants import Tenant

#: No count that is told may be larger: a worker may be taken over.
MOST = 1 << 63


@dataclass(frozen=True)
class Budget:
    """One of which each session gets its part when it begins."""

    name: str
    #: What it is counted in, and how an amount is written.
    words: str
    write: Callable[[int], str] = str
    #: The layer of the jail that holds it; empty: the worker, or the server, does.
    layer: str = ""
    #: Whether the worker says how it stands.
    told: bool = True

    @property
    def least(self) -> int:
        """What is left of a tenant's must be so much for another session to begin."""
        return LEAST[self.name]


ALLOTTED = (
    Budget("host_memory", "of this host's memory", format_size),
    Budget("pinned_memory", "of pinned memory", format_size),
    Budget("shares", "pieces of shared memory"),
    Budget("disk", "of disk", format_size, layer="root"),
    Budget("open_files", "open files", layer="rlimits"),
    Budget("log_lines", "lines in the server's log", told=False),
)

NO_LAYERS: Mapping[str, str] = {}

#: How one stands: its use, its limit (None: none), how often more was refused.
State = dict[str, int | None]


def state(used: int, limit: int | None, refused: int = 0) -> State:
    return {"used": used, "limit": limit, "refused": refused}


def is_full(of: State) -> bool:
    """Whether there is nothing left of it, but for what a file system keeps for itself."""
    return of["limit"] is not None and (of["used"] or 0) * 50 >= of["limit"] * 49


def check_lease(tenant: Tenant, running: Sequence[str | None]) -> None:
    """Who has found a lease's token gets no more of it than the lease has, or Refusal.

    ``running`` has the leases of all sessions that run or are being begun.
    """
    if tenant.lease is None or tenant.lease.sessions is None:
        return
    count, most = running.count(tenant.lease.lease), tenant.lease.sessions
    if count >= most:
        raise Refusal(
            "over-quota",
            f"the lease '{tenant.lease.lease}' has {count} of {most} sessions on this server; wait"
            " for one to end, or take a lease with more (--sessions)",
        )


def allot(
    settings: Settings, tenant: Tenant, given: Sequence[Mapping[str, int]], opening: int
) -> dict[str, int]:
    """What a new session gets; Refusal if too little is left of what its tenant may have.

    ``given`` is what the tenant's sessions have, ``opening`` how many more are being begun.
    """
    allotted = {}
    for budget in ALLOTTED:
        most: int = getattr(settings, f"session_{budget.name}")
        whole = tenant.budgets.get(budget.name)
        if whole is not None:
            taken = sum(each.get(budget.name, 0) for each in given) + most * opening
            if whole - taken < budget.least:
                raise Refusal(
                    "over-quota",
                    f"the sessions of tenant '{tenant.name}' may have {budget.write(whole)}"
                    f" {budget.words} and have been given {budget.write(taken)}; wait for one to"
                    " end",
                )
            most = min(most, whole - taken)
        allotted[budget.name] = most
    return allotted


def sessions_of(settings: Settings, tenant: Tenant, several: bool) -> int:
    """How many sessions the tenant may have at once.

    Where there are ``several`` tenants none takes all there are, unless its table says so.
    """
    if tenant.sessions is not None:
        return tenant.sessions
    if settings.tenant_sessions is not None:
        return settings.tenant_sessions
    return settings.max_sessions - (settings.max_sessions // 4 if several else 0)


def of_worker(allotted: Mapping[str, int]) -> dict[str, int]:
    """What a worker is told of what it was allotted."""
    return {each.name: allotted[each.name] for each in ALLOTTED if each.told}


def read(
    told: object, limits: Mapping[str, int], layers: Mapping[str, str] = NO_LAYERS
) -> dict[str, State]:
    """How a worker says that its budgets stand; what cannot be is left out.

    So is what a layer would hold that its jail does not have.
    """
    found = {}
    for budget in ALLOTTED:
        if not budget.told or budget.layer and layers.get(budget.layer) != "on":
            continue
        said = told.get(budget.name) if isinstance(told, dict) else None
        if isinstance(said, dict) and all(is_count(said.get(key)) for key in ("used", "refused")):
            limit = limits.get(budget.name) or None
            found[budget.name] = state(said["used"], limit, said["refused"])
    return found


def is_count(value: object) -> bool:
    """Whether a worker's word is a number that can be reckoned with."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def total(
    sessions: Iterable[Mapping[str, Any]], tenant: Tenant, ended: Mapping[str, int]
) -> dict[str, State]:
    """The sums of a tenant's sessions as ``Session.describe`` has them, and its limits.

    ``ended`` is what those were refused that have ended: it is a counter, and never falls.
    """
    used: Counter[str] = Counter()
    refused = Counter(ended)
    for session in sessions:
        for name, each in session["budgets"].items():
            used[name] += each["used"]
            refused[name] += each["refused"]
    return {name: state(used[name], tenant.budgets.get(name), refused[name]) for name in used}
