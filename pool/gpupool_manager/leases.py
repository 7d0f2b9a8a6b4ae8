"""Leases: asked for, granted or queued, renewed, ended. All in memory and at once."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpupool_common.lease import LeaseState
from gpupool_manager.backfill import Ahead, Backfill
from gpupool_manager.calendar import Calendar
from gpupool_manager.idle import Idle, IdleRules
from gpupool_manager.index import Kind
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.ledger import Ledger, least_use, request_of, within_quota
from gpupool_manager.lending import Lending
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.quotas import Use, check_priority, excesses, of_leases, over_quota, use_of
from gpupool_manager.records import Ending, Grant, Lease
from gpupool_manager.scheduler import NoRoom, Placement, could_ever
from gpupool_manager.transaction import Transaction
from gpupool_manager.waiting import Waiting

#: Why nothing is lent now; whose requests wait, other tenants may not know.
_NOT_LENT = "quota: beyond it is nothing to borrow while tenants within theirs wait"

_ONLY_CHECKS = "needed: another scheduler places the leases of this pool, and must name the GPUs"


@dataclass(frozen=True, slots=True)
class Chance:
    """What would come of a request now."""

    result: Placement | NoRoom
    #: Whether it is beyond the tenant's quota, and may borrow.
    over: bool = False
    #: Whether it is room that lacks, and not the quota.
    for_room: bool = True


class Leases:
    """Every change of a lease, and the queue."""

    def __init__(
        self,
        ledger: Ledger,
        patience: float,
        longest_queue: int,
        unasked: float,
        only_checks: bool = False,
        idle: IdleRules | None = None,
    ) -> None:
        self._ledger = ledger
        self.calendar = Calendar(ledger)
        self._lending = Lending(ledger, patience, self.calendar)
        self._backfill = Backfill(ledger, self.calendar)
        self.idle = Idle(ledger, idle or IdleRules())
        self._patience = patience
        self._longest_line = longest_queue
        self._unasked = unasked
        #: Another scheduler places: what names no GPUs is refused.
        self._only_checks = only_checks
        #: Requests that found no room since there was last more of it.
        self._failed: dict[tuple[PlacementRequest, float | None], str] = {}

    def admit(self, transaction: Transaction, asked: LeaseRequest) -> Lease:
        """Grant or queue; Problem, and nothing is changed, if neither is allowed."""
        self.check_named(asked.request)
        ledger = self._ledger
        tenant = ledger.tenants.get(asked.tenant)
        if tenant is None:
            raise not_found("tenant", asked.tenant)
        if tenant.disabled:
            raise Problem(403, "disabled", f"the tenant '{asked.tenant}' is disabled")
        quota = ledger.quotas[asked.tenant]
        check_priority(quota, asked.tenant, asked.priority)
        name = ledger.ids.make("lease", transaction.now)
        lease = self._draft(asked, name, transaction.now, transaction.actor.request_id)
        request = request_of(lease, quota)
        self._check_quota(lease, request)
        self.calendar.refresh(transaction.now)
        chance = self._try_now(transaction, lease, request)
        if isinstance(chance.result, Placement):
            self._grant(transaction, lease, chance.result, chance.over)
        elif (never := could_ever(ledger.index, request)) is not None:
            raise Problem(409, "impossible", never)
        else:
            self._queue(transaction, lease, request, chance, asked.wait)
            self._reclaim(transaction)
        return lease

    def check(self, asked: LeaseRequest, now: float) -> PlacementRequest:
        """What a quota makes of a request; Problem if :meth:`admit` would not allow it."""
        self.check_named(asked.request)
        quota = self._ledger.quotas.get(asked.tenant)
        if quota is None:
            raise not_found("tenant", asked.tenant)
        check_priority(quota, asked.tenant, asked.priority)
        lease = self._draft(asked, "", now, "")
        request = request_of(lease, quota)
        self._check_quota(lease, request)
        return within_quota(self._ledger, request, asked.tenant)

    def check_named(self, request: PlacementRequest) -> None:
        """Problem if another scheduler must choose the GPUs, and has not."""
        if self._only_checks and not request.uuids:
            raise bad_field("body.uuids", _ONLY_CHECKS)

    def _check_quota(self, lease: Lease, request: PlacementRequest) -> None:
        """Problem if a request is over its quota and may neither wait for it nor borrow."""
        ledger, tenant = self._ledger, lease.tenant
        quota, use = ledger.quotas[tenant], least_use(ledger, lease, request)
        found = excesses(quota, use, ledger.guaranteed(tenant), ledger.claimed(tenant))
        # Neither lets a tenant fill the queue.
        if lease.beyond == "wait":  # and one day it must be within
            found = excesses(quota, use, Use(), Use()) or of_leases(found)
        elif lease.beyond == "borrow" and quota.borrow:
            found = of_leases(found)
        if found:
            raise over_quota(tenant, found)

    @staticmethod
    def _draft(asked: LeaseRequest, name: str, now: float, request_id: str) -> Lease:
        return Lease(
            id=name,
            tenant=asked.tenant,
            state=LeaseState.QUEUED,
            request=asked.request,
            priority=asked.priority,
            ttl=asked.ttl,
            label=asked.label,
            until=asked.until,
            sessions=asked.sessions,
            ceiling_permille=asked.ceiling_permille,
            beyond=asked.beyond,
            time_limit=asked.time_limit,
            created=now,
            deadline=now + asked.wait,
            request_id=request_id,
        )

    def _try_now(self, transaction: Transaction, lease: Lease, request: PlacementRequest) -> Chance:
        """A newcomer's chance: like everybody's, behind those who have waited too long."""
        claimed = self._ledger.claimed(lease.tenant)
        if len(self._ledger.queue):
            reason = self.behind(lease, self._kinds(request, lease.tenant), transaction.now)
            if reason is not None:
                over, barred = self._standing(lease, request, claimed)
                return Chance(NoRoom(reason), over, not barred)
        return self._chance(lease, request, claimed, transaction.now)

    def _chance(
        self,
        lease: Lease,
        request: PlacementRequest,
        claimed: Use,
        now: float,
        lend: bool = True,
    ) -> Chance:
        """What can be given now: within the quota, or beyond it where nobody waits for it."""
        ledger, tenant = self._ledger, lease.tenant
        over, barred = self._standing(lease, request, claimed)
        if barred:
            return Chance(NoRoom(barred), for_room=False)
        if not over:
            within = within_quota(ledger, request, tenant)
            return Chance(self._place(within, lease.time_limit, now))
        if not lend or ledger.queue.wanted(ledger.index.kinds(request)):
            return Chance(NoRoom(_NOT_LENT), over=True)
        return Chance(self._place(request, lease.time_limit, now), over=True)

    def _standing(self, lease: Lease, request: PlacementRequest, claimed: Use) -> tuple[bool, str]:
        """Whether it would borrow, and why its tenant can have nothing; empty: it can."""
        ledger, tenant = self._ledger, lease.tenant
        if ledger.tenants[tenant].disabled:
            return False, "tenant: disabled"
        quota, use = ledger.quotas[tenant], least_use(ledger, lease, request)
        found = excesses(quota, use, ledger.guaranteed(tenant), claimed)
        over = bool(found) and lease.beyond == "borrow" and quota.borrow
        barred = of_leases(found) if over else found
        return over and not barred, "quota: " + "; ".join(map(str, barred)) if barred else ""

    def behind(self, lease: Lease, kinds: frozenset[Kind], now: float) -> str | None:
        """Why a lease may take none of these kinds now: somebody goes first; None: it may."""
        for blocker in self._ledger.queue.blockers(lease, kinds, now, self._patience):
            if not self._backfill.ends_before(lease, blocker, now):
                return _behind(blocker)
        return None

    def expected_start(self, lease: Lease, now: float) -> float | None:
        """When there is room for a request that waits for it, if nobody takes it; None: unknown."""
        waiting = self._ledger.queue.get(lease.id)
        if waiting is None or not waiting.group.for_room:
            return None
        return self._backfill.expected(waiting, now)

    def _place(
        self, request: PlacementRequest, limit: float | None, now: float
    ) -> Placement | NoRoom:
        if self._only_checks and not request.uuids:
            return NoRoom(_ONLY_CHECKS)
        reason = self._failed.get((request, limit))
        if reason is not None:
            return NoRoom(reason)
        result = self.calendar.place(request, now, limit)
        if isinstance(result, NoRoom):
            self._failed[request, limit] = result.reason
        return result

    def _kinds(self, request: PlacementRequest, tenant: str) -> frozenset[Kind]:
        return self._ledger.index.kinds(within_quota(self._ledger, request, tenant))

    def _queue(
        self,
        transaction: Transaction,
        lease: Lease,
        request: PlacementRequest,
        chance: Chance,
        wait: float,
    ) -> None:
        queue, result = self._ledger.queue, chance.result
        assert isinstance(result, NoRoom)
        reason = result.reason
        if wait <= 0:
            raise Problem(409, "full", reason, queue_length=len(queue))
        if len(queue) >= self._longest_line and not lease.reserved:
            raise Problem(503, "unavailable", f"{len(queue)} requests wait; the queue is full")
        lease.reason = reason
        queue.join(lease, request, reason, self._kinds(request, lease.tenant), transaction.now)
        group = queue[lease.id].group
        if len(group.members) == 1:
            group.over, group.for_room = chance.over, chance.for_room
        self._ledger.leases[lease.id] = lease
        self._ledger.count_queued(lease, use_of(lease))
        self._ledger.remind(self._waits_until(lease), lease.id)
        transaction.put(lease)
        transaction.log("lease.queued", lease.id, lease.tenant, reason=reason)

    def _grant(
        self, transaction: Transaction, lease: Lease, placement: Placement, borrowed: bool
    ) -> None:
        ledger = self._ledger
        before = [(slot.free_bytes, slot.free_permille) for slot in placement.slots]
        lease.grants = [
            Grant(
                lease.id,
                ordinal,
                slot.uuid,
                slot.node,
                lease.request.takes(slot.total_bytes),
                lease.request.share_permille,
            )
            for ordinal, slot in enumerate(placement.slots)
        ]
        for grant in lease.grants:
            ledger.index.take(grant.gpu, grant.memory_bytes, grant.share_permille)
            transaction.put(grant)
        lease.state = LeaseState.ACTIVE
        lease.reason = ""
        lease.borrowed = borrowed
        lease.granted = transaction.now
        if lease.reserved:  # it ends when that was said, however late it begins
            lease.time_limit = lease.deadline - transaction.now
        lease.expires = transaction.now + lease.ttl
        lease.placement = {
            "rule": placement.rule,
            "gpus": [
                {
                    "gpu": slot.uuid,
                    "node": slot.node,
                    "index": slot.index,
                    "free_bytes_before": memory,
                    "free_permille_before": share,
                    "free_bytes_after": slot.free_bytes,
                    "free_permille_after": slot.free_permille,
                }
                for slot, (memory, share) in zip(placement.slots, before, strict=True)
            ],
        }
        ledger.track(lease)
        self._backfill.grow()
        ledger.meter.change(
            lease.tenant, ledger.active[lease.tenant], transaction.now, new_leases=1
        )
        transaction.put(lease)
        gpus = [grant.gpu for grant in lease.grants]
        detail = {"gpus": gpus, "waited_seconds": round(transaction.now - lease.created, 3)}
        if borrowed:
            detail["borrowed"] = True
        transaction.log("lease.granted", lease.id, lease.tenant, **detail)

    def has_grown(self) -> None:
        """A lease was given more than it had."""
        self._backfill.grow()

    def renew(self, lease: Lease, now: float) -> None:
        """It lasts for another period from now. Not written down: see Ledger."""
        lease.expires = max(lease.expires or now, now + lease.ttl)

    def hear(self, lease: Lease, until: float) -> None:
        """Somebody asks for a queued lease, and listens until then."""
        waiting = self._ledger.queue.get(lease.id)
        if waiting is not None:
            waiting.heard = max(waiting.heard, until)

    def _waits_until(self, lease: Lease) -> float:
        """When a queued lease leaves the queue, if nobody asks for it any more."""
        waiting = self._ledger.queue.get(lease.id)
        heard = lease.created if waiting is None else waiting.heard
        if lease.reserved:
            return lease.deadline
        return min(lease.deadline, heard + self._unasked)

    def end(self, transaction: Transaction, lease: Lease, state: LeaseState, reason: str) -> None:
        """An active or a queued lease ends; who waits may get what it had."""
        self.finish(transaction, lease, state, reason)
        self.pump(transaction)

    def finish(
        self, transaction: Transaction, lease: Lease, state: LeaseState, reason: str
    ) -> None:
        """As :meth:`end`, for those who end several, or change more: they must pump."""
        ledger = self._ledger
        waited: dict[str, float] = {}
        if lease.state == LeaseState.QUEUED:
            waited["waited_seconds"] = round(transaction.now - lease.created, 3)
            ledger.queue.leave(lease)
            del ledger.leases[lease.id]
            ledger.count_queued(lease, use_of(lease), -1)
        else:
            ledger.untrack(lease, reason)
            self._backfill.forget()
            for grant in lease.grants:
                ledger.index.give(grant.gpu, grant.memory_bytes, grant.share_permille)
            ledger.meter.change(lease.tenant, ledger.active[lease.tenant], transaction.now)
        lease.state = state
        lease.reason = reason
        lease.ended = transaction.now
        lease.resize = lease.ending = None
        transaction.put(lease)
        transaction.log(f"lease.{state}", lease.id, lease.tenant, reason=reason, **waited)

    def begin(self, transaction: Transaction, lease: Lease) -> None:
        """A reservation's time has come: it waits before all others. Who calls must pump."""
        request = request_of(lease, self._ledger.quotas[lease.tenant])
        chance = Chance(NoRoom("its reservation begins now"))
        self._queue(transaction, lease, request, chance, lease.deadline - transaction.now)

    def move(self, transaction: Transaction, lease: Lease, why: str) -> None:
        """An active lease that its tenant has not seen yet goes elsewhere, or waits, or ends."""
        ledger = self._ledger
        ledger.untrack(lease, why)
        self._backfill.forget()
        for grant in lease.grants:
            ledger.index.give(grant.gpu, grant.memory_bytes, grant.share_permille)
            transaction.drop(grant)
        ledger.meter.change(lease.tenant, ledger.active[lease.tenant], transaction.now)
        lease.grants, lease.state, lease.granted, lease.expires = [], LeaseState.QUEUED, None, None
        lease.resize = lease.ending = None
        lease.borrowed = False
        request = request_of(lease, ledger.quotas[lease.tenant])
        transaction.log("lease.moved", lease.id, lease.tenant, reason=why)
        chance = self._try_now(transaction, lease, request)
        if isinstance(chance.result, Placement):
            self._grant(transaction, lease, chance.result, chance.over)
        elif lease.deadline > transaction.now:
            self._queue(transaction, lease, request, chance, lease.deadline - transaction.now)
        else:
            lease.state, lease.ended = LeaseState.LOST, transaction.now
            lease.reason = f"{why}, and elsewhere is no room: {chance.result.reason}"
            transaction.put(lease)
            transaction.log("lease.lost", lease.id, lease.tenant, reason=lease.reason)

    def pump(self, transaction: Transaction) -> None:
        """There may be more room, or more quota: let those go who fit now, in order."""
        self._failed.clear()
        self.calendar.review(transaction.now)
        self._backfill.forget()
        self._lending.cover(transaction)
        ahead = Ahead(self._backfill, transaction.now)
        over = False
        for waiting in self._ledger.queue.heads(transaction.now):
            group = waiting.group
            group.kinds = self._kinds(group.request, waiting.lease.tenant)
            blocker = ahead.blocker_of(waiting)
            if blocker is not None:
                group.reason = _behind(blocker)
                # It must not pass for one that waits for room, and so hold others back.
                group.over, barred = self._standing(waiting.lease, group.request, Use())
                group.for_room = not barred
                continue
            self._try_waiting(transaction, waiting, False)
            over = over or group.over
            if waiting.lease.state == LeaseState.QUEUED and self._is_late(transaction, waiting):
                ahead.add(waiting)
        # What is left when all have theirs is lent.
        for waiting in self._ledger.queue.heads(transaction.now) if over else ():
            if waiting.group.over:
                self._try_waiting(transaction, waiting, True)
        self._reclaim(transaction)

    def _reclaim(self, transaction: Transaction) -> None:
        if self._lending.reclaim(transaction):
            self._backfill.forget()  # others can begin at other times

    def _is_late(self, transaction: Transaction, waiting: Waiting) -> bool:
        group = waiting.group
        group.hopeful = True
        if not waiting.goes_first(group.kinds, transaction.now, self._patience):
            return False
        group.hopeful = could_ever(self._ledger.index, group.request, open_only=True) is None
        return group.hopeful

    def _try_waiting(self, transaction: Transaction, waiting: Waiting, lend: bool) -> None:
        ledger, lease, group = self._ledger, waiting.lease, waiting.group
        chance = self._chance(lease, group.request, Use(), transaction.now, lend)
        group.over, group.for_room = chance.over, chance.for_room
        if isinstance(chance.result, NoRoom):
            group.reason = chance.result.reason
            return
        ledger.queue.leave(lease)
        ledger.count_queued(lease, use_of(lease), -1)
        self._grant(transaction, lease, chance.result, chance.over)

    def rethink(self, tenant: str) -> None:
        """A tenant's quota has changed: so may what its requests can be given."""
        for waiting in list(self._ledger.queue):
            if waiting.lease.tenant == tenant:
                request = request_of(waiting.lease, self._ledger.quotas[tenant])
                self._ledger.queue.regroup(waiting.lease, request)

    def _lasts_until(self, transaction: Transaction, lease: Lease) -> float:
        """When an active lease is to be looked at next. Its programs hear of its end before."""
        warning = lease.time_end - self._ledger.queue.rules.grace
        if warning > transaction.now:
            return min(lease.expires or 0.0, warning)
        if lease.ending is None and lease.time_end > transaction.now:
            ending = Ending(lease.time_end, _time_is_over(lease), "expired", "time")
            self._ledger.announce(lease, ending)
            transaction.put(lease)
            transaction.log("lease.ending", lease.id, lease.tenant, at=ending.at)
        return min(lease.expires or 0.0, lease.time_end)

    def any_due(self, now: float) -> bool:
        """Whether :meth:`sweep` has something to do."""
        due, ending = self._ledger.due, self._ledger.ending
        over = bool(due and due[0][0] <= now or ending and any(_ended(ending, now)))
        return over or self.idle.any_due(now)

    def sweep(self, transaction: Transaction) -> None:
        """End what has expired, waited for too long, or done nothing."""
        self.idle.review(transaction)
        due, first, last = self._ledger.due, math.inf, list[Lease]()
        for over in list(_ended(self._ledger.ending, transaction.now)):
            assert over.ending is not None
            first = min(first, over.ending.at)
            self.finish(transaction, over, LeaseState(over.ending.state), over.ending.reason)
        while due and due[0][0] <= transaction.now:
            _, name = heapq.heappop(due)
            lease = self._ledger.leases.get(name)
            if lease is None:
                continue
            is_queued = lease.state == LeaseState.QUEUED
            until = self._waits_until(lease) if is_queued else self._lasts_until(transaction, lease)
            if until > transaction.now:
                self._ledger.remind(until, name)
            elif is_queued and until < lease.deadline:
                unasked = f"nobody asked for it for {self._unasked:.0f} s"
                self.finish(transaction, lease, LeaseState.TIMED_OUT, unasked)
            elif is_queued:
                last.append(lease)
            elif lease.time_end <= transaction.now:
                self.finish(transaction, lease, LeaseState.EXPIRED, _time_is_over(lease))
            else:
                unrenewed = f"not renewed for {lease.ttl:.0f} s"
                self.finish(transaction, lease, LeaseState.EXPIRED, unrenewed)
        # Who waits until the very moment in which GPUs come back gets them.
        if any(lease.deadline >= first for lease in last):
            self.pump(transaction)
        for lease in last:
            if lease.state == LeaseState.QUEUED:
                waited = f"no room within {lease.deadline - lease.created:.0f} s"
                self.finish(transaction, lease, LeaseState.TIMED_OUT, waited)
        self.pump(transaction)


def _time_is_over(lease: Lease) -> str:
    return f"its time limit of {lease.time_limit:.0f} s is over"


def _ended(ending: Mapping[str, Lease], now: float) -> Iterator[Lease]:
    """Those whose time to be given back has come."""
    return (lease for lease in ending.values() if lease.ending and lease.ending.at <= now)


def _behind(blocker: Waiting) -> str:
    # Other tenants read this: whose request it is, and which, they may not know.
    return f"a request at priority {blocker.lease.priority} has waited long and goes first"
