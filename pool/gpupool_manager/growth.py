"""Leases that get another GPU of their host while their programs run.

Programs that are there keep the devices that they have seen; those that begin later see all of
them. As for other changes, the answer waits until the server has it (resizes.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpupool_common.lease import LeaseState
from gpupool_common.models import is_instance
from gpupool_manager.index import kind_of, one_of_a_kind
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger, request_of
from gpupool_manager.placement_request import PlacementRequest, Slot
from gpupool_manager.problems import Problem
from gpupool_manager.quotas import Use, use_of
from gpupool_manager.records import Grant, Lease, Resize
from gpupool_manager.resizes import Resizes
from gpupool_manager.scheduler import judge
from gpupool_manager.transaction import Transaction
from gpupool_manager.walks import cost


class Growth:
    """More GPUs for leases."""

    def __init__(
        self, ledger: Ledger, leases: Leases, resizes: Resizes, counts: Counter[str]
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._resizes = resizes
        self._counts = counts

    def grow(self, transaction: Transaction, lease: Lease, gpus: int) -> None:
        """An active lease has so many GPUs from now on; Problem, and nothing is changed, if not."""
        more = gpus - len(lease.grants)
        if lease.state == LeaseState.ACTIVE and more == 0:
            return
        self._leases.check_named(lease.request)
        node = _home(lease, more)
        # As a request for all of them: instances (MIG) go alone.
        request = replace(request_of(lease, self._ledger.quotas[lease.tenant]), gpus=gpus)
        slots = self._choose(lease, request, node, more, transaction.now)
        self._check(transaction, lease, request, slots)
        self._grant(transaction, lease, slots)
        self._resizes.begin(transaction, lease, lease.limits)
        lease.resize = Resize(lease.version, lease.limits, lease.limits, transaction.now)
        names = [slot.uuid for slot in slots]
        transaction.log("lease.grown", lease.id, lease.tenant, gpus=names)
        self._resizes.settle(transaction, lease)
        self._counts["asked"] += 1

    def _choose(
        self, lease: Lease, request: PlacementRequest, node: str, more: int, now: float
    ) -> list[Slot]:
        """Of its host, those that it has not (NCCL takes none twice) and that nobody has reserved
        for a time in which it may still be there."""
        index = self._ledger.index
        if is_instance(index.slots[lease.grants[0].gpu].model):
            raise Problem(409, "impossible", "of instances (MIG) a program has one alone")
        held = self._leases.calendar.held(now, lease.latest_end)
        own = {grant.gpu for grant in lease.grants}
        fit = [
            slot
            for slot in index.slots.values()
            if slot.node == node
            and slot.uuid not in own
            and judge(request, slot) is None
            and _left(request, slot, held.get(slot.uuid, (0, 0)))
        ]
        if len(fit) < more:
            raise Problem(
                409,
                "full",
                f"{more} more GPUs asked, and its host '{node}' has {len(fit)} others with"
                " room for it",
            )
        fit.sort(key=lambda slot: cost(index, request, slot))
        return fit[:more]

    def _check(
        self, transaction: Transaction, lease: Lease, request: PlacementRequest, slots: list[Slot]
    ) -> None:
        """Problem if it is over the quota, or others have waited too long for these GPUs."""
        memory = sum(request.takes(slot.total_bytes) for slot in slots)
        share = len(slots) * request.share_permille
        self._resizes.check_quota(lease, Use(len(slots), memory, share))
        kinds = frozenset(map(kind_of, slots)) | one_of_a_kind(slot.uuid for slot in slots)
        name = self._ledger.ids.make("lease", transaction.now)
        newcomer = replace(lease, id=name, created=transaction.now)
        reason = self._leases.behind(newcomer, kinds, transaction.now)
        if reason is not None:
            raise Problem(409, "full", reason)

    def _grant(self, transaction: Transaction, lease: Lease, slots: list[Slot]) -> None:
        ledger, request = self._ledger, lease.request
        ledger.count_active(lease, use_of(lease), -1)
        for slot in slots:
            memory, share = request.takes(slot.total_bytes), request.share_permille
            grant = Grant(lease.id, len(lease.grants), slot.uuid, slot.node, memory, share)
            ledger.index.take(slot.uuid, memory, share)
            lease.grants.append(grant)
            transaction.put(grant)
        lease.request = replace(request, gpus=len(lease.grants))
        ledger.count_active(lease, use_of(lease))
        ledger.meter.change(lease.tenant, ledger.active[lease.tenant], transaction.now)
        self._leases.has_grown()


def _left(request: PlacementRequest, slot: Slot, held: tuple[int, int]) -> bool:
    """Whether there is room beside what is reserved of it."""
    memory, share = slot.free_bytes - held[0], slot.free_permille - held[1]
    return request.takes(slot.total_bytes) <= memory and request.share_permille <= share


def _home(lease: Lease, more: int) -> str:
    """The host of a lease that may have more GPUs; Problem says why it may not."""
    if lease.state != LeaseState.ACTIVE:
        raise Problem(
            409, "impossible", "a lease that waits gets no other number of GPUs; ask anew"
        )
    if lease.change is not None or lease.leaving or lease.ending is not None:
        what = "another change of it is under way" if lease.ending is None else "it is ending"
        raise Problem(409, "in-use", f"{what}; nothing is added meanwhile")
    nodes = {grant.node for grant in lease.grants}
    apart = len(nodes) > 1 or lease.request.hosts == "spread"
    if lease.request.uuids or apart or len(lease.present) < len(lease.grants):
        raise Problem(
            409,
            "impossible",
            "only a lease on one host, not asked to be on several, all of whose GPUs are there and"
            " which named none, gets more",
        )
    return nodes.pop()
