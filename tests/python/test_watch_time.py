"""Who is taken for a liar by the GPU time that it has; the clock is the test's own.

Each way in which honest work is on a GPU outside of its turns is a row of HONEST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_server.usage import SOFT
from gpupool_server.watch import History
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_time import APART_MS, LATE_NS

SETTINGS = WatchSettings.model_construct()
LATE = LATE_NS / NS

#: Something that grows with the seconds.
Count = Callable[[float], float]


def never(t: float) -> float:
    return 0.0


def all_of(part: float) -> Count:
    """So much of each second."""
    return lambda t: part * t


@dataclass(frozen=True)
class Case:
    """red, which is judged, and blue beside it; blue is always at work."""

    used: Count
    held: Count = never
    busy: Count = all_of(1.0)
    waited: Count = never
    #: What red's worker says and is.
    unseen: bool | None = False
    slices: tuple[int, int] = (10_000, 10_000)
    late: Callable[[float], bool] = lambda t: False
    overdue: Count = never
    beside: Callable[[float], bool] = lambda t: False
    turns: Callable[[float], bool] = lambda t: True
    era: Count = never
    #: Of which the driver says something.
    sampled: Count = lambda t: t
    seconds: float = 30.0
    every: float = 0.5
    begins: float = 0.0

    def look(self, at: float) -> Look:
        since = max(0.0, at - self.begins)
        red = SeenWorker(
            1,
            "red",
            None,
            0,
            int(self.used(self.sampled(since)) * NS),
            int(self.held(since) * NS),
            self.late(since),
            int(self.overdue(since)),
            self.unseen,
            self.slices[0],
        )
        blue = SeenWorker(2, "blue", None, 0, 0, int(self.busy(at) * NS), slice_us=self.slices[1])
        tenants = {
            "red": SeenTenant(
                0, int(self.held(since) * NS), int(self.held(since) * NS), 0, self.beside(since)
            ),
            "blue": SeenTenant(0, 0, int(self.busy(at) * NS), int(self.waited(at) * NS)),
        }
        return Look(int(at * NS), (red, blue), tenants, self.turns(since), int(self.era(since)))

    def looks(self) -> list[Look]:
        return [self.look(i * self.every) for i in range(int(self.seconds / self.every))]


def judged(looks: Sequence[Look]) -> list[tuple[float, Verdict]]:
    """Who is ended, and when."""
    watched = History(SETTINGS, SOFT, 0)
    return [(look.now_ns / NS, verdict) for look in looks for verdict in watched.look(look)]


def from_on(begins: float, part: float = 1.0) -> Count:
    return lambda t: part * max(0.0, t - begins)


def in_steps(every: float, delay: float) -> Count:
    """What is sampled only so often, and said so much later."""
    return lambda t: max(0.0, (t - delay) // every * every)


def in_turns(period: float, part: float) -> Count:
    """All of the first part of each period."""
    return lambda t: t // period * period * part + min(t % period, period * part)


# Liars ----------------------------------------------------------------------------------------

LIARS = {
    "asks for nothing": Case(all_of(0.16)),
    "asks for nothing and has much": Case(all_of(0.9)),
    "works on when its turns are over": Case(all_of(0.7), all_of(0.3)),
    "says that it works all the time": Case(all_of(0.5), waited=all_of(3.0)),
    "has a part that is small, as by the policy `fixed`": Case(
        all_of(0.16), all_of(0.0), slices=(10_000, 10_000)
    ),
    "has set longer slices, and says that work was left": Case(all_of(0.9), unseen=True),
    "likewise, and does not say": Case(all_of(0.9), unseen=None),
    "likewise, with turns": Case(all_of(0.9), all_of(0.1), unseen=True, slices=(1_000, 9_000)),
    "while another waits for it": Case(all_of(0.5), busy=never, waited=all_of(1.0)),
}


@pytest.mark.parametrize("name", LIARS)
def test_who_takes_time_is_ended(name: str) -> None:
    found = judged(LIARS[name].looks())
    assert found, name
    at, verdict = found[0]
    assert (verdict.pid, verdict.tenant, verdict.cause) == (1, "red", "time")
    assert at <= SETTINGS.time_seconds + LATE + 0.25
    assert "outside its turns" in verdict.reason


def test_a_liar_that_comes_later_is_found_once_it_has_had_a_tenth_of_the_time() -> None:
    late = replace(LIARS["asks for nothing and has much"], begins=15.0)
    at, verdict = judged(late.looks())[0]
    assert at == 16.0
    assert "0.9 of 5.0 s outside its turns, while others" in verdict.reason


def test_it_is_said_what_may_be_left_of_its_turns() -> None:
    _, verdict = judged(LIARS["has set longer slices, and says that work was left"].looks())[0]
    assert "outside its turns, of which 2.5 s may be work left there, while" in verdict.reason


def test_the_worker_that_accounts_for_least_is_ended() -> None:
    case = LIARS["asks for nothing and has much"]
    looks = [
        replace(look, workers=(*look.workers, replace(look.workers[0], pid=3, used_ns=0)))
        for look in case.looks()
    ]
    assert {verdict.pid for _, verdict in judged(looks)} == {1}


# Honest ones ------------------------------------------------------------------------------------

HONEST = {
    "in its turns": Case(all_of(0.5), all_of(0.5), busy=all_of(0.5)),
    "a little outside": Case(all_of(0.09)),
    "a third more than its turns": Case(all_of(0.66), all_of(0.5)),
    "nobody else has work": Case(all_of(1.0), busy=all_of(0.05)),
    "two workers at once in its turns, which samples count twice": Case(
        all_of(0.7), all_of(0.5), busy=all_of(0.5)
    ),
    # Turns end when the work is over: they are longer, and nothing is outside.
    "long kernels, graphs, what kernels launch": Case(in_turns(1.9, 0.8), in_turns(1.9, 0.8)),
    # A turn that does not end within 2 s is lost, and the work goes on.
    "a kernel of nine seconds": Case(
        in_turns(20.0, 0.45),
        in_turns(20.0, 0.1),
        late=lambda t: 2 <= t % 20 < 9,
        overdue=lambda t: t // 20 + (t % 20 >= 2),
    ),
    "a kernel without end": Case(all_of(1.0), late=lambda t: True, overdue=lambda t: 1),
    "turns lost again and again": Case(all_of(0.5), overdue=lambda t: t // 3),
    # Kernels of NCCL that wait for another rank, behind turns that were given back: they have what
    # the hardware's slices give.
    "a rank without a gang": Case(all_of(0.75), all_of(0.5), unseen=True),
    "a rank with a quarter": Case(
        all_of(0.25 + 0.75 * 0.25), all_of(0.25), unseen=True, slices=(10_000, 30_000)
    ),
    "a rank that waits for a minute": Case(all_of(0.5), unseen=True),
    "a rank beside one that has little work": Case(
        all_of(0.9), all_of(0.1), busy=all_of(0.2), unseen=True
    ),
    "two ranks on one GPU, where the driver has its own slices": Case(
        all_of(0.5), unseen=True, slices=(0, 0)
    ),
    "a worker of an earlier release": Case(all_of(0.5), unseen=None),
    "a kernel in front of a host function": Case(all_of(0.6), all_of(0.3), unseen=True),
    # What is made, loaded and compiled keeps no processor of the GPU for long.
    "a context is made again and again": Case(all_of(0.08), in_turns(1.0, 0.02)),
    "copies, which need no turn": Case(all_of(0.05)),
    # Samples.
    "samples of a second, a second late": Case(
        in_turns(10.0, 0.1), in_turns(10.0, 0.1), sampled=in_steps(1.0, 1.0)
    ),
    "likewise, of much work": Case(
        in_turns(14.0, 0.5), in_turns(14.0, 0.5), sampled=in_steps(1.0, 1.0)
    ),
    "none come": Case(all_of(1.0), sampled=never),
    # Others' rules.
    "high priority": Case(all_of(1.0), beside=lambda t: True),
    "high priority now and then": Case(all_of(1.0), beside=lambda t: t % 4 < 0.3),
    "no turns": Case(all_of(1.0), turns=lambda t: False),
    "no turns for a while": Case(all_of(1.0), turns=lambda t: t % 6 > 0.5),
    "ever another board, or samples that are too late": Case(all_of(1.0), era=lambda t: t // 4),
    "looks far apart": Case(all_of(1.0), every=APART_MS / 1000 + 0.1),
    "for four seconds": Case(lambda t: min(t, 4.0) * 0.12),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_work_outside_of_turns(name: str) -> None:
    assert judged(HONEST[name].looks()) == []


def test_a_server_that_was_stopped() -> None:
    """While nobody looked, and its arbiter was away, all worked at once; that is said later."""
    before = Case(never, never, seconds=10.0)
    after = Case(lambda t: min(t, 21.0) - 10.0, never, sampled=in_steps(1.0, 1.0), seconds=60.0)
    looks = [*before.looks(), *[look for look in after.looks() if look.now_ns > 20 * NS]]
    assert judged(looks) == []


def test_a_clock_that_goes_back() -> None:
    """The arbiter's own does not; another arbiter has another board."""
    looks = Case(all_of(0.5), all_of(0.5)).looks()
    again = [replace(look, era=1) for look in Case(all_of(0.5), all_of(0.5)).looks()]
    assert judged([*looks, *again]) == []


def test_a_look_at_nothing() -> None:
    looks = [Look(int(t * NS), (), {}) for t in range(20)]
    assert judged(looks) == []


def test_sessions_that_end_soon_are_judged() -> None:
    """Each is a new worker, and has little time until it ends."""

    def renewed(look: Look) -> Look:
        number, since = divmod(look.now_ns, 3 * NS)
        red = replace(look.workers[0], pid=10 + number, used_ns=since * 9 // 10, busy_ns=0)
        return replace(look, workers=(red, look.workers[1]))

    found = judged([renewed(look) for look in Case(never).looks()])
    assert found[0][0] <= SETTINGS.time_seconds + LATE + 1
    assert found[0][1].pid >= 10


@pytest.mark.parametrize("earlier", [True, False])
def test_turns_that_are_not_known(earlier: bool) -> None:
    looks = LIARS["asks for nothing and has much"].looks()
    for i, look in enumerate(looks):
        if earlier or i % 2:
            unknown = replace(look.tenants["red"], held_ns=None)
            looks[i] = replace(look, tenants={**look.tenants, "red": unknown})
    assert judged(looks) == [] if earlier else True


def test_a_tenant_that_comes_anew() -> None:
    """Its account begins at nothing, and its worker is another."""

    def anew(look: Look) -> Look:
        number, since = divmod(look.now_ns, 7 * NS)
        had = since * 4 // 10
        red = replace(look.workers[0], pid=10 + number, used_ns=had)
        tenants = {**look.tenants, "red": replace(look.tenants["red"], held_ns=had)}
        return replace(look, workers=(red, look.workers[1]), tenants=tenants)

    looks = [anew(look) for look in Case(all_of(0.4), busy=all_of(0.5)).looks()]
    assert judged(looks) == []
    gone = [
        look if look.now_ns % (7 * NS) else replace(look, tenants={"blue": look.tenants["blue"]})
        for look in looks
    ]
    assert judged(gone) == []


def test_what_is_found_is_said() -> None:
    watched = History(SETTINGS, SOFT, 0)
    for look in HONEST["a rank with a quarter"].looks():
        watched.look(look)
    times, held_back = watched.times["red"]
    assert times is not None
    assert (times.span, times.used) == (5 * NS, 2_187_500_000)
    assert "outlives its turns" in held_back
    assert watched.times["blue"][1] == "it worked in its turns"
    for look in HONEST["high priority"].looks():
        watched.look(replace(look, now_ns=look.now_ns + 100 * NS))
    assert watched.times["red"] == (None, "it may work beside others")


# For any numbers ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, NS), st.integers(0, NS), st.integers(0, 4 * NS)), max_size=40
    ),
    st.sampled_from([True, False, None]),
)
def test_who_works_in_its_turns_is_never_ended(
    steps: list[tuple[int, int, int]], unseen: bool | None
) -> None:
    looks = []
    used = held = other = 0
    for i, (more, spare, demand) in enumerate(steps):
        used, held, other = used + more, held + more + spare, other + demand
        look = Case(never, unseen=unseen).look(float(i))
        tenants = {"red": SeenTenant(0, held, 0), "blue": SeenTenant(0, 0, other)}
        workers = (replace(look.workers[0], used_ns=used), look.workers[1])
        looks.append(replace(look, workers=workers, tenants=tenants))
    assert judged(looks) == []


@given(
    st.integers(1, 99),
    st.integers(1, 200_000),
    st.integers(1, 200_000),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_what_slices_give_is_never_held_against_who_left_it(
    percent: int, mine: int, theirs: int, wanted: float, stands: float
) -> None:
    """Turns of any length, work of any length that outlives them, a neighbour with any demand."""
    held = percent / 100
    rest = 1 - held
    busy = min(wanted, rest)
    outside = (rest - busy + busy * mine / (mine + theirs)) * stands
    case = Case(
        all_of(held + outside),
        all_of(held),
        all_of(busy),
        unseen=True,
        slices=(mine, theirs),
        seconds=20.0,
    )
    assert judged(case.looks()) == []
