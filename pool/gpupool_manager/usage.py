"""What tenants have had over time: amounts multiplied by seconds, hour by hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager.quotas import Use
from gpupool_manager.records import Usage
from gpupool_manager.transaction import Transaction

HOUR = 3600


class Meter:
    """Integrates each tenant's use between its changes."""

    def __init__(self, loaded: Iterable[Usage] = ()) -> None:
        self._rows = {(row.tenant, row.hour): row for row in loaded}
        self._running: dict[str, tuple[Use, float]] = {}
        self._dirty: set[tuple[str, int]] = set()
        #: By tenant, since the start.
        self.busy_totals: defaultdict[str, float] = defaultdict(float)

    def start(self, tenant: str, use: Use, since: float) -> None:
        """Count this use from a time on: after a restart."""
        if not use.nothing:
            self._running[tenant] = (Use(use.gpus, use.memory_bytes, use.compute_permille), since)

    def change(self, tenant: str, use: Use, now: float, new_leases: int = 0) -> None:
        """A tenant's use is now this; what it was so far is written down."""
        before, since = self._running.pop(tenant, (Use(), now))
        self._count(tenant, before, since, now)
        self.start(tenant, use, now)
        if new_leases:
            self._row(tenant, int(now // HOUR)).leases += new_leases

    def busy(self, tenant: str, seconds: float, now: float) -> None:
        """GPUs were busy for a tenant, as their nodes have counted until now."""
        self._row(tenant, int(now // HOUR)).busy_seconds += seconds
        self.busy_totals[tenant] += seconds

    def flush(self, transaction: Transaction) -> None:
        """Write everything down until now."""
        for tenant, (use, _) in list(self._running.items()):
            self.change(tenant, use, transaction.now)
        for key in self._dirty:
            transaction.put(self._rows[key])
        self._dirty.clear()
        oldest = int(transaction.now // HOUR) - 1
        self._rows = {key: row for key, row in self._rows.items() if key[1] >= oldest}

    def _count(self, tenant: str, use: Use, since: float, until: float) -> None:
        while since < until:
            hour = int(since // HOUR)
            end = min(until, float((hour + 1) * HOUR))
            row = self._row(tenant, hour)
            row.gpu_seconds += use.gpus * (end - since)
            row.memory_byte_seconds += use.memory_bytes * (end - since)
            row.compute_seconds += use.compute_permille / WHOLE_GPU * (end - since)
            since = end

    def _row(self, tenant: str, hour: int) -> Usage:
        self._dirty.add((tenant, hour))
        return self._rows.setdefault((tenant, hour), Usage(tenant, hour))
