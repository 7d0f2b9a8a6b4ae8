"""Whether a worker takes more of a GPU than its tenant was granted: rules, without any clock.

What the driver says that processes have and do is compared with what the arbiter granted and
counted by its own clock. Nothing that a worker says of itself can make it look better here; but
where something is not known, or is what an honest worker does now and then, nobody is ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpupool_common.sizes import format_size
from gpupool_server.watch_debt import Debts
from gpupool_server.watch_look import NS, Look, SeenWorker, Verdict
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_time import TimeHistory, Times

#: Memory is given out in such pieces.
GRANULE = 2 << 20

#: So many looks in a row must find far too much memory: a module or a context that does not fit
#: is there for a moment, until its worker has taken it back.
LOOKS = 5

#: A worker that was asked to end its session has so long for it: honest ones do. One that has far
#: too much has less: its neighbours must have their memory again within a second.
ASKED_SECONDS, FAR_ASKED_SECONDS = 3, 0.3

#: How soon to look again meanwhile.
HURRY_SECONDS = 0.1

UNLIMITED = 1 << 62


@dataclass
class _Beyond:
    """A worker that has had too much memory."""

    #: Since when it has; None: it has not at the moment.
    since_ns: int | None = None
    #: How many looks in a row have found far too much.
    far: int = 0
    #: When it was asked to end its session.
    asked_ns: int | None = None


@dataclass(frozen=True)
class Own:
    """What the driver takes for a process by itself: while a context is made, and always."""

    context: int
    driver: int
    #: So many looks in a row must find more than ``context``, and who then was asked to end its
    #: session has so many seconds for it.
    looks: int = LOOKS
    asked_seconds: float = FAR_ASKED_SECONDS


def too_much_memory(look: Look, tenant: str, own: int) -> int:
    """Bytes that a tenant has beyond its limit and what may be the driver's; 0: none."""
    limit = look.tenants[tenant].limit
    held = [worker.held for worker in look.of(tenant) if worker.held]
    if not limit:
        return 0
    return max(0, sum(held) - limit - len(held) * (own + GRANULE))


def who_has_too_much(look: Look, tenant: str, own: int) -> list[SeenWorker]:
    """Of a tenant that has too much: who has more than it has said, or more than all may have.

    Workers that have said it all may be beyond the limit together once their arbiter was away.
    They get no more, and none of them has lied.
    """
    if not too_much_memory(look, tenant, own):
        return []
    limit = look.tenants[tenant].limit
    return [
        worker
        for worker in look.of(tenant)
        if (worker.held or 0) > min(worker.charged, limit) + own + GRANULE
    ]


class Kept:
    """What tenants may have whose limits were made less than they have in use: that, until they
    give it back. A worker's word for what it has gets it no more than the limit before."""

    def __init__(self) -> None:
        #: Bytes, by tenant, of the look before.
        self._before: dict[str, int] = {}

    def look(self, now: Look) -> Look:
        self._before = {name: self._allowed(now, name) for name in now.tenants}
        tenants = {
            name: replace(tenant, limit=self._before[name] if tenant.limit else 0)
            for name, tenant in now.tenants.items()
        }
        return replace(now, tenants=tenants)

    def _allowed(self, now: Look, name: str) -> int:
        tenant = now.tenants[name]
        if not tenant.limit:
            return UNLIMITED
        if not tenant.forced:
            return tenant.limit
        charged = sum(worker.charged for worker in now.of(name))
        before = self._before.get(name, tenant.before or UNLIMITED)
        return max(tenant.limit, min(charged, before))


class History:
    """One GPU over time: what lasts long enough to be held against somebody."""

    def __init__(self, settings: WatchSettings, own: Own, gpu: int) -> None:
        self._settings = settings
        self._own = own
        self._gpu = gpu
        #: By pid.
        self._beyond: dict[int, _Beyond] = {}
        self._kept = Kept()
        self._time = TimeHistory(settings, gpu)
        self._debts = Debts(settings, gpu)

    @property
    def times(self) -> dict[str, tuple[Times | None, str]]:
        """By tenant: what was found of its time at the last look, and why that is held against
        nobody."""
        return self._time.times

    @property
    def owed(self) -> dict[str, float]:
        """Nanoseconds of the GPU, by tenant, that it had beyond its part (watch_debt.py)."""
        return self._debts.owed

    @property
    def hurried(self) -> bool:
        """Whether to look again soon."""
        return any(beyond.far for beyond in self._beyond.values())

    def look(self, now: Look) -> list[Verdict]:
        """Who is to be ended now, each once."""
        found = [
            *self._look_at_memory(self._kept.look(now)),
            *self._time.look(now),
            *self._debts.look(now),
        ]
        once = {verdict.pid: verdict for verdict in reversed(found)}
        return list(once.values())

    def _look_at_memory(self, now: Look) -> Iterable[Verdict]:
        found = self._too_much(now, self._own.driver)
        far = self._too_much(now, self._own.context)
        here = {worker.pid for worker in now.workers}
        self._beyond = {pid: each for pid, each in self._beyond.items() if pid in here}
        for pid, beyond in self._beyond.items():
            if pid not in found:
                beyond.since_ns, beyond.far = None, 0
        for pid, worker in found.items():
            beyond = self._beyond.setdefault(pid, _Beyond())
            if self._lasts(beyond, now.now_ns, pid in far):
                yield from self._judge(beyond, now, worker)

    @staticmethod
    def _too_much(now: Look, own: int) -> dict[int, SeenWorker]:
        return {each.pid: each for name in now.tenants for each in who_has_too_much(now, name, own)}

    def _lasts(self, beyond: _Beyond, now_ns: int, far: bool) -> bool:
        if beyond.since_ns is None:
            beyond.since_ns = now_ns
        beyond.far = beyond.far + 1 if far else 0
        return (
            beyond.far >= self._own.looks
            or now_ns - beyond.since_ns >= self._settings.lasting_seconds * NS
        )

    def _judge(self, beyond: _Beyond, now: Look, worker: SeenWorker) -> Iterable[Verdict]:
        if beyond.asked_ns is None:
            beyond.asked_ns = now.now_ns
            held = sum(each.held or 0 for each in now.of(worker.tenant))
            mib = (held - now.tenants[worker.tenant].limit) >> 20
            reason = f"the driver took {mib} MiB beyond the limit of the session"
            yield Verdict(worker.pid, worker.tenant, "memory", reason, liar=False)
        elif now.now_ns - beyond.asked_ns >= self._time_to_end(beyond):
            yield Verdict(worker.pid, worker.tenant, "memory", self._memory_reason(now, worker))

    def _time_to_end(self, beyond: _Beyond) -> float:
        """Nanoseconds that it has from being asked."""
        is_far = beyond.far >= self._own.looks
        return (self._own.asked_seconds if is_far else ASKED_SECONDS) * NS

    def _memory_reason(self, now: Look, worker: SeenWorker) -> str:
        total = sum(each.held or 0 for each in now.of(worker.tenant))
        limit = now.tenants[worker.tenant].limit
        return (
            f"'{worker.tenant}' has {format_size(total)} of GPU {self._gpu}'s memory and may have"
            f" {format_size(limit)}; its worker {worker.pid} has {format_size(worker.held or 0)},"
            f" and has asked for {format_size(worker.charged)}"
        )
