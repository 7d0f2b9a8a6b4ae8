"""Whether a worker takes more of a GPU's time than its tenant's turns.

A driver that measures says what each process has had: what is beyond a tenant's turns is outside of
them. One that looks at moments says whose work it found, which is compared with whose turn it was
at that moment (watch_turns.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpupool_server.claims import tenant_of
from gpupool_server.watch_look import NS, Look, SeenWorker, Verdict
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
    #: As much of that can be work that it has let in and whose end it does not see.
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
        left, outside = self.left / self.span, self.outside / self.span
        if self.samples and may_be_chance(self.samples, left, outside):
            return "so few samples may say that by chance"
        return ""


class Span:
    """Looks at a GPU, one behind the other, the last so long that time can be judged by it."""

    def __init__(self, looks: Sequence[Look], window_ns: int) -> None:
        self.looks = looks
        self.earliest, self.last = looks[0], looks[-1]
        self.first = next(
            look for look in reversed(looks) if self.last.now_ns - look.now_ns >= window_ns
        )
        self.ns = self.last.now_ns - self.first.now_ns
        #: How far apart the driver's own looks are; 0: it measures.
        self.apart = max(look.sample_ns for look in looks)

    def times(self, tenant: str) -> Times | str:
        """Or why nothing can be said."""
        seen = [look.tenants.get(tenant) for look in self.looks]
        if any(each and each.beside for each in seen):
            return "it may work beside others"
        if not self.apart and any(w.late for look in self.looks for w in look.of(tenant)):
            return "it is at work for which it lost its turn"
        if not self.apart and self._lost_turns(tenant):
            return "it has lost a turn"
        held = self._held(tenant)
        if held is None:
            return "its turns are not known"
        used = sum(self.used(worker) for worker in self.last.of(tenant))
        outside = self.found_outside(tenant)
        if not self.apart:
            outside = used - held if used - held > held // 2 else 0
        left = self._left(tenant, held)
        others = sum(self._busy(name) + self._waited(name) for name in self._others(tenant))
        samples = self.ns // self.apart if self.apart else 0
        return Times(self.ns, used, held, outside, left, others, samples)

    def found_outside(self, tenant: str) -> int:
        """For so long the driver's looks have found it in others' turns."""
        known = (look.tenants[tenant] for look in self.looks if tenant in look.tenants)
        begin = self.first.tenants.get(tenant) or next(known)
        return self.last.tenants[tenant].outside_ns - begin.outside_ns

    def of_tenants(self) -> dict[str, int]:
        """Likewise, of tenants with all of their groups, and of workers that have ended; not of
        those that may work beside others."""
        first = self.first.outside_ns
        found = {name: ns - first.get(name, 0) for name, ns in self.last.outside_ns.items()}
        for look in self.looks:
            for name in [name for name, account in look.tenants.items() if account.beside]:
                found.pop(tenant_of(name), None)
        return found

    def who_of(self, tenant: str, part: float) -> SeenWorker | None:
        """Of such a tenant: the worker that was found there most, if one that is there now was
        found twice or more, and in more than that ``part`` of its time."""
        first = {worker.pid: worker for worker in self.first.workers}
        since: dict[int, int] = {}
        for look in self.looks[self.looks.index(self.first) :]:
            for worker in look.workers:
                since.setdefault(worker.pid, look.now_ns)
        most, found = 0, None
        for worker in self.last.workers:
            earlier = first.get(worker.pid)
            outside = worker.outside_ns - (earlier.outside_ns if earlier else 0)
            least = max(part * (self.last.now_ns - since[worker.pid]), 1.5 * self.apart)
            if tenant_of(worker.tenant) == tenant and worker.unseen is False and outside > least:
                most, found = max((most, found), (outside, worker), key=lambda pair: pair[0])
        return found

    def used(self, worker: SeenWorker) -> int:
        """GPU time of one process; one that was not there at first has had all of it since."""
        earlier = {each.pid: each.used_ns for each in self.first.workers}.get(worker.pid, 0)
        if worker.used_ns is None or earlier is None:
            return 0
        return max(0, worker.used_ns - earlier)

    def who(self, tenant: str) -> SeenWorker | None:
        """Of a tenant that works outside its turns: the worker that did so most, if one that is
        there now did at all; where time is measured, that accounts for least."""
        first = {worker.pid: worker for worker in self.first.workers}

        def beyond(worker: SeenWorker) -> int:
            earlier = first.get(worker.pid)
            if self.apart:
                return worker.outside_ns - (earlier.outside_ns if earlier else 0)
            return self.used(worker) - (worker.busy_ns - (earlier.busy_ns if earlier else 0))

        worker = max(self.last.of(tenant), key=beyond, default=None)
        return None if worker is None or (self.apart and beyond(worker) <= 0) else worker

    def _held(self, tenant: str) -> int | None:
        """Where time is measured: the most that its turns were in as long a time that ended now or
        a little earlier."""
        counts = [
            look.tenants[tenant].held_ns if tenant in look.tenants else 0 for look in self.looks
        ]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts) or known != sorted(known):
            return None  # of an arbiter of an older release, or of more than one account
        if self.apart:
            return known[-1] - known[self.looks.index(self.first)]
        return max((known[end] - known[begin] for begin, end in self._shifted()), default=0)

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


class TimeHistory:
    """One GPU's time over minutes."""

    def __init__(self, settings: WatchSettings, gpu: int) -> None:
        self._settings = settings
        self._gpu = gpu
        self._looks: deque[Look] = deque()
        #: When more than the settings' time was judged.
        self._long_ns = 0
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
        ):
            self._looks.clear()
        if not now.turns:
            return []
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
        if found:
            self._looks.clear()
        return found

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
            if not keeps and span.found_outside(tenant) < least:
                continue
            times = span.times(tenant)
            held_back = times if isinstance(times, str) else times.held_back(least)
            if keeps:
                self.times[tenant] = (None if isinstance(times, str) else times, held_back)
            worker = span.who(tenant)
            if not isinstance(times, str) and not held_back and worker is not None:
                yield Verdict(worker.pid, tenant, "time", self._reason(tenant, times))
        if span.apart:
            yield from self._who_comes_again(span, least)

    def _who_comes_again(self, span: Span, least: int) -> Iterable[Verdict]:
        """Tenants whose sessions end before enough is known of each."""
        for tenant, outside in span.of_tenants().items():
            if outside < least or may_be_chance(span.ns // span.apart, 0.0, outside / span.ns):
                continue
            worker = span.who_of(tenant, self._settings.time_share / 1000)
            if worker is not None:
                reason = self._said(tenant, outside, span.ns)
                yield Verdict(worker.pid, worker.tenant, "time", reason)

    def _reason(self, tenant: str, times: Times) -> str:
        left = f", of which {times.left / NS:.1f} s may be work left there" if times.left else ""
        return self._said(tenant, times.outside, times.span, left)

    def _said(self, tenant: str, outside: int, span: int, left: str = "") -> str:
        return (
            f"'{tenant}' worked on GPU {self._gpu} for {outside / NS:.1f} of {span / NS:.1f} s"
            f" outside its turns{left}, while others had work for it"
        )
