"""Tenants with all of their groups: a session may have a group of its own, and end soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpupool_server.claims import tenant_of
from gpupool_server.watch_look import Look, SeenTenant, SeenWorker

#: The workers of each.
ByTenant = Mapping[str, Sequence[SeenWorker]]


def by_tenant(look: Look, *, joined: bool) -> ByTenant:
    """``joined``: each with those of all of its groups."""
    found: dict[str, list[SeenWorker]] = {}
    for worker in look.workers:
        name = tenant_of(worker.tenant) if joined else worker.tenant
        found.setdefault(name, []).append(worker)
    return found


def part_left(workers: ByTenant, tenant: str) -> float:
    """What the hardware's slices give work of a tenant that outlives its turns: its own slices of
    these and the least of another worker's, who may be alone at work. 0: it leaves none."""
    own = workers.get(tenant, ())
    if all(worker.unseen is False for worker in own):
        return 0.0
    others = [w.slice_us for name, each in workers.items() if name != tenant for w in each]
    mine = [worker.slice_us for worker in own]
    if 0 in mine or 0 in others:  # the driver's own, which are alike
        mine, others = [1] * len(mine), [1] * len(others)
    return sum(mine) / (sum(mine) + min(others, default=0))


class Groups:
    """Adds up what the groups of tenants had. Groups come and go; sums only grow."""

    def __init__(self) -> None:
        self._before: Mapping[str, SeenTenant] = {}
        #: Of tenants that are there.
        self._sums: Mapping[str, SeenTenant] = {}

    def join(self, look: Look) -> Look:
        """With its tenants in place of its accounts; workers keep the names of theirs."""
        workers = by_tenant(look, joined=True)
        sums: dict[str, SeenTenant] = {}
        for name, account in look.tenants.items():
            tenant, before = tenant_of(name), self._before.get(name, SeenTenant(0, 0))
            known = sums.get(tenant) or replace(
                self._sums.get(tenant, SeenTenant(0, 0)),
                beside=False,
                left=part_left(workers, tenant),
                outside_ns=look.outside_ns.get(tenant, 0),
            )
            sums[tenant] = replace(
                known,
                held_ns=_more(known.held_ns, account.held_ns, before.held_ns),
                busy_ns=_more(known.busy_ns, account.busy_ns, before.busy_ns),
                waited_ns=_more(known.waited_ns, account.waited_ns, before.waited_ns),
                beside=known.beside or account.beside,
            )
        self._before, self._sums = look.tenants, sums
        return replace(look, tenants=sums)


def _more(known: int | None, now: int | None, before: int | None) -> int:
    return (known or 0) + max(0, (now or 0) - (before or 0))


def fold(looks: Sequence[Look]) -> Look:
    """The last of these, in place of all: with what may be held against nobody at any of them."""
    tenants: dict[str, SeenTenant] = {}
    for look in looks:
        for name, tenant in look.tenants.items():
            known = tenants.get(name, tenant)
            beside, left = known.beside or tenant.beside, max(known.left, tenant.left)
            tenants[name] = replace(tenant, beside=beside, left=left)
    return replace(looks[-1], tenants=tenants)
