"""How often tenants were refused more of a budget: counts that outlive their sessions."""

from __future__ import annotations

import resource
from collections import Counter, OrderedDict
from collections.abc import Mapping

from gpupool_server.claims import Refusal

#: Of so many tenants it is known; the longest ago is forgotten.
MOST_TENANTS = 4096


def no_descriptors(sessions: int) -> str:
    """What is said when there are none for another session."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the server has no file descriptors left for another session (limit {limit}, {sessions}"
        " sessions); raise its limit (ulimit -n, LimitNOFILE=) or wait for sessions to end"
    )


class TooManySessions(Refusal):
    """A tenant has all the sessions that it may have."""

    def __init__(self, tenant: str, running: int, most: int) -> None:
        super().__init__(
            "over-quota",
            f"tenant '{tenant}' has {running} of {most} sessions; wait for one to end",
        )


class Refusals:
    """By tenant and budget, what no running session counts by itself."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, Counter[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tenants)

    def add(self, tenant: str, refused: Mapping[str, int]) -> None:
        """So many more."""
        self._tenants.setdefault(tenant, Counter()).update(refused)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)

    def of(self, tenant: str) -> Mapping[str, int]:
        """What has been added; a budget that is not there was never refused."""
        return self._tenants.get(tenant, Counter())
