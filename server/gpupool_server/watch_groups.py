"""Tenants with all of their groups: a session may have a group of its own, and end soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpupool_server.claims import tenant_of
from gpupool_server.watch_look import Look, SeenTenant


class Groups:
    """Adds up what the groups of tenants had. Groups come and go; sums only grow."""

    def __init__(self) -> None:
        self._before: Mapping[str, SeenTenant] = {}
        #: Of tenants that are there.
        self._sums: Mapping[str, SeenTenant] = {}

    def join(self, look: Look) -> Look:
        """With its tenants in place of its accounts; workers keep the names of theirs."""
        sums: dict[str, SeenTenant] = {}
        for name, account in look.tenants.items():
            tenant, before = tenant_of(name), self._before.get(name, SeenTenant(0, 0))
            known = sums.get(tenant) or replace(
                self._sums.get(tenant, SeenTenant(0, 0)),
                beside=False,
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
    """The last of these, in place of all: with who might work beside others at any of them."""
    beside = {name for look in looks for name, each in look.tenants.items() if each.beside}
    tenants: dict[str, SeenTenant] = {}
    for look in looks:
        tenants.update(look.tenants)
    tenants = {name: replace(each, beside=name in beside) for name, each in tenants.items()}
    return replace(looks[-1], tenants=tenants)
