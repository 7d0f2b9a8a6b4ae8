"""Whether a worker takes more of a GPU than its tenant was granted: rules, without any clock.

What the driver says that processes have and do is compared with what the arbiter granted and
counted by its own clock. Nothing that a worker says of itself can make it look better here; but
where something is not known, or is what an honest worker does now and then, nobody is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpupool_common.node_protocol import Cause
from gpupool_common.sizes import format_size
from gpupool_server.watch_samples import may_be_chance, stretches_of
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

#: What was done may be sampled so much later: turns of so long before the time that is judged
#: may be those that the samples are of, and nobody is judged for what came sooner behind a gap.
LATE_NS = 2_000_000_000

#: How soon to look again meanwhile.
HURRY_SECONDS = 0.1

NS = 1_000_000_000

UNLIMITED = 1 << 62


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
    #: It says that work of it may go on outside of its turns; None: it does not say.
    unseen: bool | None = False
    #: The hardware's time slice; 0: the driver's own.
    slice_us: int = 0


@dataclass(frozen=True)
class SeenTenant:
    """A tenant or group at one moment, as the arbiter has it."""

    #: Bytes; 0: all that there is.
    limit: int
    #: For how long the turn was its own; None: the arbiter does not say.
    held_ns: int | None = None
    #: For how long it has worked, and its workers have waited for its turn, all told.
    busy_ns: int = 0
    waited_ns: int = 0
    #: It may run beside others, out of turn.
    beside: bool = False
    #: Its limit was made less than it had in use, which it keeps.
    forced: bool = False
    #: The limit before that, in bytes; 0: there was none, or it is not known.
    before: int = 0
    #: How many turns it has had.
    turns: int = 0


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
    #: The driver looks so often whose work is on the GPU; 0: it measures what each has.
    sample_ns: int = 0

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
    #: False: it is named, and not ended: turns that come as regularly as samples look like that.
    certain: bool = True


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


@dataclass(frozen=True)
class Times:
    """What a tenant had of a GPU's time, and what can be held against it; all in nanoseconds."""

    span: int
    #: By the driver's samples.
    used: int
    #: Its turns, now or a little earlier.
    held: int
    #: Of ``used``, beyond its turns; 0 if that is less than half of these, as drivers sample.
    outside: int
    #: As much of that can be work that it has let in and whose end it does not see.
    left: int
    #: For how long others have worked, and waited for their turns.
    others: int
    #: By so many samples; 0: the driver measures.
    samples: int = 0
    #: The most that these may count of its turns beyond what they were.
    rounding: int = 0

    def held_back(self, least: int) -> str:
        """Why this is held against nobody; empty: it is."""
        if self.outside < least:
            return "it worked in its turns"
        if self.outside - self.left < least:
            return (
                "it says that work of it outlives its turns, and the hardware's slices allow that"
            )
        if self.others < least:
            return "nobody else had work"
        granted, seen = (self.held + self.left) / self.span, self.used / self.span
        if not self.is_certain(least) and may_be_chance(self.samples, granted, seen):
            return "so few samples may say that of work in its turns"
        return ""

    def is_certain(self, least: int) -> bool:
        """Whether no turns that it had can look like that."""
        return self.outside - self.left - self.rounding >= least


class Span:
    """Looks at a GPU, one behind the other, the last so long that time can be judged by it."""

    def __init__(self, looks: Sequence[Look], window_ns: int) -> None:
        self.looks = looks
        self.earliest, self.last = looks[0], looks[-1]
        self.first = next(
            look for look in reversed(looks) if self.last.now_ns - look.now_ns >= window_ns
        )
        self.ns = self.last.now_ns - self.first.now_ns

    def times(self, tenant: str) -> Times | str:
        """Or why nothing can be said."""
        seen = [look.tenants.get(tenant) for look in self.looks]
        if any(each and each.beside for each in seen):
            return "it may work beside others"
        if any(worker.late for look in self.looks for worker in look.of(tenant)):
            return "it is at work for which it lost its turn"
        if self._lost_turns(tenant):
            return "it has lost a turn"
        held = self._held(tenant)
        if held is None:
            return "its turns are not known"
        used = sum(self.used(worker) for worker in self.last.of(tenant))
        outside = used - held if used - held > held // 2 else 0
        left = self._left(tenant, held)
        others = sum(self._busy(name) + self._waited(name) for name in self._others(tenant))
        return Times(self.ns, used, held, outside, left, others, *self._samples(tenant, held))

    def beyond(self, tenant: str) -> int:
        """At most so much did it have outside its turns: to tell soon who worked in them."""
        begin, end = (look.tenants.get(tenant) for look in (self.first, self.last))
        held = ((end and end.held_ns) or 0) - ((begin and begin.held_ns) or 0)
        return sum(map(self.used, self.last.of(tenant))) - held

    def used(self, worker: SeenWorker) -> int:
        """GPU time of one process."""
        earlier = {each.pid: each.used_ns for each in self.first.workers}.get(worker.pid)
        if worker.used_ns is None or earlier is None:
            return 0
        return max(0, worker.used_ns - earlier)

    def who(self, tenant: str) -> SeenWorker | None:
        """Of a tenant that works outside its turns: who has most that it did not account for."""
        claimed = {worker.pid: worker.busy_ns for worker in self.first.workers}

        def beyond(worker: SeenWorker) -> int:
            return self.used(worker) - (worker.busy_ns - claimed.get(worker.pid, 0))

        return max(self.last.of(tenant), key=beyond, default=None)

    def _held(self, tenant: str) -> int | None:
        """The most that its turns were in as long a time that ended now or a little earlier."""
        counts = [
            look.tenants[tenant].held_ns if tenant in look.tenants else 0 for look in self.looks
        ]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts) or known != sorted(known):
            return None  # of an arbiter of an older release, or of more than one account
        return self._most(known)

    def _samples(self, tenant: str, held: int) -> tuple[int, int]:
        """How many there are, and for how long they may count turns beyond what these were: each
        turn by one sample, and the one that had begun before."""
        apart = max(look.sample_ns for look in self.looks)
        if not apart:
            return 0, 0
        counts = [
            look.tenants[tenant].turns if tenant in look.tenants else 0 for look in self.looks
        ]
        turns = self._most(counts) + 1 if held else 0
        return self.ns // apart, turns * apart

    def _most(self, counts: Sequence[int]) -> int:
        """By how much they grew at most in as long a time that ended now or a little earlier."""
        return max((counts[end] - counts[begin] for begin, end in self._shifted()), default=0)

    def _shifted(self) -> Iterable[tuple[int, int]]:
        """The places of two looks, between which is as much time as is judged."""
        end = 0
        for begin, look in enumerate(self.looks):
            while end < len(self.looks) and self.looks[end].now_ns - look.now_ns < self.ns:
                end += 1
            if end == len(self.looks):
                return
            yield begin, end

    def _lost_turns(self, tenant: str) -> bool:
        """Whether a worker was at work for so long meanwhile that it lost its turn."""
        before = {worker.pid: worker.overdue for worker in self.earliest.workers}
        return any(worker.overdue > before.get(worker.pid, 0) for worker in self.last.of(tenant))

    def _left(self, tenant: str, held: int) -> int:
        """Work that outlives a turn, as a rank's kernel that waits for other ranks, has all of the
        GPU while nobody else has work, and else what the hardware's slices give it."""
        if all(worker.unseen is False for worker in self.last.of(tenant)):
            return 0
        rest = max(0, self.ns - held)
        wanted = min(rest, max(map(self._wanted, self._others(tenant)), default=0))
        mine, all_of_us = self._slices(tenant)
        return rest - wanted + wanted * mine // all_of_us

    def _slices(self, tenant: str) -> tuple[int, int]:
        """Its own, and with them the least of another worker's, who may be alone at work."""
        slices = {worker.pid: worker.slice_us for worker in self.last.workers}
        if 0 in slices.values():
            slices = dict.fromkeys(slices, 1)
        own = [slices.pop(worker.pid) for worker in self.last.of(tenant)]
        return sum(own), sum(own) + min(slices.values(), default=0)

    def _wanted(self, tenant: str) -> int:
        """For how long one of the others had work, at least."""
        return max(self._busy(tenant), self._waited(tenant) // max(len(self.last.of(tenant)), 1))

    def _others(self, tenant: str) -> list[str]:
        return [name for name in self.last.tenants if name != tenant and name in self.first.tenants]

    def _busy(self, tenant: str) -> int:
        return max(0, self.last.tenants[tenant].busy_ns - self.first.tenants[tenant].busy_ns)

    def _waited(self, tenant: str) -> int:
        return max(0, self.last.tenants[tenant].waited_ns - self.first.tenants[tenant].waited_ns)


class History:
    """One GPU over time: what lasts long enough to be held against somebody."""

    def __init__(self, settings: WatchSettings, own: Own, gpu: int) -> None:
        self._settings = settings
        self._own = own
        self._gpu = gpu
        self._looks: deque[Look] = deque()
        #: When more than the settings' time was judged.
        self._long_ns = 0
        #: By pid.
        self._beyond: dict[int, _Beyond] = {}
        #: By tenant: what was found of its time at the last look, and why that is held against
        #: nobody.
        self.times: dict[str, tuple[Times | None, str]] = {}
        self._kept = Kept()

    @property
    def hurried(self) -> bool:
        """Whether to look again soon."""
        return any(beyond.far for beyond in self._beyond.values())

    def look(self, now: Look) -> list[Verdict]:
        """Who is to be ended now, each once."""
        found = [*self._look_at_memory(self._kept.look(now)), *self._look_at_time(now)]
        found.sort(key=lambda verdict: not verdict.certain)
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
        self.times = {}
        before = self._looks[-1] if self._looks else now
        if (
            not now.turns
            or before.era != now.era
            or now.now_ns - before.now_ns > APART_MS * 1_000_000
        ):
            self._looks.clear()
        if not now.turns:
            return
        self._looks.append(now)
        window = self._settings.time_seconds * NS
        stretches = stretches_of(self._settings.time_seconds) if now.sample_ns else (1,)
        longest = window * stretches[-1] + LATE_NS
        while len(self._looks) > 1 and now.now_ns - self._looks[1].now_ns >= longest:
            self._looks.popleft()
        found = [*self._who_takes_time(window, keeps=True)]
        if now.now_ns >= self._long_ns + window:
            self._long_ns = now.now_ns
            for stretch in stretches[1:]:
                found += self._who_takes_time(window * stretch)
        if any(verdict.certain for verdict in found):
            self._looks.clear()
        yield from found

    def _who_takes_time(self, window: int, *, keeps: bool = False) -> Iterable[Verdict]:
        """In so many nanoseconds, once there are looks for that; ``keeps`` what it found."""
        now = self._looks[-1].now_ns
        if now - self._looks[0].now_ns < window + LATE_NS:
            return
        begin = next(
            i
            for i in reversed(range(len(self._looks)))
            if now - self._looks[i].now_ns >= window + LATE_NS
        )
        span = Span(tuple(self._looks)[begin:], window)
        least = span.ns * self._settings.time_share // 1000
        for tenant in span.last.tenants:
            if not keeps and span.beyond(tenant) < least:
                continue
            times = span.times(tenant)
            held_back = times if isinstance(times, str) else times.held_back(least)
            if keeps:
                self.times[tenant] = (None if isinstance(times, str) else times, held_back)
            worker = span.who(tenant)
            if not isinstance(times, str) and not held_back and worker is not None:
                certain = times.is_certain(least)
                reason = self._time_reason(tenant, times)
                yield Verdict(worker.pid, tenant, "time", reason, certain=certain)

    def _time_reason(self, tenant: str, times: Times) -> str:
        left = f", of which {times.left / NS:.1f} s may be work left there" if times.left else ""
        return (
            f"'{tenant}' worked on GPU {self._gpu} for {times.outside / NS:.1f} of"
            f" {times.span / NS:.1f} s outside its turns{left}, while others had work for it"
        )
