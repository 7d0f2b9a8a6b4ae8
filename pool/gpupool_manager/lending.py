"""What tenants borrow beyond their quotas, and how it comes back to those whose it is.

A quota is guaranteed: when a request within its tenant's quota waits for room, leases that are
borrowed are warned and then ended, as few as will do. What is reclaimed is chosen anew whenever
something changes, so a lease that is not needed any more is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gpupool_manager.calendar import Calendar
from gpupool_manager.index import Kind
from gpupool_manager.ledger import Ledger, least_use, within_quota
from gpupool_manager.making_room import make_room
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.quotas import Use, excesses, use_of
from gpupool_manager.records import Ending, Lease
from gpupool_manager.transaction import Transaction
from gpupool_manager.trial import Trial
from gpupool_manager.waiting import Group

#: For so many requests at once room is made; the others come when these have theirs.
_MOST_OWED = 16

#: What is said of a lease that is taken back; other tenants' names are not its business.
RECLAIMED = "it was borrowed beyond the quota, and a tenant within its own asks for the GPUs"


class Lending:
    """Decides what is still borrowed, and what is to be given back."""

    def __init__(self, ledger: Ledger, patience: float, calendar: Calendar) -> None:
        self._ledger = ledger
        self._calendar = calendar
        self._patience = patience

    def cover(self, transaction: Transaction) -> None:
        """What fits into its tenant's quota by now is not borrowed any more, oldest first."""
        ledger = self._ledger
        for lease in list(ledger.lent.values()):
            quota = ledger.quotas[lease.tenant]
            more = replace(use_of(lease), sessions=0)  # the lease itself counts already
            if excesses(quota, more, ledger.guaranteed(lease.tenant), Use()):
                continue
            ledger.mark(lease, False)
            if _is_reclaimed(lease):
                ledger.announce(lease, None)
            transaction.put(lease)
            transaction.log("lease.covered", lease.id, lease.tenant)

    def reclaim(self, transaction: Transaction) -> bool:
        """Warn those leases whose GPUs are owed to others, and no others; whether one ends at
        another time than before."""
        ledger, before = self._ledger, len(transaction.events)
        if not ledger.lent:
            return False
        needed = self._needed(transaction.now)
        for lease in list(ledger.lent.values()):
            if lease.id in needed and lease.ending is None:
                self._warn(transaction, lease)
            elif lease.id not in needed and _is_reclaimed(lease):
                ledger.announce(lease, None)
                transaction.put(lease)
                transaction.log("lease.kept", lease.id, lease.tenant)
        return len(transaction.events) > before

    def _needed(self, now: float) -> set[str]:
        """The leases that must end for those who wait within their quotas, as few as will do."""
        ledger, needed, tried = self._ledger, set[str](), 0
        lent = sorted(reversed(ledger.lent.values()), key=self._who_first)
        planned: dict[str, Use] = {}
        #: What nobody behind may take, since who waits for it has waited too long.
        held: list[frozenset[Kind]] = []
        reserved = self._calendar.held(now, math.inf)
        with Trial(ledger.index) as trial:
            for gpu, (memory, share) in reserved.items():
                trial.hold(gpu, memory, share)
            for waiting in ledger.queue.heads(now):
                group = waiting.group
                if group.over or not group.for_room or _is_held(held, group.kinds):
                    continue
                for request in self._owed(group, planned):
                    tried += 1
                    chosen = make_room(trial, ledger, lent, request)
                    if chosen is None:
                        if waiting.goes_first(group.kinds, now, self._patience):
                            held.append(group.holds_back)
                        break
                    needed |= {lease.id for lease in chosen.ended}
                    lent = [lease for lease in lent if lease.id not in needed]
                if tried >= _MOST_OWED:
                    break
        return needed

    def _who_first(self, lease: Lease) -> tuple[bool, float, float]:
        """Who is warned already; then of the tenant with the largest share, what began last."""
        return (lease.ending is None, -self._ledger.share(lease.tenant), -(lease.granted or 0.0))

    def _owed(self, group: Group, planned: dict[str, Use]) -> Iterator[PlacementRequest]:
        """What a group's requests may have within the quota, beside what is planned already."""
        ledger = self._ledger
        for lease in ledger.queue.members(group)[:_MOST_OWED]:
            asked = least_use(ledger, lease, group.request)
            have, use = ledger.guaranteed(lease.tenant), planned.setdefault(lease.tenant, Use())
            if excesses(ledger.quotas[lease.tenant], asked, have, use):
                return
            yield within_quota(ledger, group.request, lease.tenant)
            use.add(asked)

    def _warn(self, transaction: Transaction, lease: Lease) -> None:
        ending = Ending(transaction.now + self._ledger.queue.rules.grace, RECLAIMED)
        self._ledger.announce(lease, ending)
        transaction.put(lease)
        transaction.log("lease.reclaiming", lease.id, lease.tenant, at=ending.at, reason=RECLAIMED)


def _is_reclaimed(lease: Lease) -> bool:
    """Whether it was warned because others want its GPUs, and for no other reason."""
    return lease.ending is not None and lease.ending.cause == "lent"


def _is_held(held: list[frozenset[Kind]], kinds: frozenset[Kind]) -> bool:
    return any(not each.isdisjoint(kinds) for each in held)
