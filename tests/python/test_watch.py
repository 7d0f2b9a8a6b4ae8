"""Who is taken for a liar, as tables and for any numbers; the clock is the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_server.usage import SOFT
from gpupool_server.watch import (
    ASKED_SECONDS,
    GRANULE,
    NS,
    History,
    Look,
    Own,
    SeenTenant,
    SeenWorker,
    Verdict,
    others_demand,
    time_beyond,
    time_beyond_share,
    too_much_memory,
)
from gpupool_server.watch_settings import WatchSettings

MIB = 1 << 20
SETTINGS = WatchSettings.model_construct()
REAL = Own(640 * MIB, 128 * MIB)


def history(own: Own = SOFT) -> History:
    return History(SETTINGS, own, 0)


def looked(
    held: Sequence[int | None],
    charged: Sequence[int] | None = None,
    limit: int = 64 * MIB,
    at: float = 0.0,
) -> Look:
    """Workers 1, 2, … of the tenant red, and an honest neighbour."""
    own = charged if charged is not None else [each or 0 for each in held]
    workers = [
        SeenWorker(pid, "red", has, asked)
        for pid, (has, asked) in enumerate(zip(held, own, strict=True), 1)
    ]
    workers.append(SeenWorker(99, "blue", 8 * MIB, 8 * MIB))
    tenants = {"red": SeenTenant(limit), "blue": SeenTenant(8 * MIB)}
    return Look(int(at * NS), tuple(workers), tenants)


def after(watched: History, look: Look, times: int, every: float = 0.1) -> list[Verdict]:
    """What comes of so many looks at the same."""
    found: list[Verdict] = []
    for i in range(times):
        found += watched.look(replace(look, now_ns=look.now_ns + int(i * every * NS)))
    return found


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "limit", "own", "expected"),
    [
        ([64 * MIB], 64 * MIB, 0, 0),
        ([64 * MIB + GRANULE], 64 * MIB, 0, 0),
        ([64 * MIB + GRANULE + 1], 64 * MIB, 0, 1),
        ([34 * MIB, 34 * MIB], 64 * MIB, 0, 0),  # a granule each
        ([34 * MIB, 34 * MIB + 1], 64 * MIB, 0, 1),
        ([None, 66 * MIB], 64 * MIB, 0, 0),
        ([None, 67 * MIB], 64 * MIB, 0, MIB),
        ([1 << 40], 0, 0, 0),  # no limit
        ([600 * MIB], 64 * MIB, 640 * MIB, 0),  # the driver's own
        ([], 64 * MIB, 0, 0),
    ],
)
def test_memory_beyond_the_grant(
    held: list[int | None], limit: int, own: int, expected: int
) -> None:
    assert too_much_memory(looked(held, limit=limit), "red", own) == expected


def test_memory_that_lasts_ends_the_one_that_hides_it() -> None:
    watched = history()
    look = looked([48 * MIB, 40 * MIB], charged=[48 * MIB, 0])
    assert after(watched, look, SOFT.looks - 1) == []
    assert watched.hurried
    (asked,) = after(watched, look, 1)
    assert (asked.pid, asked.liar) == (2, False)
    assert asked.reason == "the driver took 24 MiB beyond the limit of the session"
    assert after(watched, replace(look, now_ns=NS), 10) == []  # it has time to end by itself
    (verdict,) = after(watched, replace(look, now_ns=ASKED_SECONDS * NS), 1)
    assert (verdict.pid, verdict.tenant, verdict.cause) == (2, "red", "memory")
    assert verdict.liar
    assert "88MiB of GPU 0's memory and may have 64MiB" in verdict.reason


def test_who_ends_when_it_is_asked_is_no_liar() -> None:
    watched = history()
    (asked,) = after(watched, looked([80 * MIB], charged=[0]), SOFT.looks)
    assert not asked.liar
    assert after(watched, looked([], at=1.0), 100) == []
    (again,) = after(watched, looked([80 * MIB], charged=[0], at=90.0), SOFT.looks)
    assert not again.liar  # another that has the pid


def test_who_was_asked_does_not_begin_anew_by_giving_back() -> None:
    watched = history()
    after(watched, looked([80 * MIB], charged=[0]), SOFT.looks)
    assert after(watched, looked([0], at=1.0), 1) == []
    found = after(watched, looked([80 * MIB], charged=[0], at=9.0), SOFT.looks)
    assert [verdict.liar for verdict in found] == [True]


@pytest.mark.parametrize("beyond", [0, GRANULE])
def test_who_has_said_what_it_has_does_not_lie(beyond: int) -> None:
    """After their arbiter was away two may have more than their tenant, each within its limit."""
    look = looked([60 * MIB + beyond, 60 * MIB + beyond], charged=[60 * MIB, 60 * MIB])
    assert too_much_memory(look, "red", 0) > 0
    assert after(history(), look, 1000, every=1.0) == []


def test_who_has_said_it_is_not_held_for_who_has_not() -> None:
    look = looked([60 * MIB, 60 * MIB], charged=[60 * MIB, 50 * MIB])
    assert [verdict.pid for verdict in after(history(), look, SOFT.looks)] == [2]


def test_memory_that_is_charged_beyond_the_limit_counts_as_well() -> None:
    (verdict,) = after(history(), looked([200 * MIB], charged=[200 * MIB]), SOFT.looks)
    assert verdict.pid == 1


def test_a_moment_is_nothing() -> None:
    """A module that does not fit is there until its worker has unloaded it."""
    watched = history()
    for _ in range(50):
        assert after(watched, looked([80 * MIB], charged=[64 * MIB]), SOFT.looks - 1) == []
        assert after(watched, looked([64 * MIB]), 1) == []
    assert not watched.hurried


def test_what_the_driver_may_take_by_itself() -> None:
    context = looked([64 * MIB + 600 * MIB], charged=[64 * MIB])
    watched = history(REAL)
    assert after(watched, context, 20, every=1.0) == []  # a context that is being made
    (verdict,) = after(watched, replace(context, now_ns=30 * NS), 1)  # but it stays
    assert verdict.cause == "memory"
    code = looked([64 * MIB + 128 * MIB], charged=[64 * MIB])
    assert after(history(REAL), code, 1000, every=1.0) == []


def test_who_has_far_too_much_of_a_real_gpu_is_ended_within_a_second() -> None:
    watched, far = history(REAL), looked([64 * MIB + 700 * MIB])
    (asked,) = after(watched, far, REAL.looks)
    assert not asked.liar
    at = int((REAL.looks - 1) * 0.1 * NS)
    assert after(watched, replace(far, now_ns=at + 2 * NS // 10), 1) == []
    (verdict,) = after(watched, replace(far, now_ns=at + 3 * NS // 10), 1)
    assert verdict.liar


def test_the_next_liar_of_a_tenant_has_its_own_looks() -> None:
    watched = history()
    look = looked([100 * MIB, 90 * MIB], charged=[0, 0])
    found = after(watched, look, SOFT.looks)
    assert [(verdict.pid, verdict.liar) for verdict in found] == [(2, False), (1, False)]


def test_a_tenant_that_is_gone_is_forgotten() -> None:
    watched = history()
    after(watched, looked([80 * MIB], charged=[0]), SOFT.looks - 1)
    assert watched.look(Look(0, (), {})) == []
    assert not watched.hurried


# Time -----------------------------------------------------------------------------------------


def worked(
    at: float,
    used: float,
    held: float,
    other: float = 0.0,
    late: bool = False,
    beside: bool = False,
    turns: bool = True,
    era: int = 0,
    parts: int = 0,
) -> Look:
    """red's worker has used so many seconds of the GPU, and red has had turns for so many."""
    return Look(
        int(at * NS),
        (
            SeenWorker(1, "red", None, 0, int(used * NS), int(held * NS), late),
            SeenWorker(2, "blue", None, 0, 0, int(other * NS)),
        ),
        {
            "red": SeenTenant(0, int(held * NS), int(held * NS), beside, parts),
            "blue": SeenTenant(0, int(other * NS), int(other * NS), parts=parts),
        },
        turns,
        era,
    )


def over_time(looks: Sequence[Look]) -> list[Verdict]:
    watched = history()
    return [verdict for look in looks for verdict in watched.look(look)]


def test_work_outside_of_turns_while_others_wait() -> None:
    found = over_time([worked(t / 2, t / 4, 0.0, other=t / 2) for t in range(12)])
    assert [(v.pid, v.cause) for v in found] == [(1, "time")]
    assert "2.5 of 5.0 s outside its turns" in found[0].reason


def test_work_beyond_a_share_outside_of_turns() -> None:
    looks = [worked(t / 2, t / 3, t / 8, other=t / 2, parts=10) for t in range(12)]
    assert [(v.pid, v.cause) for v in over_time(looks)] == [(1, "time")]


def test_a_part_is_of_those_who_have_work() -> None:
    first, last = worked(0.0, 0.0, 0.0, parts=10), worked(8.0, 7.0, 0.0, other=8.0, parts=10)
    assert time_beyond_share(first, last, "red") == 3 * NS
    idle = replace(last, tenants={**last.tenants, "green": SeenTenant(0, 0, 0, parts=80)})
    assert time_beyond_share(first, idle, "red") == 3 * NS
    alone = worked(8.0, 7.0, 0.0, parts=10)
    assert time_beyond_share(first, alone, "red") == 0
    bound = replace(alone.tenants["red"], ceiling=250)
    assert time_beyond_share(first, replace(alone, tenants={"red": bound}), "red") == 5 * NS
    unknown = worked(8.0, 7.0, 0.0, other=8.0)
    assert time_beyond_share(first, unknown, "red") == 7 * NS


def test_a_worker_that_claims_to_work_has_no_turns_by_that() -> None:
    """busy is what it says itself; the turns are counted by the arbiter."""
    looks = [worked(t / 2, t / 4, 0.0, other=t / 2) for t in range(12)]
    looks = [
        replace(k, workers=tuple(replace(w, busy_ns=10**12 * i) for w in k.workers))
        for i, k in enumerate(looks)
    ]
    assert [v.cause for v in over_time(looks)] == ["time"]


def long_kernel(every: float) -> list[Look]:
    """red works for 9 s and loses its turn at 2 s; looks are so far apart."""
    looks = []
    for i in range(int(40 / every)):
        at = i * every
        phase = at % 20
        used = at // 20 * 9 + min(phase, 9)
        held = at // 20 * 2 + min(phase, 2)
        look = worked(at, used, held, other=at, late=2 <= phase < 9)
        lost = int(at // 20) + (phase >= 2)
        red = replace(look.workers[0], overdue=lost)
        looks.append(replace(look, workers=(red, look.workers[1])))
    return looks


@pytest.mark.parametrize("every", [0.5, 1.0, 2.0, 9.5, 10.0])
def test_a_long_kernel_between_looks(every: float) -> None:
    assert over_time(long_kernel(every)) == []


def test_a_turn_that_was_lost_between_looks() -> None:
    looks = [worked(t / 2, t / 4, 0.0, other=t / 2) for t in range(12)]
    lost = [
        replace(look, workers=(replace(look.workers[0], overdue=i > 5), look.workers[1]))
        for i, look in enumerate(looks)
    ]
    assert [v.cause for v in over_time(looks)] == ["time"]
    assert over_time(lost) == []


def test_looks_far_apart_are_not_compared() -> None:
    assert over_time([worked(2.0 * t, t, 0.0, other=2.0 * t) for t in range(60)]) == []


HONEST = {
    "in its turns": [worked(t / 2, t / 4, t / 4, other=t / 4) for t in range(60)],
    "alone": [worked(t / 2, t / 2, 0.0, other=0.0) for t in range(60)],
    "a little outside": [worked(t / 2, t / 22, 0.0, other=t / 2) for t in range(60)],
    "a third more": [worked(t / 2, t / 3, t / 4, other=t / 2) for t in range(60)],
    "a long kernel": [worked(t / 2, t / 2, 0.0, other=t / 2, late=True) for t in range(60)],
    "high priority": [worked(t / 2, t / 2, 0.0, other=t / 2, beside=True) for t in range(60)],
    "no turns": [worked(t / 2, t / 2, 0.0, other=t / 2, turns=False) for t in range(60)],
    "ever another board": [worked(t / 2, t / 2, 0.0, other=t / 2, era=t) for t in range(60)],
    "for three seconds": [worked(t / 2, t / 2, 0.0, other=t / 2) for t in range(7)],
    "collectives within its share": [
        worked(t / 2, t / 4, t / 8, other=t / 2, parts=10) for t in range(60)
    ],
    "collectives a little beyond it": [
        worked(t / 2, t / 3.5, t / 8, other=t / 2, parts=10) for t in range(60)
    ],
    "nobody else has work": [worked(t / 2, t / 2, 0.0, other=t / 30) for t in range(60)],
}


@pytest.mark.parametrize("name", HONEST)
def test_time_that_nobody_is_ended_for(name: str) -> None:
    assert over_time(HONEST[name]) == []


def test_time_that_is_not_known() -> None:
    first, last = worked(0, 0.0, 0.0), worked(9, 9.0, 0.0, other=9.0)
    assert time_beyond(first, last, "red") == 9 * NS
    assert others_demand(first, last, "red") == 9 * NS
    older = replace(last, tenants={**last.tenants, "red": SeenTenant(0)})
    assert time_beyond(first, older, "red") is None
    assert time_beyond(last, first, "red") == 0
    twice = replace(last, tenants={**last.tenants, "red": SeenTenant(0, 6 * NS)})
    assert time_beyond(first, twice, "red") == 0
    blind = tuple(replace(worker, used_ns=None) for worker in last.workers)
    assert time_beyond(first, replace(last, workers=blind), "red") == 0
    assert time_beyond(first, replace(last, tenants={}), "red") is None


# For any numbers ------------------------------------------------------------------------------

SIZES = st.integers(0, 1 << 38)


@given(
    st.lists(st.lists(st.tuples(SIZES, st.booleans()), max_size=4), min_size=1, max_size=12),
    st.integers(1, 1 << 40),
)
def test_whoever_keeps_to_its_limit_is_never_ended(
    looks: list[list[tuple[int, bool]]], limit: int
) -> None:
    """Whatever is charged at the moment, and whatever of it cannot be seen."""
    watched = history()
    for i, workers in enumerate(looks):
        left, held = limit, list[int | None]()
        for wanted, seen in workers:
            has = min(wanted, left)
            left -= has
            held.append(has + GRANULE if seen else None)
        look = looked(held, charged=[0] * len(held), limit=limit, at=float(i * 40))
        assert watched.look(look) == []


@given(
    st.lists(SIZES, min_size=1, max_size=4),
    st.integers(1, 1 << 36),
    st.integers(1, 1 << 36),
    st.sampled_from([SOFT, REAL]),
)
def test_whoever_stays_beyond_is_ended(
    charged: list[int], limit: int, beyond: int, own: Own
) -> None:
    allowed = limit + len(charged) * (own.context + GRANULE)
    held: list[int | None] = [1] * len(charged)
    held[-1] = allowed + beyond
    found = after(history(own), looked(held, charged=charged, limit=limit), own.looks)
    assert len(found) == 1 and found[0].tenant == "red"


@given(
    st.lists(st.tuples(st.integers(0, NS), st.integers(0, NS), st.integers(0, 4 * NS)), max_size=40)
)
def test_who_works_in_its_turns_is_never_ended(steps: list[tuple[int, int, int]]) -> None:
    watched = history()
    used = held = other = 0
    for i, (more, spare, demand) in enumerate(steps):
        used, held, other = used + more, held + more + spare, other + demand
        look = worked(float(i), used / NS, 0.0)
        tenants = {"red": SeenTenant(0, held, 0), "blue": SeenTenant(0, 0, other)}
        workers = (replace(look.workers[0], used_ns=used), look.workers[1])
        assert watched.look(replace(look, workers=workers, tenants=tenants)) == []
