"""Whether a worker takes more of a GPU's time than its tenant's turns.

A driver that measures says what each process has had: what is beyond a tenant's turns is outside of
them. One that looks at moments says whose work it found, which is compared with whose turn it was
at that moment (watch_turns.py); a tenant is judged there with all of its groups (watch_groups.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpupool_server.claims import tenant_of
from gpupool_server.watch_groups import Groups, fold
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_samples import may_be_chance, stretches_of
from gpupool_server.watch_settings import WatchSettings

#: Looks that are further apart say nothing of time: a long kernel may fit between them.
APART_MS = 1250

#: What was done may be sampled so much later: turns of so long before the time that is judged
#: may be those that the samples are of, and nobody is judged for what came sooner behind a gap.
LATE_NS = 2_000_000_000


@dataclass(frozen=True)
class Times:
    """What a tenant had of a GPU's time, and what can be held against it; all in nanoseconds."""

    span: int
    #: As the driver says, of its workers that are there now.
    used: int
    #: Its turns; where time is measured, now or a little earlier.
    held: int
    #: For so long it was found at work in others' turns. Where time is measured: of ``used``,
    #: beyond its turns; 0 if that is less than half of these, as that comes in steps.
    outside: int
    #: Where time is measured: as much of that can be work that it has let in and whose end it does
    #: not see.
    left: int
    #: For how long others have worked, and waited for their turns.
    others: int
    #: So often the driver has looked; 0: it measures.
    samples: int = 0

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
        if self.samples and may_be_chance(self.samples, self.outside / self.span):
            return "so few samples may say that by chance"
        return ""


class Span:
    """Looks at a GPU, one behind the other, the last so long that time can be judged by it."""

    def __init__(self, looks: Sequence[Look], window_ns: int) -> None:
        self.last = looks[-1]
        begin = next(
            i
            for i in reversed(range(len(looks)))
            if self.last.now_ns - looks[i].now_ns >= window_ns
        )
        self.first = looks[begin]
        self.ns = self.last.now_ns - self.first.now_ns
        #: How far apart the driver's own looks are; 0: it measures.
        self.apart = max(look.sample_ns for look in looks)
        self._looks, self._judged = looks, looks[begin:]
        self._earlier = {worker.pid: worker for worker in self.first.workers}
        self._now: dict[str, list[SeenWorker]] = {}
        for worker in self.last.workers:
            name = tenant_of(worker.tenant) if self.apart else worker.tenant
            self._now.setdefault(name, []).append(worker)
        self._late = set[str]() if self.apart else self._who_was_late()

    def times(self, tenant: str) -> Times | str:
        """Or why nothing can be said."""
        seen = [look.tenants.get(tenant) for look in self._looks]
        if any(each and each.beside for each in seen):
            return "it may work beside others"
        if tenant in self._late:
            return "it is at work for which it lost its turn"
        if not self.apart and self._lost_turns(tenant):
            return "it has lost a turn"
        held = self._held(tenant)
        if held is None:
            return "its turns are not known"
        used = sum(self.used(worker) for worker in self.of(tenant))
        outside = self.found_outside(tenant)
        if not self.apart:
            outside = used - held if used - held > held // 2 else 0
        left = self._left(tenant, held)
        others = sum(self._busy(name) + self._waited(name) for name in self._others(tenant))
        samples = self.ns // self.apart if self.apart else 0
        return Times(self.ns, used, held, outside, left, others, samples)

    def of(self, tenant: str) -> Sequence[SeenWorker]:
        """The workers that are there now."""
        return self._now.get(tenant, ())

    def found_outside(self, tenant: str) -> int:
        """For so long the driver's looks have found it in others' turns."""
        return self.last.tenants[tenant].outside_ns - self._begin(tenant).outside_ns

    def used(self, worker: SeenWorker) -> int:
        """GPU time of one process; one that was not there at first has had all of it since."""
        earlier = self._earlier.get(worker.pid)
        before = earlier.used_ns if earlier else 0
        if worker.used_ns is None or before is None:
            return 0
        return max(0, worker.used_ns - before)

    def unaccounted(self, worker: SeenWorker) -> int:
        """What it had of the time without being let in, or was found in others' turns."""
        earlier = self._earlier.get(worker.pid)
        if self.apart:
            return worker.outside_ns - (earlier.outside_ns if earlier else 0)
        return self.used(worker) - (worker.busy_ns - (earlier.busy_ns if earlier else 0))

    def _who_was_late(self) -> set[str]:
        return {worker.tenant for look in self._looks for worker in look.workers if worker.late}

    def _begin(self, tenant: str) -> SeenTenant:
        """As it was at first, or as soon as it was there."""
        return next(look.tenants[tenant] for look in self._judged if tenant in look.tenants)

    def _held(self, tenant: str) -> int | None:
        """Where time is measured: the most that its turns were in as long a time that ended now or
        a little earlier."""
        if self.apart:
            return (self.last.tenants[tenant].held_ns or 0) - (self._begin(tenant).held_ns or 0)
        counts = [
            look.tenants[tenant].held_ns if tenant in look.tenants else 0 for look in self._looks
        ]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts) or known != sorted(known):
            return None  # of an arbiter of an older release, or of more than one account
        return max((known[end] - known[begin] for begin, end in self._shifted()), default=0)

    def _shifted(self) -> Iterable[tuple[int, int]]:
        """The places of two looks, between which is as much time as is judged."""
        end = 0
        for begin, look in enumerate(self._looks):
            while end < len(self._looks) and self._looks[end].now_ns - look.now_ns < self.ns:
                end += 1
            if end == len(self._looks):
                return
            yield begin, end

    def _lost_turns(self, tenant: str) -> bool:
        """Whether a worker was at work for so long meanwhile that it lost its turn."""
        before = {worker.pid: worker.overdue for worker in self._looks[0].workers}
        return any(worker.overdue > before.get(worker.pid, 0) for worker in self.of(tenant))

    def _left(self, tenant: str, held: int) -> int:
        """Work that outlives a turn, as a rank's kernel that waits for other ranks, has all of the
        GPU while nobody else has work, and else what the hardware's slices give it."""
        if self.apart or all(worker.unseen is False for worker in self.of(tenant)):
            return 0
        rest = max(0, self.ns - held)
        wanted = min(rest, max(map(self._wanted, self._others(tenant)), default=0))
        mine, all_of_us = self._slices(tenant)
        return rest - wanted + wanted * mine // all_of_us

    def _slices(self, tenant: str) -> tuple[int, int]:
        """Its own, and with them the least of another worker's, who may be alone at work."""
        own = [worker.slice_us for worker in self.of(tenant)]
        others = [w.slice_us for name, each in self._now.items() if name != tenant for w in each]
        if 0 in own or 0 in others:  # the driver's own, which are alike
            own, others = [1] * len(own), [1] * len(others)
        return sum(own), sum(own) + min(others, default=0)

    def _wanted(self, tenant: str) -> int:
        """For how long one of the others had work, at least."""
        return max(self._busy(tenant), self._waited(tenant) // max(len(self.of(tenant)), 1))

    def _others(self, tenant: str) -> list[str]:
        return [name for name in self.last.tenants if name != tenant and name in self.first.tenants]

    def _busy(self, tenant: str) -> int:
        return max(0, self.last.tenants[tenant].busy_ns - self.first.tenants[tenant].busy_ns)

    def _waited(self, tenant: str) -> int:
        return max(0, self.last.tenants[tenant].waited_ns - self.first.tenants[tenant].waited_ns)


class TimeHistory:
    """One GPU's time over minutes."""

    def __init__(self, settings: WatchSettings, gpu: int) -> None:
        self._settings = settings
        self._gpu = gpu
        self._looks: deque[Look] = deque()
        #: For longer times, where moments are judged: far fewer, since each has all workers.
        self._long: deque[Look] = deque()
        self._groups = Groups()
        #: Since when each worker is there, by pid.
        self._since: dict[int, int] = {}
        #: By tenant: what was found at the last look, and why that is held against nobody.
        self.times: dict[str, tuple[Times | None, str]] = {}

    def look(self, now: Look) -> list[Verdict]:
        """Who takes time."""
        self.times = {}
        before = self._looks[-1] if self._looks else now
        if (
            not now.turns
            or before.era != now.era
            or now.now_ns - before.now_ns > APART_MS * 1_000_000
            or (now.workers and bool(before.sample_ns) != bool(now.sample_ns))
        ):
            self._forget()
        if not now.turns:
            return []
        self._since = {w.pid: self._since.get(w.pid, now.now_ns) for w in now.workers}
        if not now.workers:
            now = replace(now, sample_ns=before.sample_ns)  # nobody has asked the driver
        self._looks.append(self._groups.join(now) if now.sample_ns else now)
        window = self._settings.time_seconds * NS
        while len(self._looks) > 1 and now.now_ns - self._looks[1].now_ns >= window + LATE_NS:
            self._looks.popleft()
        found = [*self._who_takes_time(self._looks, window, keeps=True)]
        if now.sample_ns:
            found += self._look_back(window)
        if found:
            self._forget()
        return found

    def _look_back(self, window: int) -> Iterable[Verdict]:
        """Over longer times, at one look for each of the settings'."""
        now, last_ns = self._looks[-1].now_ns, self._long[-1].now_ns if self._long else -1
        if self._long and now - last_ns < window:
            return
        self._long.append(fold([look for look in self._looks if look.now_ns > last_ns]))
        stretches = stretches_of(self._settings.time_seconds)
        longest = stretches[-1] * window + LATE_NS
        while len(self._long) > 1 and now - self._long[1].now_ns >= longest:
            self._long.popleft()
        for stretch in stretches[1:]:
            yield from self._who_takes_time(self._long, window * stretch)

    def _forget(self) -> None:
        self._looks.clear()
        self._long.clear()

    def _who_takes_time(
        self, known: Iterable[Look], window: int, *, keeps: bool = False
    ) -> Iterable[Verdict]:
        """In so many nanoseconds, once there are looks for that; ``keeps`` what it found."""
        looks = tuple(known)
        now = looks[-1].now_ns
        if now - looks[0].now_ns < window + LATE_NS:
            return
        begin = next(
            i for i in reversed(range(len(looks))) if now - looks[i].now_ns >= window + LATE_NS
        )
        span = Span(looks[begin:], window)
        least = span.ns * self._settings.time_share // 1000
        for tenant in span.last.tenants:
            if not keeps and span.found_outside(tenant) < least:
                continue
            times = span.times(tenant)
            held_back = times if isinstance(times, str) else times.held_back(least)
            if keeps:
                self.times[tenant] = (None if isinstance(times, str) else times, held_back)
            if isinstance(times, str) or held_back:
                continue
            worker = self._who(span, tenant, times, least)
            if worker is not None:
                yield Verdict(worker.pid, worker.tenant, "time", self._reason(tenant, times))

    def _who(self, span: Span, tenant: str, times: Times, least: int) -> SeenWorker | None:
        """Of a tenant's workers that are there now the one that accounts for least. Where moments
        are judged, one that was found twice or more, and nobody for those that have ended: all of
        them together must have had too much by themselves, or one for as long as it is there."""
        found = [(span.unaccounted(worker), worker) for worker in span.of(tenant)]
        if span.apart:
            found = [(ns, worker) for ns, worker in found if ns > 1.5 * span.apart]
            together = replace(times, outside=sum(ns for ns, _ in found))
            if together.held_back(least):
                part = least / span.ns
                found = [(ns, w) for ns, w in found if ns > part * self._age(span, w)]
        return max(found, key=lambda pair: pair[0], default=(0, None))[1]

    def _age(self, span: Span, worker: SeenWorker) -> int:
        """For how long it is there, of the time that is judged."""
        return span.last.now_ns - max(span.first.now_ns, self._since[worker.pid])

    def _reason(self, tenant: str, times: Times) -> str:
        left = f", of which {times.left / NS:.1f} s may be work left there" if times.left else ""
        return (
            f"'{tenant}' worked on GPU {self._gpu} for {times.outside / NS:.1f} of"
            f" {times.span / NS:.1f} s outside its turns{left}, while others had work for it"
        )
