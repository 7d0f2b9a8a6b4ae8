"""What tenants owe for work that outlives their turns: how much more than their part they had.

Whose work goes on in others' turns is found there by a driver that looks at moments
(watch_turns.py), and pays with turns of its own: the arbiter charges it. Who has none to pay with,
or goes on all the same, owes more and more, and is ended. Nobody else has a debt, since nobody else
has more than the arbiter gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpupool_server.claims import tenant_of
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_samples import LONGEST_SECONDS
from gpupool_server.watch_settings import WatchSettings

#: A worker that was found at less is not the one to end; of a tenant that owes more than it may,
#: so many times as much, at so much less.
LEAST_NS = 5 * NS

#: Who owes so many times as much is not asked any more: none of its sessions would last so long.
ASKED_MOST = 2

#: So long it has to end its session once it was asked.
ASKED_NS = 3 * NS


class _Since:
    """What a look's accounts had since the one before: turns, and work or waits."""

    def __init__(self, before: Look, now: Look) -> None:
        self.ns = now.now_ns - before.now_ns
        self._now = now
        #: Whose workers are there: no other account has a part.
        self._here = {worker.tenant for worker in now.workers} & now.tenants.keys()
        self._held: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        for name, account in now.tenants.items():
            earlier = before.tenants.get(name, SeenTenant(0, 0))
            held = (account.held_ns or 0) - (earlier.held_ns or 0)
            wanted = account.busy_ns + account.waited_ns - earlier.busy_ns - earlier.waited_ns
            self._held[name], self._wanted[name] = max(0, held), max(0, wanted)

    def forgone(self, tenant: str) -> float:
        """Of its part, while others had work: nanoseconds in which it had no turn."""
        own = [name for name in self._here if tenant_of(name) == tenant]
        others = [name for name in self._wanted if name not in own and self._wanted[name]]
        contended = min(self.ns, sum(self._wanted[name] for name in others))
        due, of_all = self._due(own), self._due([*own, *others])
        most = sum(self._now.tenants[name].most for name in own) / 1000
        part = min(due / of_all if of_all else 1.0, most)  # an earlier arbiter does not say
        held = sum(self._held[name] for name in own)
        return max(0.0, contended * (part - held / self.ns))

    def _due(self, names: Iterable[str]) -> int:
        return sum(self._now.tenants[name].due for name in names)


class Debts:
    """Of one GPU's tenants, each with all of its groups."""

    def __init__(self, settings: WatchSettings, gpu: int) -> None:
        self._settings = settings
        self._gpu = gpu
        self._before: Look | None = None
        #: Nanoseconds of the GPU, by tenant.
        self.owed: dict[str, float] = {}
        self._forgiven_ns = 0
        #: When workers were asked to end their sessions, by pid.
        self._asked: dict[int, int] = {}

    def look(self, now: Look) -> list[Verdict]:
        """Whose debt is too large."""
        before, self._before = self._before, now if now.sample_ns and now.turns else None
        if not now.turns or (now.workers and not now.sample_ns):
            self.owed.clear()
        self._forgive(now.now_ns)
        if self._before is None or before is None or before.era != now.era:
            return []
        since = _Since(before, now)
        if since.ns <= 0:
            return []
        for tenant in {*self.owed, *now.left_ns}:
            self._count(tenant, since, now.left_ns.get(tenant, 0) - before.left_ns.get(tenant, 0))
        here = {worker.pid for worker in now.workers}
        self._asked = {pid: at for pid, at in self._asked.items() if pid in here}
        limit = self._settings.owed_seconds * NS
        late = {tenant: ns / limit for tenant, ns in self.owed.items() if limit and ns >= limit}
        return [v for tenant, times in late.items() for v in self._judge(tenant, times, now)]

    def _forgive(self, now_ns: int) -> None:
        """What is long ago, as all that is known of tenants is forgotten; also without workers."""
        kept = math.exp(min(0, self._forgiven_ns - now_ns) / (LONGEST_SECONDS * NS))
        self.owed = {tenant: owed * kept for tenant, owed in self.owed.items()}
        self._forgiven_ns = now_ns

    def _count(self, tenant: str, since: _Since, left: int) -> None:
        owed = self.owed.get(tenant, 0.0) + max(0, left) - since.forgone(tenant)
        if owed > 0:
            self.owed[tenant] = owed
        else:
            self.owed.pop(tenant, None)

    def _judge(self, tenant: str, times: float, now: Look) -> Iterable[Verdict]:
        """It owes so many times what it may."""
        found = [
            worker
            for worker in now.workers
            if tenant_of(worker.tenant) == tenant and worker.left_ns * times >= LEAST_NS
        ]
        worker = max(found, key=lambda each: each.left_ns, default=None)
        if worker is None:
            return
        asked = self._asked.setdefault(worker.pid, now.now_ns)
        liar = times >= ASKED_MOST or now.now_ns - asked >= ASKED_NS
        if liar or asked == now.now_ns:
            yield Verdict(worker.pid, worker.tenant, "time", self._reason(worker), liar)

    def _reason(self, worker: SeenWorker) -> str:
        owed = self.owed[tenant_of(worker.tenant)] / NS
        return (
            f"work of '{worker.tenant}' on GPU {self._gpu} went on in others' turns, so that it had"
            f" {owed:.0f} s more than its part: shorter kernels have turns of their own"
        )
