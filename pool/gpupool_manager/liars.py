"""Sessions that nodes have ended because their workers lied: events for who watches the pool.

A node says it until it is answered, and may itself be somebody else's: only what concerns its own
grants is taken, each session once, and not without end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpupool_common.node_protocol import MOST_LIARS, ReportedLiar
from gpupool_manager.busy import BusyTimes
from gpupool_manager.transaction import Transaction

#: Of one node so many are taken in that time.
_MOST, _SECONDS = MOST_LIARS, 60.0

#: So many sessions of a node are remembered as told.
_REMEMBERED = 1024


class Liars:
    """Which of them everybody has been told of."""

    def __init__(self, busy: BusyTimes) -> None:
        self._busy = busy
        self._told: dict[str, deque[tuple[str, float]]] = {}

    def news(self, node: str, said: Sequence[ReportedLiar], now: float) -> list[ReportedLiar]:
        """Those of its own leases that are new."""
        told = self._told.get(node, ())
        known = {session for session, _ in told}
        room = _MOST - sum(now - at < _SECONDS for _, at in told)
        once = {liar.session: liar for liar in said if liar.session not in known}
        own = [liar for liar in once.values() if self._tenant(node, liar) is not None]
        return own[: max(0, room)]

    def write(
        self, transaction: Transaction, node: str, news: Sequence[ReportedLiar], now: float
    ) -> None:
        """Into the audit log, and to who watches."""
        told = self._told.setdefault(node, deque(maxlen=_REMEMBERED))
        for liar in news:
            transaction.log(
                "session.liar",
                liar.session,
                self._tenant(node, liar),
                node=node,
                lease=liar.lease,
                gpu=liar.gpu,
                cause=liar.cause,
                reason=liar.reason,
            )
            told.append((liar.session, now))

    def _tenant(self, node: str, liar: ReportedLiar) -> str | None:
        return self._busy.tenant_of(node, liar.lease, liar.gpu)
