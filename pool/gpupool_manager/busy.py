"""For how long leases keep GPUs busy: what nodes count, added up without gaps or doubles.

A node says for each grant how long it was busy since its first session. What is new of that
goes to the tenant's usage, and the sum stays with the grant. Both are written down together,
so after a restart the difference is still what was not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpupool_common.node_protocol import BusyTime
from gpupool_manager.ledger import Ledger
from gpupool_manager.records import Grant, Lease
from gpupool_manager.transaction import Transaction


class BusyTimes:
    """Knows the grants whose busy time may still come, those of ended leases too."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._expected: dict[tuple[str, str], tuple[str, Grant]] = {}
        self._changed: dict[tuple[str, str], Grant] = {}
        #: Ended leases at the last flush; what comes for them after another one is too late.
        self._ended: set[tuple[str, str]] = set()

    def expect(self, leases: Iterable[Lease]) -> None:
        """A node has these leases in its orders, so it will report on them."""
        for lease in leases:
            for grant in lease.grants:
                self._expected[lease.id, grant.gpu] = (lease.tenant, grant)

    def tenant_of(self, node: str, lease: str, gpu: str) -> str | None:
        """Whose grant a node speaks of; None if it has no such grant, and had none lately."""
        tenant, grant = self._expected.get((lease, gpu), ("", None))
        return tenant if grant is not None and grant.node == node else None

    def count(self, node: str, said: BusyTime, now: float) -> None:
        """What a node has counted; of grants that it does not have it has nothing to say."""
        tenant, grant = self._expected.get((said.lease, said.gpu), ("", None))
        if grant is None or grant.node != node or said.busy_ms == grant.busy_ms:
            return
        if said.busy_ms > grant.busy_ms:
            self._ledger.meter.busy(tenant, (said.busy_ms - grant.busy_ms) / 1000, now)
            self._ledger.works(said.lease, now)
        # Less than before: the node has lost its count and continues from here.
        grant.busy_ms = said.busy_ms
        self._changed[grant.lease, grant.gpu] = grant

    def flush(self, transaction: Transaction) -> None:
        """Write the sums down; the usage that they went into is written in the same transaction."""
        for grant in self._changed.values():
            if grant.ordinal >= 0:  # else its lease has given it back, and has no row of it
                transaction.put(grant)
        self._changed.clear()
        ended = {key for key in self._expected if key[0] not in self._ledger.leases}
        for key in ended & self._ended:
            del self._expected[key]
        self._ended = ended
