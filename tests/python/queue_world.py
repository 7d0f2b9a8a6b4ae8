"""The queue without a database: a ledger, its leases, and time that goes on when it is told to."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpupool_common.lease import LeaseState
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.idle import IdleRules
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.quotas import Use, excesses
from gpupool_manager.records import Gpu, Lease, Node, Quota, Reservation, Tenant
from gpupool_manager.reservations import Reclaims, Reservations
from gpupool_manager.resizes import Resizes
from gpupool_manager.store import Loaded
from gpupool_manager.transaction import Transaction
from gpupool_manager.waiting import OrderRules, Waiting

MEMORY = 10_000 * MIB
GRACE = 60.0


def loaded(nodes: int, gpus: int, quotas: list[Quota]) -> Loaded:
    """A pool of nodes with as many GPUs each, and tenants with these quotas."""
    names = [f"n{number}" for number in range(nodes)]
    return Loaded(
        tenants=[Tenant(quota.tenant, "", False, 0.0) for quota in quotas],
        quotas=quotas,
        tokens=[],
        nodes=[Node(name, "", "", {}, "open", False, "", 0.0, 0.0) for name in names],
        gpus=[
            Gpu(f"{n}-{i}", n, i, "NVIDIA H200", "9.0", MEMORY, "", True, "share", 20, 90)
            for n in names
            for i in range(gpus)
        ],
        leases=[],
        usage=[],
        answers=[],
    )


class QueueWorld:
    """What a manager decides, without whoever asks it."""

    def __init__(
        self,
        *quotas: Quota,
        nodes: int = 1,
        gpus: int = 4,
        order: OrderRules | None = None,
        patience: float = 60.0,
        idle: IdleRules | None = None,
        reclaims: Reclaims = "none",
    ) -> None:
        self.now = 1_000_000.0
        self._order = order or OrderRules(fair=True)
        self._patience = patience
        self._idle = idle
        self._reclaims = reclaims
        self._loaded = loaded(nodes, gpus, list(quotas))
        self._load()
        #: What the last change has told those who watch.
        self.events: list[str] = []

    def _load(self) -> None:
        self.ledger = Ledger(self._loaded, self.now, "e", self._order)
        self.leases = Leases(self.ledger, self._patience, 10_000, 1e9, idle=self._idle)
        self.reservations = Reservations(self.ledger, self.leases, self._reclaims)

    def restart(self) -> None:
        """Another manager begins with what this one has written down."""
        self._loaded.leases[:] = self.ledger.leases.values()
        self._loaded.reservations[:] = self.ledger.reservations.values()
        self._load()
        transaction = Transaction(self.now)
        self.leases.sweep(transaction)
        self._note(transaction)

    def resize(self, lease: Lease, **wanted: int) -> None:
        transaction = Transaction(self.now)
        Resizes(self.ledger, self.leases, Counter()).change(transaction, lease, wanted)
        self._note(transaction)

    def ask(self, tenant: str, gpus: int = 1, wait: float = 1e6, **more: Any) -> Lease:
        """A request for whole GPUs, unless ``part`` says how many thousandths of each."""
        part = more.pop("part", None)
        request = PlacementRequest(
            gpus,
            None if part is None else MEMORY * part // 1000,
            part or 1000,
            hosts=more.pop("hosts", "any"),
        )
        transaction = Transaction(self.now)
        asked = LeaseRequest(tenant, request, wait=wait, ttl=1e9, **more)
        lease = self.leases.admit(transaction, asked)
        self._note(transaction)
        return lease

    def reserve(
        self, tenant: str, gpus: int, after: float, seconds: float, part: int | None = None
    ) -> Reservation:
        """GPUs from so many seconds on."""
        memory = None if part is None else MEMORY * part // 1000
        request = PlacementRequest(gpus, memory, part or 1000)
        transaction = Transaction(self.now)
        made = self.reservations.make(transaction, tenant, request, self.now + after, seconds)
        self._note(transaction)
        return made

    def cancel(self, reservation: Reservation) -> None:
        transaction = Transaction(self.now)
        self.reservations.cancel(transaction, reservation.id)
        self._note(transaction)

    def end(self, lease: Lease) -> None:
        transaction = Transaction(self.now)
        self.leases.end(transaction, lease, LeaseState.RELEASED, "")
        self._note(transaction)

    def later(self, seconds: float) -> None:
        self.now += seconds
        transaction = Transaction(self.now)
        if self.leases.any_due(self.now):
            self.leases.sweep(transaction)
        if self.reservations.any_due(self.now):
            self.reservations.sweep(transaction)
        self._note(transaction)

    def pump(self) -> None:
        transaction = Transaction(self.now)
        self.leases.pump(transaction)
        self._note(transaction)

    def _note(self, transaction: Transaction) -> None:
        self.events = [event.kind for event in transaction.events]

    def waiting(self) -> list[Waiting]:
        return self.ledger.queue.in_order()

    def is_within(self, lease: Lease) -> bool:
        """Whether a request would be within its tenant's quota now."""
        asked = Use(lease.request.gpus, 0, lease.request.share_permille * lease.request.gpus, 1)
        quota = self.ledger.quotas[lease.tenant]
        return not excesses(quota, asked, self.ledger.guaranteed(lease.tenant), Use())
