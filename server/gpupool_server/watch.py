"""Whether a worker takes more of a GPU than its tenant was granted: rules, without any clock.

What the driver says that processes have and do is compared with what the arbiter granted and
counted by its own clock. Nothing that a worker says of itself can make it look better here; but
where something is not known, or is what an honest worker does now and then, nobody is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpupool_common.node_protocol import Cause
from gpupool_common.sizes import format_size
from gpupool_server.watch_settings import WatchSettings

#: Memory is given out in such pieces.
GRANULE = 2 << 20

#: So many looks in a row must find far too much memory: a module or a context that does not fit
#: is there for a moment, until its worker has taken it back.
LOOKS = 5

#: A worker that was asked to end its session has so long for it: honest ones do. One that has far
#: too much has less: its neighbours must have their memory again within a second.
ASKED_SECONDS, FAR_ASKED_SECONDS = 3, 0.3

#: Looks that are further apart say nothing of time: a long kernel may fit between them.
APART_MS = 1250

#: How soon to look again meanwhile.
HURRY_SECONDS = 0.1

NS = 1_000_000_000


@dataclass(frozen=True)
class SeenWorker:
    """A worker at one moment; None is what cannot be seen."""

    pid: int
    tenant: str
    #: Bytes that the driver says it has, and that it has been charged.
    held: int | None
    charged: int
    #: GPU time that the driver says it has had since it was seen first.
    used_ns: int | None = None
    #: GPU time for which it was let in, or has said that it worked.
    busy_ns: int = 0
    #: Whether it is still at the work for which it lost its turn, as a long kernel is.
    late: bool = False
    #: How often it has lost its turn so.
    overdue: int = 0


@dataclass(frozen=True)
class SeenTenant:
    """A tenant or group at one moment, as the arbiter has it."""

    #: Bytes; 0: all that there is.
    limit: int
    #: For how long the turn was its own; None: the arbiter does not say.
    held_ns: int | None = None
    #: For how long it has worked, and has waited for its turn.
    demand_ns: int = 0
    #: It may run beside others, out of turn.
    beside: bool = False
    #: Its weight in turns; 0: the arbiter does not say. Its own are at most so many thousandths.
    parts: int = 0
    ceiling: int = 1000


@dataclass(frozen=True)
class Look:
    """A GPU at one moment."""

    now_ns: int
    workers: tuple[SeenWorker, ...]
    tenants: Mapping[str, SeenTenant]
    #: Whether the policy knows turns; without them nobody's time is anybody's own.
    turns: bool = True
    #: Counts from different ones cannot be compared: of boards that follow one another.
    era: int = 0

    def of(self, tenant: str) -> list[SeenWorker]:
        return [worker for worker in self.workers if worker.tenant == tenant]


@dataclass(frozen=True)
class Verdict:
    """Who has taken too much."""

    pid: int
    tenant: str
    cause: Cause
    reason: str
    #: False: it is asked to end its session first, for the driver may have taken that by itself.
    liar: bool = True


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


def time_beyond(first: Look, last: Look, tenant: str) -> int | None:
    """GPU time in which a tenant worked outside its turns; None if that cannot be said.

    Less than half of what its turns were is 0: drivers measure in samples, and machines that are
    full end a turn late.
    """
    before, after = first.tenants.get(tenant), last.tenants.get(tenant)
    if before is None or after is None or before.held_ns is None or after.held_ns is None:
        return None
    if after.beside or before.beside or after.held_ns < before.held_ns:
        return None
    used = sum(_used(first, worker) for worker in last.of(tenant))
    held = after.held_ns - before.held_ns
    return used - held if used - held > held // 2 else 0


def time_beyond_share(first: Look, last: Look, tenant: str) -> int:
    """GPU time that a tenant has had beyond its part, as those who had work meanwhile have parts.

    A rank of a job on several GPUs leaves a kernel there when its turn ends, which waits for the
    other ranks: where they do not take turns at the same time, that is how collectives are. Nobody
    has lost what is his as long as all of it is within the tenant's part.
    """
    used = sum(_used(first, worker) for worker in last.of(tenant))
    its = last.tenants[tenant]
    others = sum(
        after.parts
        for name, after in last.tenants.items()
        if name != tenant and _demand(first, last, name)
    )
    span = last.now_ns - first.now_ns
    own = min(span * its.parts // max(its.parts + others, 1), span * its.ceiling // 1000)
    return max(0, used - own)


def _used(first: Look, worker: SeenWorker) -> int:
    earlier = {each.pid: each.used_ns for each in first.workers}.get(worker.pid)
    if worker.used_ns is None or earlier is None:
        return 0
    return max(0, worker.used_ns - earlier)


def others_demand(first: Look, last: Look, tenant: str) -> int:
    """For how long the others have worked, or waited for their turns."""
    return sum(_demand(first, last, name) for name in last.tenants if name != tenant)


def _demand(first: Look, last: Look, tenant: str) -> int:
    before = first.tenants.get(tenant)
    return max(0, last.tenants[tenant].demand_ns - before.demand_ns) if before else 0


def lost_turns(first: Look, last: Look, tenant: str) -> bool:
    """Whether a worker was at work for so long meanwhile that it lost its turn."""
    before = {worker.pid: worker.overdue for worker in first.workers}
    return any(worker.overdue > before.get(worker.pid, 0) for worker in last.of(tenant))


def who_takes_time(first: Look, last: Look, tenant: str) -> SeenWorker | None:
    """Of a tenant that works outside its turns: who has most that it did not account for."""
    claimed = {worker.pid: worker.busy_ns for worker in first.workers}

    def beyond(worker: SeenWorker) -> int:
        return _used(first, worker) - (worker.busy_ns - claimed.get(worker.pid, 0))

    return max(last.of(tenant), key=beyond, default=None)


class History:
    """One GPU over time: what lasts long enough to be held against somebody."""

    def __init__(self, settings: WatchSettings, own: Own, gpu: int) -> None:
        self._settings = settings
        self._own = own
        self._gpu = gpu
        self._looks: deque[Look] = deque()
        #: By pid.
        self._beyond: dict[int, _Beyond] = {}

    @property
    def hurried(self) -> bool:
        """Whether to look again soon."""
        return any(beyond.far for beyond in self._beyond.values())

    def look(self, now: Look) -> list[Verdict]:
        """Who is to be ended now, each once."""
        found = [*self._look_at_memory(now), *self._look_at_time(now)]
        once = {verdict.pid: verdict for verdict in reversed(found)}
        return list(once.values())

    # Memory ----------------------------------------------------------------------------

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

    # Time --------------------------------------------------------------------------------

    def _look_at_time(self, now: Look) -> Iterable[Verdict]:
        if self._looks and self._looks[-1].era != now.era:
            self._looks.clear()
        if not now.turns:
            self._looks.clear()
            return
        window = self._settings.time_seconds * NS
        if self._looks and now.now_ns - self._looks[-1].now_ns > APART_MS * 1_000_000:
            self._looks.clear()
        self._looks.append(now)
        while len(self._looks) > 1 and now.now_ns - self._looks[1].now_ns >= window:
            self._looks.popleft()
        if now.now_ns - self._looks[0].now_ns < window:
            return
        first = self._looks[0]
        found = [name for name in now.tenants if self._takes_time(first, now, name)]
        for tenant in found:
            worker = who_takes_time(first, now, tenant)
            if worker is not None:
                yield Verdict(worker.pid, tenant, "time", self._time_reason(first, now, tenant))
        if found:
            self._looks.clear()

    def _takes_time(self, first: Look, now: Look, tenant: str) -> bool:
        if lost_turns(first, now, tenant):
            return False
        if any(worker.late for look in self._looks for worker in look.of(tenant)):
            return False
        beyond = time_beyond(first, now, tenant)
        least = (now.now_ns - first.now_ns) * self._settings.time_share // 1000
        return (
            beyond is not None
            and beyond >= least
            and others_demand(first, now, tenant) >= least
            and time_beyond_share(first, now, tenant) >= least
        )

    def _time_reason(self, first: Look, now: Look, tenant: str) -> str:
        span = (now.now_ns - first.now_ns) / NS
        beyond = (time_beyond(first, now, tenant) or 0) / NS
        return (
            f"'{tenant}' worked on GPU {self._gpu} for {beyond:.1f} of {span:.1f} s outside its"
            " turns, while others had work for it"
        )
