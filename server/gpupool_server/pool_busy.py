"""For how long each lease has kept GPUs busy: counts that only grow, for the pool's manager.

A group's account on a board starts again whenever its first session comes, and the server's
own memory starts again with the server. What was counted before is kept: over sessions in
the GPU, over servers in RUN/pool.json.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpupool_common.node_protocol import BusyTime
from gpupool_server.gpus import Gpus, board_name

#: A lease, and the UUID of a GPU.
Key = tuple[str, str]

NS_PER_MS = 1_000_000


class BusyCounts:
    """The counts of all leases that are or were here lately, in nanoseconds."""

    def __init__(self, gpus: Gpus, saved: Mapping[Key, int]) -> None:
        self._gpus = gpus
        self.totals: dict[Key, int] = dict(saved)
        #: What the boards said when they were read last.
        self._read: dict[Key, int] = {}
        self._told: dict[Key, int] = {}

    def expect(self, tenants: Mapping[str, str]) -> None:
        """Keep counts for these leases, with their tenants, from their first session on."""
        for lease, tenant in tenants.items():
            for gpu in self._gpus:
                gpu.kept_busy_ns.setdefault(board_name(tenant, lease), 0)

    def read(self) -> list[BusyTime]:
        """Add what is new; what the manager has not been told of is the result."""
        for gpu in self._gpus:
            snapshot = gpu.snapshot() if gpu.kept_busy_ns else None
            if snapshot is None:
                continue
            now = {account.name: account.busy_ns for account in snapshot.tenants}
            for name, before in gpu.kept_busy_ns.items():
                key = (name.partition("/")[2], gpu.device.uuid)
                self._add(key, before + now.get(name, 0))
        return [
            BusyTime(lease=lease, gpu=gpu, busy_ms=total // NS_PER_MS)
            for (lease, gpu), total in sorted(self.totals.items())
            if total // NS_PER_MS != self._told.get((lease, gpu), 0)
        ]

    def _add(self, key: Key, seen: int) -> None:
        last = self._read.get(key)
        if last is None and key in self.totals:
            last = seen  # of an earlier server: its last count had all but the latest of it
        self._read[key] = seen
        more = max(0, seen - (last or 0))
        if more:
            self.totals[key] = self.totals.get(key, 0) + more

    def keep(self, grants: Collection[Key], leases: Collection[str]) -> None:
        """These are what leases have: who gets a GPU again that it gave back starts at nothing."""
        for key in [key for key in self.totals if key[0] in leases and key not in grants]:
            if self.totals[key] // NS_PER_MS == self._told.get(key, 0):
                del self.totals[key]
                self._told.pop(key, None)

    def told(self, busy: Collection[BusyTime], leases: Collection[str]) -> None:
        """The manager has this now; what is of none of these leases is not needed any more."""
        for each in busy:
            self._told[each.lease, each.gpu] = each.busy_ms
        for table in (self.totals, self._read, self._told):
            for key in [key for key in table if key[0] not in leases]:
                del table[key]
        for gpu in self._gpus:
            for name in [n for n in gpu.kept_busy_ns if n.partition("/")[2] not in leases]:
                del gpu.kept_busy_ns[name]
