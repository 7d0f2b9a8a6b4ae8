"""GPUs that their servers have put aside: nothing new is placed there, and tenants are told.

A server says it as a whole with each heartbeat, and is the one that knows: what an operator says
here goes to it as an order, and holds when it says it no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger
from gpupool_manager.records import Gpu
from gpupool_manager.transaction import Transaction


class SickGpus:
    """Every change of a GPU's health. Who calls must pump."""

    def __init__(self, ledger: Ledger, leases: Leases) -> None:
        self._ledger = ledger
        self._leases = leases
        #: By UUID: what the server said, and an operator says is over. Not kept over a restart:
        #: the server then says it again, and so has the operator to.
        self._opened: dict[str, str] = {}

    def opened(self, uuid: str) -> str:
        """What the server of a GPU is to forget of it."""
        return self._opened.get(uuid, "")

    def is_news(self, node: str, said: Mapping[str, str]) -> bool:
        """Whether a heartbeat says anything new of a node's GPUs."""
        return bool(self._changes(node, said))

    def take(self, transaction: Transaction, node: str, said: Mapping[str, str]) -> None:
        """All sick GPUs of a node, and why; the others are well."""
        for gpu, trouble in self._changes(node, said):
            if trouble:
                self._put_aside(transaction, gpu, trouble)
            else:
                self._opened.pop(gpu.uuid, None)
                if gpu.trouble:
                    self._readmit(transaction, gpu)

    def open(self, transaction: Transaction, gpu: Gpu) -> None:
        """An operator has looked after it. A second time changes nothing."""
        if gpu.trouble:
            self._opened[gpu.uuid] = gpu.trouble
            self._readmit(transaction, gpu)

    def _changes(self, node: str, said: Mapping[str, str]) -> list[tuple[Gpu, str]]:
        """The GPUs of a node of which something else is said than is known."""
        here = [self._ledger.gpus[uuid] for uuid in self._ledger.index.nodes.get(node, {})]
        return [
            (gpu, trouble)
            for gpu in here
            for trouble in (said.get(gpu.uuid, ""),)
            # A server that has not been told yet goes on saying it.
            if trouble != (gpu.trouble or self.opened(gpu.uuid))
        ]

    def _put_aside(self, transaction: Transaction, gpu: Gpu, trouble: str) -> None:
        self._opened.pop(gpu.uuid, None)
        self._set(transaction, gpu, trouble)
        transaction.log("gpu.aside", gpu.uuid, node=gpu.node, reason=trouble)
        ledger = self._ledger
        unconfirmed = set(ledger.unconfirmed.get(gpu.node, ()))
        for name in sorted(ledger.leases_on[gpu.node]):
            lease = ledger.leases[name]
            if all(grant.gpu != gpu.uuid for grant in lease.grants):
                continue
            if name in unconfirmed:  # its tenant has not seen it yet
                self._leases.move(transaction, lease, f"a GPU of it was put aside: {trouble}")
            else:
                transaction.log(
                    "lease.gpu-aside",
                    lease.id,
                    lease.tenant,
                    gpu=gpu.uuid,
                    node=gpu.node,
                    reason=trouble,
                )

    def _readmit(self, transaction: Transaction, gpu: Gpu) -> None:
        self._set(transaction, gpu, "")
        transaction.log("gpu.well", gpu.uuid, node=gpu.node)

    def _set(self, transaction: Transaction, gpu: Gpu, trouble: str) -> None:
        gpu.trouble = trouble
        gpu.version += 1
        transaction.put(gpu)
        self._ledger.index.close(gpu.uuid, self._ledger.why_closed(gpu))
        self._ledger.touch(gpu.node)
