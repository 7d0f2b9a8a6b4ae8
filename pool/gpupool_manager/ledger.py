"""The state of the pool in memory: what the database has, arranged for fast answers.

Only operations of the commands (command_queue.py) change it, one at a time, and write what they
change into their transaction.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from gpupool_common.lease import LeaseState
from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager.answers import Answers
from gpupool_manager.ids import Ids
from gpupool_manager.index import Index
from gpupool_manager.placement_request import PlacementRequest, Slot, parse_capability
from gpupool_manager.quotas import Use, use_of
from gpupool_manager.records import (
    Admission,
    Ending,
    Gpu,
    Lease,
    Node,
    Quota,
    Reservation,
    Tenant,
    Token,
)
from gpupool_manager.store import COUNTED, Loaded
from gpupool_manager.tokens import TokenBook
from gpupool_manager.usage import Meter
from gpupool_manager.waiting import LeaseQueue, OrderRules

#: Of so many leases that ended on a node the reason is kept: an order has room for them.
ENDED_TOLD = 64


class Ledger:
    """Tenants, nodes, leases and what follows from them."""

    def __init__(
        self, loaded: Loaded, now: float, epoch: str, order: OrderRules | None = None
    ) -> None:
        named = (loaded.leases, loaded.tokens, loaded.reservations)
        self.ids = Ids(name for rows in named for name in map(_id, rows))
        self.epoch = epoch
        self.index = Index()
        self.queue = LeaseQueue(order or OrderRules(), self.share)
        self.tokens = TokenBook()
        self.tenants: dict[str, Tenant] = {tenant.name: tenant for tenant in loaded.tenants}
        self.quotas: dict[str, Quota] = {quota.tenant: quota for quota in loaded.quotas}
        self.nodes: dict[str, Node] = {node.name: node for node in loaded.nodes}
        self.admissions: dict[str, Admission] = {each.node: each for each in loaded.admissions}
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in loaded.gpus}
        self.leases: dict[str, Lease] = {}
        #: Those that have not begun, by id.
        self.reservations = {each.id: each for each in loaded.reservations}
        #: Leases that ended lately on each node, and why: what their users are told.
        self.ended_on: defaultdict[str, deque[tuple[str, str]]] = defaultdict(
            lambda: deque(maxlen=ENDED_TOLD)
        )
        self.leases_on: dict[str, set[str]] = {node.name: set() for node in loaded.nodes}
        self.active: dict[str, Use] = {}
        self.queued: dict[str, Use] = {}
        #: Leases beyond their tenants' quotas, and what they count.
        self.lent: dict[str, Lease] = {}
        self.borrowed: dict[str, Use] = {}
        #: When each lease last worked; since the start of counting of those that are not in it.
        self.worked: dict[str, float] = {}
        self.started = now
        #: Active leases that are to be given back.
        self.ending: dict[str, Lease] = {}
        #: Active leases some of whose GPUs go back while they go on.
        self.leaving: dict[str, Lease] = {}
        #: Counts what may spoil a plan, beside changes of the index: labels, and leases that last
        #: longer than was said.
        self.upsets = 0
        #: Of what is queued: what may wait for its quota, or borrow.
        self.pending: dict[str, Use] = {}
        self.answers = Answers(loaded.answers)
        self.meter = Meter(loaded.usage)
        #: Leases by the time when they are to be looked at: (time, lease).
        self.due: list[tuple[float, str]] = []
        self._generations: dict[str, int] = {}
        #: Whether nodes say which orders they have.
        self.confirming = False
        #: By node: leases that it has not said to have, with the orders that have them first,
        #: and since when (of the monotonic clock).
        self.unconfirmed: dict[str, dict[str, tuple[int, float]]] = {}
        #: By lease whose limits change, and GPU: empty, its server has made the change, or why not
        #: yet.
        self.said: dict[str, dict[str, str]] = {}
        #: Nodes whose orders have changed since whoever tells them last took this.
        self.touched: set[str] = {node.name for node in loaded.nodes}
        self._take(loaded, now)

    def _take(self, loaded: Loaded, now: float) -> None:
        """What follows from all that was loaded."""
        for token in loaded.tokens:
            self.tokens.add(token)
        for node in loaded.nodes:
            node.last_seen = now  # it had no chance to be seen while nobody looked
        for gpu in loaded.gpus:
            self.index.add(self.slot_of(gpu))
        for lease in loaded.leases:
            self._restore(lease, now)
        counted = float(loaded.notes.get(COUNTED, now))
        for tenant, use in self.active.items():
            self.meter.start(tenant, use, min(counted, now))

    def _restore(self, lease: Lease, now: float) -> None:
        if lease.state == LeaseState.ACTIVE:
            # Renewals are not written down, so each gets a whole period again.
            lease.expires = max(lease.expires or now, now + lease.ttl)
            if lease.ending is not None and lease.ending.state == "reclaimed":
                # Renewals tell of it, too: its programs may not have heard of it yet.
                at = max(lease.ending.at, now + self.queue.rules.grace)
                lease.ending = replace(lease.ending, at=at)
            for grant in lease.grants:
                if grant.leaves is not None:  # so with GPUs that go back
                    grant.leaves = max(grant.leaves, now + self.queue.rules.grace)
                self.index.take(grant.gpu, grant.memory_bytes, grant.share_permille)
            self.track(lease)
        else:
            self.leases[lease.id] = lease
            self.count_queued(lease, use_of(lease))
            request = request_of(lease, self.quotas[lease.tenant])
            # Whoever waits could not ask while there was no manager.
            self.queue.join(lease, request, lease.reason, self.index.kinds(request), now)
            self.remind(now, lease.id)

    # GPUs ------------------------------------------------------------------------------

    def slot_of(self, gpu: Gpu) -> Slot:
        """A GPU without its grants, as the scheduler sees it."""
        return Slot(
            uuid=gpu.uuid,
            node=gpu.node,
            index=gpu.number,
            model=gpu.model,
            capability=parse_capability(gpu.capability),
            total_bytes=gpu.memory_bytes,
            most=gpu.max_inst,
            labels=self.nodes[gpu.node].labels,
            driver=parse_capability(self.nodes[gpu.node].driver or "0.0"),
            closed=self.why_closed(gpu),
        )

    def why_closed(self, gpu: Gpu) -> str | None:
        """Why nothing new goes on a GPU."""
        node = self.nodes[gpu.node]
        if not gpu.present:
            return "gpu: its node does not report it any more"
        if node.lost:
            return f"node: it is lost: {node.trouble}" if node.trouble else "node: it is lost"
        if node.trouble:
            return f"node: it is put aside: {node.trouble}"
        if node.mode != "open":
            return f"node: it is {node.mode}"
        if gpu.trouble:
            return f"gpu: it is put aside: {gpu.trouble}"
        return None

    def refresh(self, node: str) -> None:
        """Labels or state of a node have changed."""
        self.upsets += 1
        for slot in list(self.index.nodes.get(node, {}).values()):
            slot.labels = self.nodes[node].labels
            slot.driver = parse_capability(self.nodes[node].driver or "0.0")
            self.index.close(slot.uuid, self.why_closed(self.gpus[slot.uuid]))
        self.touch(node)

    def generation(self, node: str) -> str:
        """Which orders are in force for a node; another one after every change."""
        return f"{self.epoch}-{self._generations.get(node, 0)}"

    def touch(self, node: str) -> None:
        self._generations[node] = self._generations.get(node, 0) + 1
        self.touched.add(node)

    def applied(self, node: str, generation: str) -> bool:
        """A node has these orders; whether some lease is confirmed by that."""
        waiting = self.unconfirmed.get(node)
        epoch, _, count = generation.rpartition("-")
        if not waiting or epoch != self.epoch or not count.isdecimal() or len(count) > 18:
            return False
        found = [lease for lease, (needed, _) in waiting.items() if needed <= int(count)]
        for lease in found:
            del waiting[lease]
        return bool(found)

    def is_confirmed(self, lease: Lease) -> bool:
        """Whether its servers know of it: before that it is of no use to its tenant."""
        return not any(lease.id in self.unconfirmed.get(g.node, ()) for g in lease.grants)

    # Leases ----------------------------------------------------------------------------

    def use(self, uses: dict[str, Use], tenant: str) -> Use:
        return uses.setdefault(tenant, Use())

    def count_queued(self, lease: Lease, use: Use, sign: int = 1) -> None:
        """So much more, or less, waits."""
        self.use(self.queued, lease.tenant).add(use, sign)
        if lease.beyond != "refuse":
            self.use(self.pending, lease.tenant).add(use, sign)

    def count_active(self, lease: Lease, use: Use, sign: int = 1) -> None:
        """So much more, or less, is in use."""
        self.use(self.active, lease.tenant).add(use, sign)
        self.queue.forget_order()
        if lease.borrowed:
            self.use(self.borrowed, lease.tenant).add(use, sign)

    def guaranteed(self, tenant: str) -> Use:
        """What a tenant has of its quota: without what it borrows."""
        return _own(self.use(self.active, tenant), self.use(self.borrowed, tenant))

    def claimed(self, tenant: str) -> Use:
        """What waits and counts against the quota already."""
        return _own(self.use(self.queued, tenant), self.use(self.pending, tenant))

    def share(self, tenant: str) -> float:
        """The part of the pool that a tenant has of what it has most of, by its weight."""
        use, total = self.active.get(tenant), self.index.total_bytes
        if use is None or not total:
            return 0.0
        compute = use.compute_permille / (WHOLE_GPU * len(self.index.slots))
        return max(use.memory_bytes / total, compute) / self.quotas[tenant].weight

    def mark(self, lease: Lease, borrowed: bool) -> None:
        """An active lease is beyond its tenant's quota from now on, or within."""
        use = use_of(lease)
        self.count_active(lease, use, -1)
        lease.borrowed = borrowed
        self.count_active(lease, use)
        if borrowed:
            self.lent[lease.id] = lease
        else:
            del self.lent[lease.id]

    def announce(self, lease: Lease, ending: Ending | None) -> None:
        """An active lease is to be given back, or is kept after all."""
        lease.ending = ending
        if ending is None:
            self.upsets += 1
            self.ending.pop(lease.id, None)
        else:
            self.ending[lease.id] = lease

    def works(self, lease: str, now: float) -> None:
        """Programs of an active lease do something."""
        if lease in self.leases:
            self.worked[lease] = now

    def track(self, lease: Lease) -> None:
        """An active lease: counted, found by its nodes, and looked at when it expires."""
        self.leases[lease.id] = lease
        self.count_active(lease, use_of(lease))
        if lease.borrowed:
            self.lent[lease.id] = lease
        for node in {grant.node for grant in lease.grants}:
            self.leases_on.setdefault(node, set()).add(lease.id)
            self.touch(node)
            if self.confirming:
                needed = (self._generations[node], time.monotonic())
                self.unconfirmed.setdefault(node, {})[lease.id] = needed
        self.remind(min(lease.expires or 0.0, lease.time_end - self.queue.rules.grace), lease.id)
        if lease.ending is not None:
            self.ending[lease.id] = lease
        self.leaves(lease)

    def leaves(self, lease: Lease) -> None:
        """Other GPUs of an active lease go back, or none."""
        if lease.leaving:
            self.leaving[lease.id] = lease
        else:
            self.leaving.pop(lease.id, None)

    def settle_on(self, node: str, lease: Lease) -> None:
        """An active lease has fewer GPUs on a node, or none."""
        if all(grant.node != node for grant in lease.grants):
            self.leases_on[node].discard(lease.id)
            self.unconfirmed.get(node, {}).pop(lease.id, None)
        self.touch(node)

    def untrack(self, lease: Lease, reason: str) -> None:
        del self.leases[lease.id]
        self.said.pop(lease.id, None)
        self.worked.pop(lease.id, None)
        self.count_active(lease, use_of(lease), -1)
        self.lent.pop(lease.id, None)
        self.ending.pop(lease.id, None)
        self.leaving.pop(lease.id, None)
        for node in {grant.node for grant in lease.grants}:
            self.leases_on[node].discard(lease.id)
            self.ended_on[node].append((lease.id, reason))
            self.unconfirmed.get(node, {}).pop(lease.id, None)
            self.touch(node)

    def remind(self, when: float, lease: str) -> None:
        heapq.heappush(self.due, (when, lease))

    def leases_of(self, tenant: str) -> Iterable[Lease]:
        return (lease for lease in self.leases.values() if lease.tenant == tenant)


def _own(all_of_it: Use, beyond: Use) -> Use:
    """What is within a quota. Leases themselves are not lent, so each of them counts."""
    return replace(all_of_it.less(beyond), sessions=all_of_it.sessions)


def _id(record: Lease | Token | Reservation) -> str:
    return record.id


def request_of(lease: Lease, quota: Quota) -> PlacementRequest:
    """The placement request of a lease, within what its quota allows."""
    models = None if quota.models is None else tuple(quota.models)
    return replace(lease.request, models=models)


def least_use(ledger: Ledger, lease: Lease, request: PlacementRequest) -> Use:
    """What a request would count as: of whole GPUs, as many of the smallest kind."""
    use = use_of(lease)
    if request.memory_bytes is None:
        use.memory_bytes = ledger.index.least_bytes(request)
    return use


def within_quota(ledger: Ledger, request: PlacementRequest, tenant: str) -> PlacementRequest:
    """Whole GPUs must not be larger than what the quota has left.

    Of those that are named the quota itself has the sizes.
    """
    limit = ledger.quotas[tenant].memory_bytes
    if request.memory_bytes is not None or request.uuids or limit is None:
        return request
    left = limit - ledger.guaranteed(tenant).memory_bytes
    return replace(request, memory_most=max(left, 0) // request.gpus)
