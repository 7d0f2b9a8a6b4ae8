"""Leases that give some of their GPUs back while their programs run.

Programs that begin from then on have the others. Those that run are told, and have until a time
to leave the GPUs that go; then their servers end what still has them. A GPU counts until its server
has said that nothing of the lease is there any more, so nothing is given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpupool_common.lease import LeaseState
from gpupool_common.node_protocol import GrantChange
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger
from gpupool_manager.problems import Problem
from gpupool_manager.quotas import use_of
from gpupool_manager.records import Grant, Lease
from gpupool_manager.transaction import Transaction


class Shrinking:
    """Fewer GPUs for leases."""

    def __init__(
        self,
        ledger: Ledger,
        leases: Leases,
        counts: Counter[str],
        seen: Callable[[Lease], set[str]],
    ) -> None:
        self._ledger = ledger
        #: Which of a lease's GPUs a session of it sees.
        self._seen = seen
        self._leases = leases
        self._counts = counts
        #: Of grants whose time is over: those whose servers were told so, by lease and GPU.
        self._over: set[tuple[str, str]] = set()

    # What is asked ---------------------------------------------------------------------

    def shrink(self, transaction: Transaction, lease: Lease, gpus: int) -> None:
        """An active lease keeps so many GPUs; Problem, and nothing is changed, if it may not.

        While some are still on their way back, another number brings those back that it keeps.
        """
        going = _chosen(lease, gpus, transaction.now, self._seen(lease))
        if going == {grant.gpu for grant in lease.leaving}:
            return
        at = transaction.now + self._ledger.queue.rules.grace
        kept = [grant.gpu for grant in lease.leaving if grant.gpu not in going]
        gone = [grant.gpu for grant in lease.staying if grant.gpu in going]
        for grant in lease.grants:
            if grant.gpu not in going:
                grant.leaves = None
            elif grant.leaves is None:
                grant.leaves = at
            transaction.put(grant)
        self._ask_for(lease, gpus)
        lease.version += 1
        self._ledger.said.pop(lease.id, None)
        self._ledger.leaves(lease)
        for node in {grant.node for grant in lease.grants}:
            self._ledger.touch(node)
        transaction.put(lease)
        if gone:
            transaction.log("lease.shrinking", lease.id, lease.tenant, gpus=gone, at=at)
        if kept:
            transaction.log("lease.kept", lease.id, lease.tenant, gpus=kept)
        self._counts["asked"] += 1
        self.settle(transaction, lease)

    @staticmethod
    def _ask_for(lease: Lease, gpus: int) -> None:
        named = tuple(grant.gpu for grant in lease.grants if grant.leaves is None)
        uuids = named if lease.request.uuids else ()
        lease.request = replace(lease.request, gpus=gpus, uuids=uuids)

    # What servers say ------------------------------------------------------------------

    def news(self, node: str, changes: Iterable[GrantChange]) -> list[GrantChange]:
        """Those that say what was not known; a node speaks of its own grants only."""
        return [each for each in changes if self._is_news(node, each)]

    def _is_news(self, node: str, said: GrantChange) -> bool:
        lease = self._ledger.leaving.get(said.lease)
        if lease is None or said.number != lease.version:
            return False
        here = any(grant.gpu == said.gpu and grant.node == node for grant in lease.leaving)
        known = self._ledger.said.get(lease.id, {})
        return here and known.get(said.gpu) != said.reason

    def hear(self, transaction: Transaction, node: str, changes: Iterable[GrantChange]) -> None:
        """A node says what still has GPUs that go back; no reason: nothing has."""
        for each in changes:
            if self._is_news(node, each):
                self._ledger.said.setdefault(each.lease, {})[each.gpu] = each.reason
                self.settle(transaction, self._ledger.leases[each.lease])

    def awaits(self, name: str, number: int) -> bool:
        """Whether a server that is there has said nothing of this change yet."""
        lease = self._ledger.leaving.get(name)
        if lease is None or lease.version != number:
            return False
        said, nodes = self._ledger.said.get(name, {}), self._ledger.nodes
        return any(g.gpu not in said and not nodes[g.node].lost for g in lease.leaving)

    def settle(self, transaction: Transaction, lease: Lease) -> None:
        """What nothing of the lease has any more is free."""
        gone = self._gone(lease)
        if gone:
            self._give(transaction, lease, gone)

    def _gone(self, lease: Lease) -> list[Grant]:
        said = self._ledger.said.get(lease.id, {})
        return [grant for grant in lease.leaving if grant.lost or said.get(grant.gpu) == ""]

    def _give(self, transaction: Transaction, lease: Lease, gone: list[Grant]) -> None:
        ledger, names = self._ledger, {grant.gpu for grant in gone}
        ledger.count_active(lease, use_of(lease), -1)
        for grant in lease.grants:
            transaction.drop(grant)
        lease.grants = [grant for grant in lease.grants if grant.gpu not in names]
        for grant in gone:
            ledger.index.give(grant.gpu, grant.memory_bytes, grant.share_permille)
            ledger.said.get(lease.id, {}).pop(grant.gpu, None)
            self._over.discard((lease.id, grant.gpu))
            grant.ordinal = -1  # what is still heard of it goes to no row
        for ordinal, grant in enumerate(lease.grants):
            grant.ordinal = ordinal
            transaction.put(grant)
        ledger.count_active(lease, use_of(lease))
        ledger.leaves(lease)
        for node in {grant.node for grant in gone}:
            ledger.settle_on(node, lease)
        ledger.meter.change(lease.tenant, ledger.active[lease.tenant], transaction.now)
        transaction.put(lease)
        transaction.log("lease.shrunk", lease.id, lease.tenant, gpus=sorted(names))
        if not lease.leaving:
            self._counts["made"] += 1
        if not lease.present:
            self._leases.finish(transaction, lease, LeaseState.LOST, "all its GPUs are gone")
        self._leases.pump(transaction)

    # Time ------------------------------------------------------------------------------

    def any_due(self, now: float) -> bool:
        """Whether :meth:`sweep` has something to do."""
        return any(self._late(lease, now) or self._gone(lease) for lease in self._all())

    def _all(self) -> Iterable[Lease]:
        return self._ledger.leaving.values()

    def _late(self, lease: Lease, now: float) -> list[Grant]:
        """Those whose time is over, and whose servers do not know that yet."""
        return [
            grant
            for grant in lease.leaving
            if is_over(grant, now) and (lease.id, grant.gpu) not in self._over
        ]

    def sweep(self, transaction: Transaction) -> None:
        """Servers end what has not left in time; GPUs that are gone themselves are waited for by
        nobody."""
        for lease in list(self._all()):
            for grant in self._late(lease, transaction.now):
                self._over.add((lease.id, grant.gpu))
                self._ledger.touch(grant.node)
            self.settle(transaction, lease)
        self._over = {each for each in self._over if each[0] in self._ledger.leaving}


def is_over(grant: Grant, now: float) -> bool:
    """Whether what still has a GPU that goes back is to be ended."""
    return grant.leaves is not None and grant.leaves <= now


def _chosen(lease: Lease, gpus: int, now: float, seen: set[str]) -> set[str]:
    """The GPUs that go: those that are gone anyhow, that are going, that no session sees, then the
    last; Problem says why none may."""
    if lease.state != LeaseState.ACTIVE:
        raise Problem(
            409, "impossible", "a lease that waits gets no other number of GPUs; ask anew"
        )
    if lease.change is not None:
        raise Problem(409, "in-use", "another change of it is under way; nothing goes meanwhile")
    if gpus > len(lease.grants):
        raise Problem(
            409, "in-use", "GPUs of it are just going back; ask for more when they have gone"
        )

    def order_of(grant: Grant) -> tuple[bool, bool, bool, int]:
        return not grant.lost, grant.leaves is None, grant.gpu in seen, -grant.ordinal

    order = sorted(lease.grants, key=order_of)
    going = {grant.gpu for grant in order[: len(order) - gpus]}
    if any(is_over(grant, now) and grant.gpu not in going for grant in lease.leaving):
        raise Problem(
            409, "in-use", "its time to keep them is over; ask for more when they are gone"
        )
    left = {grant.node for grant in lease.present if grant.gpu not in going}
    empty = sorted({grant.node for grant in lease.present} - left)
    if empty:
        raise Problem(
            409,
            "impossible",
            f"it would have nothing left on its host '{empty[0]}', which all its programs ask;"
            " keep one GPU on each, or release it and ask anew",
        )
    return going
