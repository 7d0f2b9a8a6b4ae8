"""Leases whose programs do nothing: found, told so, and taken back where that is the policy.

A lease works while its nodes count GPU time for it, and when a session of it begins. What cannot be
seen passes for work: a node that is lost, and the time before this manager's start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpupool_common.lease import LeaseState
from gpupool_manager.ledger import Ledger
from gpupool_manager.records import Ending, IdleAction, Lease
from gpupool_manager.transaction import Transaction


@dataclass(frozen=True, slots=True)
class IdleRules:
    """What comes of idle leases, unless a tenant's quota says another thing."""

    action: IdleAction = "off"
    #: After so long without work a lease is idle.
    seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class Idleness:
    """What is known of a lease's work, and what comes of it."""

    since: float
    action: IdleAction
    seconds: float

    @property
    def at(self) -> float:
        """When it is idle, if it does nothing until then."""
        return self.since + self.seconds


class Idle:
    """Finds idle leases, warns them, and keeps those that work again."""

    def __init__(self, ledger: Ledger, rules: IdleRules) -> None:
        self._ledger = ledger
        self._rules = rules
        #: By lease: until when it had done nothing when it was told so.
        self._told: dict[str, float] = {
            lease.id: 0.0 for lease in ledger.ending.values() if _goes_idle(lease)
        }
        #: Before this none that has not been told can be idle.
        self._next = 0.0

    def of(self, lease: Lease, now: float) -> Idleness:
        """Since when a lease does nothing."""
        ledger, quota = self._ledger, self._ledger.quotas[lease.tenant]
        since = max(ledger.worked.get(lease.id, ledger.started), lease.granted or 0.0)
        nodes = {grant.node for grant in lease.present}
        if any(node not in ledger.nodes or ledger.nodes[node].lost for node in nodes):
            since = now
        seconds = self._rules.seconds if quota.idle_seconds is None else float(quota.idle_seconds)
        return Idleness(since, quota.idle_action or self._rules.action, seconds)

    def is_told(self, lease: Lease) -> bool:
        """Whether its programs hear that it is idle."""
        return lease.id in self._told

    def count(self, now: float) -> int:
        """How many leases are idle, whatever comes of it."""
        active = (lease for lease in self._ledger.leases.values() if lease.grants)
        return sum(self.of(lease, now).at <= now for lease in active)

    def look_again(self) -> None:
        """A quota is another one: leases may be idle sooner."""
        self._next = 0.0

    def any_due(self, now: float) -> bool:
        """Whether :meth:`review` has something to do."""
        if any(self._is_over(name, now) for name in self._told):
            return True
        return now >= self._next and bool(self._found(now))

    def review(self, transaction: Transaction) -> None:
        """Tell those that are idle now, and keep those that work again or may stay."""
        ledger, now = self._ledger, transaction.now
        for name in [name for name in self._told if self._is_over(name, now)]:
            del self._told[name]
            lease = ledger.leases.get(name)
            if lease is None or lease.state != LeaseState.ACTIVE:
                continue
            if _goes_idle(lease):
                ledger.announce(lease, None)
                transaction.put(lease)
            transaction.log("lease.kept", name, lease.tenant)
        for lease in self._found(now):
            self._tell(transaction, lease)

    def _tell(self, transaction: Transaction, lease: Lease) -> None:
        found = self.of(lease, transaction.now)
        self._told[lease.id] = found.since
        detail: dict[str, float] = {"since": found.since}
        if found.action == "reclaim" and lease.ending is None:
            at = transaction.now + self._ledger.queue.rules.grace
            reason = f"its programs have done nothing for {found.seconds:.0f} s"
            self._ledger.announce(lease, Ending(at, reason, cause="idle"))
            transaction.put(lease)
            detail["at"] = at
        transaction.log("lease.idle", lease.id, lease.tenant, **detail)

    def _is_over(self, name: str, now: float) -> bool:
        """Whether a lease that was told has ended, works, or is another policy's now."""
        lease = self._ledger.leases.get(name)
        if lease is None or lease.state != LeaseState.ACTIVE:
            return True
        found = self.of(lease, now)
        if found.since > self._told[name] or found.at > now:
            return True
        if found.action == "reclaim":
            return lease.ending is None  # what goes back for another reason hears of that
        return found.action == "off" or _goes_idle(lease)

    def _found(self, now: float) -> list[Lease]:
        """Those that are idle and were not told."""
        rules, quotas = self._rules, self._ledger.quotas.values()
        if rules.action == "off" and all(q.idle_action in (None, "off") for q in quotas):
            self._next = math.inf
            return []
        # Who is granted GPUs after this look cannot be idle before.
        least = min(
            (q.idle_seconds for q in quotas if q.idle_seconds is not None), default=rules.seconds
        )
        self._next, found = now + min(least, rules.seconds), list[Lease]()
        for lease in self._ledger.leases.values():
            if not lease.grants or lease.id in self._told:
                continue
            seen = self.of(lease, now)
            if seen.action == "off":
                continue
            if seen.at <= now:
                found.append(lease)
            else:
                self._next = min(self._next, seen.at)
        if found:
            self._next = now  # until they are told
        return found


def _goes_idle(lease: Lease) -> bool:
    """Whether it was warned because it is idle."""
    return lease.ending is not None and lease.ending.cause == "idle"
