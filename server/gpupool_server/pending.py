"""Sessions whose clients have not come yet.

Whoever has a token may ask for sessions and never come to them. Until their workers give
up they have places that others could use, so of one tenant only some may wait at once.
"""

from __future__ import annotations

from collections import Counter

from gpupool_server.budgets import State, state
from gpupool_server.claims import Refusal
from gpupool_server.tenants import Tenant

#: Of all sessions that there may be so many can wait for clients of one tenant.
SHARE, LEAST = 4, 4


class Pending:
    """Who waits, from the moment a session is begun until its client is in."""

    def __init__(self, max_sessions: int) -> None:
        self._most = max(LEAST, max_sessions // SHARE)
        self._tenants: dict[str, str] = {}
        self._refused: Counter[str] = Counter()

    def __contains__(self, session: str) -> bool:
        return session in self._tenants

    def check(self, tenant: Tenant) -> None:
        """Refusal if another session of the tenant would be one too many."""
        waiting, most = self._waiting(tenant.name), self.most_of(tenant)
        if waiting >= most:
            self._refused[tenant.name] += 1
            raise Refusal(
                "busy",
                f"{waiting} sessions of tenant '{tenant.name}' wait for their programs to connect,"
                f" and {most} may at once; try again in a few seconds",
            )

    def most_of(self, tenant: Tenant) -> int:
        return tenant.budgets.get("pending", self._most)

    def _waiting(self, tenant: str) -> int:
        return sum(name == tenant for name in self._tenants.values())

    def state(self, tenant: Tenant) -> State:
        """How many of a tenant wait, may wait, and were refused."""
        name = tenant.name
        return state(self._waiting(name), self.most_of(tenant), self._refused[name])

    def begin(self, session: str, tenant: str) -> None:
        """It is being opened."""
        self._tenants[session] = tenant

    def end(self, session: str) -> None:
        """Its client is in, or it has ended."""
        self._tenants.pop(session, None)
