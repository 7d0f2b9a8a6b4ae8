"""Leases whose limits change while they are wanted.

What grows is counted at once, what shrinks once its servers have said that the programs there are
held to it. So a grant counts the larger of what it has and what it is to have while a change is
open, whatever ends meanwhile, and nothing is given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace

from gpupool_common.lease import LeaseState
from gpupool_common.node_protocol import GrantChange
from gpupool_common.sizes import WHOLE_GPU, format_part, format_size
from gpupool_manager.index import kind_of, one_of_a_kind
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger, request_of
from gpupool_manager.problems import Problem, bad_field
from gpupool_manager.quotas import Use, check_priority, excesses, over_quota, use_of
from gpupool_manager.records import Grant, Lease, Limits, Resize
from gpupool_manager.scheduler import could_ever
from gpupool_manager.transaction import Transaction

#: What a grant counts: memory and thousandths of compute.
Size = tuple[int, int]


class Resizes:
    """Every change of a lease's limits."""

    def __init__(self, ledger: Ledger, leases: Leases, counts: Counter[str]) -> None:
        self._ledger = ledger
        self._leases = leases
        #: How many changes were asked for, made, refused by servers; for metrics.
        self._counts = counts

    # What is asked ---------------------------------------------------------------------

    def change(
        self,
        transaction: Transaction,
        lease: Lease,
        wanted: Mapping[str, int],
        force: bool = False,
        with_numbers: bool = False,
    ) -> None:
        """A live lease has other limits from now on; Problem, and nothing is changed, if not.

        ``with_numbers``: who asks may know how much others have of its GPUs.
        """
        before = lease.limits
        after = replace(before, **wanted)
        known = lease.change
        if after == before and (known is None or known.force or not force):
            return
        self._check(lease, before, after)
        if lease.state == LeaseState.QUEUED:
            self._change_waiting(transaction, lease, after)
        else:
            self._change_active(transaction, lease, after, force, with_numbers)
        self._counts["asked"] += 1

    def _check(self, lease: Lease, before: Limits, after: Limits) -> None:
        if after.memory_bytes is None and after.share_permille != WHOLE_GPU:
            raise bad_field("body.memory_bytes", "needed with a share of less than 1000")
        if after.ceiling_permille < after.share_permille:
            raise bad_field(
                "body.ceiling_permille",
                f"{after.ceiling_permille} is less than the share, {after.share_permille}",
            )
        if after.priority > before.priority:
            check_priority(self._ledger.quotas[lease.tenant], lease.tenant, after.priority)

    def check_quota(self, lease: Lease, more: Use) -> None:
        """Problem if an active or a queued lease may not count so much more."""
        ledger, tenant = self._ledger, lease.tenant
        # What is borrowed may not grow beyond the quota.
        own = not lease.borrowed
        active = ledger.guaranteed(tenant) if own else ledger.use(ledger.active, tenant)
        queued = ledger.claimed(tenant)
        found = excesses(ledger.quotas[tenant], more, active, queued)
        # Who is over a quota that was lowered may keep what there is, and have less.
        if found := [excess for excess in found if excess.asked > 0]:
            raise over_quota(tenant, found)

    def _check_pending(self, changed: Lease, more: Use) -> None:
        """Of what may wait for its quota nothing counts, but one day it must be within."""
        quota = self._ledger.quotas[changed.tenant]
        if changed.beyond == "borrow" and quota.borrow:
            return
        found = excesses(quota, use_of(changed), Use(), Use())
        if found := [each for each in found if getattr(more, each.quantity) > 0]:
            raise over_quota(changed.tenant, found)

    def _change_waiting(self, transaction: Transaction, lease: Lease, after: Limits) -> None:
        """It keeps its place among those of its priority."""
        ledger = self._ledger
        changed = replace(lease)
        changed.limits = after
        more, less = use_of(changed), use_of(lease)
        more.add(less, -1)
        if lease.beyond == "refuse":
            self.check_quota(lease, more)
        else:
            self._check_pending(changed, more)
        request = request_of(changed, ledger.quotas[lease.tenant])
        if (never := could_ever(ledger.index, request)) is not None:
            raise Problem(409, "impossible", never)
        waiting = ledger.queue.get(lease.id)
        assert waiting is not None
        ledger.queue.leave(lease)
        lease.limits = after
        lease.version += 1
        kinds = ledger.index.kinds(request)
        ledger.queue.join(lease, request, waiting.reason, kinds, waiting.heard)
        ledger.count_queued(lease, more)
        transaction.put(lease)
        transaction.log("lease.changed", lease.id, lease.tenant, **asdict(after))
        self._leases.pump(transaction)

    def _change_active(
        self,
        transaction: Transaction,
        lease: Lease,
        after: Limits,
        force: bool,
        with_numbers: bool,
    ) -> None:
        if lease.leaving:
            raise Problem(
                409, "in-use", "GPUs of it are just going back; its limits can change afterwards"
            )
        target = replace(lease.request, memory_bytes=after.memory_bytes)
        sizes: dict[str, Size] = {}
        more = Use()
        for grant in lease.present:
            total = self._ledger.gpus[grant.gpu].memory_bytes
            memory = max(grant.memory_bytes, target.takes(total))
            share = max(grant.share_permille, after.share_permille)
            sizes[grant.gpu] = (memory, share)
            more.memory_bytes += memory - grant.memory_bytes
            more.compute_permille += share - grant.share_permille
        self.check_quota(lease, more)
        for grant in lease.present:
            self._check_room(grant, *sizes[grant.gpu], with_numbers)
        self._check_reserved(lease, sizes, transaction.now)
        self._check_turn(transaction, lease, sizes, after.priority)
        before = _kept(lease)
        self._resize(transaction, lease, sizes)
        self.begin(transaction, lease, after)
        lease.resize = Resize(lease.version, after, before, transaction.now, force)
        what = {**asdict(after), "force": force, "before": asdict(before)}
        transaction.log("lease.resizing", lease.id, lease.tenant, **what)
        self.settle(transaction, lease)

    def _check_room(self, grant: Grant, memory: int, share: int, with_numbers: bool) -> None:
        slot = self._ledger.index.slots[grant.gpu]
        where = f"device {grant.ordinal} of the lease, on node '{grant.node}',"
        more, part = memory - grant.memory_bytes, share - grant.share_permille
        if memory > slot.total_bytes:
            total = format_size(slot.total_bytes)
            raise Problem(
                409, "impossible", f"memory: {where} has {total}, asked {format_size(memory)}"
            )
        for what, shown, asked, free in (
            ("memory", format_size, more, slot.free_bytes),
            ("compute", format_part, part, slot.free_permille),
        ):
            if asked > free:
                has = f"has {shown(free)} free" if with_numbers else "has not so much free"
                raise Problem(409, "full", f"{what}: {where} {has}, asked {shown(asked)} more")

    def _check_reserved(self, lease: Lease, sizes: Mapping[str, Size], now: float) -> None:
        """It may last until a reservation begins, and must leave what that needs."""
        held = self._leases.calendar.held(now, lease.latest_end)
        for grant in lease.present:
            if grant.gpu not in held:
                continue
            slot, (memory, share) = self._ledger.index.slots[grant.gpu], sizes[grant.gpu]
            left = (slot.free_bytes - held[grant.gpu][0], slot.free_permille - held[grant.gpu][1])
            if memory - grant.memory_bytes > left[0] or share - grant.share_permille > left[1]:
                raise Problem(
                    409, "full", f"device {grant.ordinal} of the lease: what is free is reserved"
                )

    def _check_turn(
        self, transaction: Transaction, lease: Lease, sizes: Mapping[str, Size], priority: int
    ) -> None:
        """Who asks for more now comes behind those who have waited too long for it."""
        ledger = self._ledger
        grown = [
            grant.gpu
            for grant in lease.present
            if sizes[grant.gpu] != (grant.memory_bytes, grant.share_permille)
        ]
        if not grown:
            return
        kinds = frozenset(kind_of(ledger.index.slots[uuid]) for uuid in grown)
        name = ledger.ids.make("lease", transaction.now)
        newcomer = replace(lease, id=name, priority=priority, created=transaction.now)
        reason = self._leases.behind(newcomer, kinds | one_of_a_kind(grown), transaction.now)
        if reason is not None:
            raise Problem(409, "full", reason)

    def begin(self, transaction: Transaction, lease: Lease, limits: Limits) -> None:
        """Its servers are to be told these limits, under another number."""
        lease.limits = limits
        lease.version += 1
        self._ledger.said.pop(lease.id, None)
        for grant in lease.present:
            self._ledger.touch(grant.node)
        transaction.put(lease)

    def _resize(self, transaction: Transaction, lease: Lease, sizes: Mapping[str, Size]) -> None:
        """Let its grants count so much."""
        ledger = self._ledger
        before = use_of(lease)
        for grant in lease.present:
            memory, share = sizes[grant.gpu]
            ledger.index.resize(
                grant.gpu, memory - grant.memory_bytes, share - grant.share_permille
            )
            grant.memory_bytes, grant.share_permille = memory, share
            transaction.put(grant)
        ledger.count_active(lease, before, -1)
        ledger.count_active(lease, use_of(lease))
        ledger.meter.change(lease.tenant, ledger.active[lease.tenant], transaction.now)

    # What servers say ------------------------------------------------------------------

    def news(self, node: str, changes: Iterable[GrantChange]) -> list[GrantChange]:
        """Those that say what was not known; a node speaks of its own grants only."""
        found = []
        for each in changes:
            lease = self._ledger.leases.get(each.lease)
            if lease is None or lease.change is None or each.number != lease.version:
                continue
            here = any(g.gpu == each.gpu and g.node == node for g in lease.present)
            said = self._ledger.said.get(lease.id, {})
            if here and said.get(each.gpu) != each.reason:
                found.append(each)
        return found

    def hear(self, transaction: Transaction, node: str, changes: Iterable[GrantChange]) -> None:
        """A node has made changes, or cannot."""
        for each in changes:
            if not self.news(node, (each,)):
                continue  # another change came in between
            lease = self._ledger.leases[each.lease]
            if each.refused:
                self._undo(transaction, lease, f"node '{node}': {each.reason}")
            else:
                self._ledger.said.setdefault(lease.id, {})[each.gpu] = each.reason
                self.settle(transaction, lease)

    def _undo(self, transaction: Transaction, lease: Lease, why: str) -> None:
        """A server refuses: on all servers what was before holds again."""
        change = lease.change
        assert change is not None
        if change.refused:
            return  # what was before cannot be too little
        self._counts["refused"] += 1
        self.begin(transaction, lease, change.before)
        lease.resize = replace(change, refused=why, force=True)
        transaction.log("lease.resize-refused", lease.id, lease.tenant, reason=why)
        self.settle(transaction, lease)

    def settle(self, transaction: Transaction, lease: Lease) -> None:
        """If all its servers have made the change: what it has no more is free."""
        change = lease.change
        if change is None or lacking(self._ledger, lease):
            return
        self._resize(
            transaction, lease, {g.gpu: target(self._ledger, lease, g) for g in lease.present}
        )
        self._ledger.said.pop(lease.id, None)
        if change.refused:
            lease.resize = replace(change, open=False)
        else:
            self._counts["made"] += 1
            lease.resize = None
            transaction.log("lease.resized", lease.id, lease.tenant, **asdict(lease.limits))
        for grant in lease.present:
            self._ledger.touch(grant.node)
        transaction.put(lease)
        self._leases.pump(transaction)

    def sweep(self, transaction: Transaction) -> None:
        """GPUs that are gone hold no change up."""
        for lease in self.held_up_by_none():
            self.settle(transaction, lease)

    def held_up_by_none(self) -> list[Lease]:
        """Leases with a change that no server has still to make."""
        return [lease for lease in self.open if not lacking(self._ledger, lease)]

    @property
    def open(self) -> Iterator[Lease]:
        """Leases whose servers have not all made their change."""
        return (lease for lease in self._ledger.leases.values() if lease.change is not None)

    def awaits(self, name: str, number: int) -> bool:
        """Whether a server that is there has said nothing of this change yet."""
        lease = self._ledger.leases.get(name)
        if lease is None or lease.version != number or lease.change is None:
            return False
        said, nodes = self._ledger.said.get(name, {}), self._ledger.nodes
        return any(g.gpu not in said and not nodes[g.node].lost for g in lease.present)


def _kept(lease: Lease) -> Limits:
    """What holds again if a change is refused: of what was not made yet, the larger part."""
    now, change = lease.limits, lease.change
    if change is None:
        return now
    old = change.before
    memory = (
        None
        if now.memory_bytes is None or old.memory_bytes is None
        else max(now.memory_bytes, old.memory_bytes)
    )
    share = max(now.share_permille, old.share_permille)
    return Limits(memory, share, max(share, old.ceiling_permille), old.priority)


def target(ledger: Ledger, lease: Lease, grant: Grant) -> Size:
    """What a grant is to be; while a change is open it may count more."""
    if lease.change is None or grant.lost:
        return grant.memory_bytes, grant.share_permille
    total = ledger.gpus[grant.gpu].memory_bytes
    return lease.request.takes(total), lease.request.share_permille


def lacking(ledger: Ledger, lease: Lease) -> dict[str, str]:
    """By node, why it has not made the lease's change."""
    found: dict[str, str] = {}
    said = ledger.said.get(lease.id, {})
    for grant in lease.present if lease.change is not None else ():
        reason = said.get(grant.gpu)
        if reason == "":
            continue
        node = ledger.nodes[grant.node]
        found[grant.node] = reason or (
            f"it is lost: {node.trouble}" if node.lost else "it has not said that it has them"
        )
    return found
