"""Who is taken for a liar by its memory, as tables and for any numbers; the clock is the test's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_server.usage import SOFT
from gpupool_server.watch import ASKED_SECONDS, GRANULE, History, Own, too_much_memory
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
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


def forced(held: int, charged: int, limit: int, at: float) -> Look:
    """The tenant's limit was made less than it has in use."""
    look = looked([held], [charged], limit, at)
    red = SeenTenant(limit, forced=True, before=64 * MIB)
    return replace(look, tenants={**look.tenants, "red": red})


def test_what_was_in_use_when_a_limit_was_made_less_stays() -> None:
    """`lease resize --force` promises it; the session was ended a second later."""
    watched = history()
    assert after(watched, looked([50 * MIB], limit=64 * MIB), 3) == []
    assert after(watched, forced(50 * MIB, 50 * MIB, 20 * MIB, 1), 20) == []
    assert after(watched, forced(30 * MIB, 30 * MIB, 20 * MIB, 4), 3) == []
    given_back = after(watched, forced(50 * MIB, 50 * MIB, 20 * MIB, 5), 20)
    assert [verdict.pid for verdict in given_back] == [1]
    known_from_before = history()  # of a server that was started again
    assert after(known_from_before, forced(50 * MIB, 50 * MIB, 20 * MIB, 0), 20) == []
    assert after(known_from_before, forced(50 * MIB, 40 * MIB, 20 * MIB, 3), 20) != []


def test_a_workers_word_gets_it_no_more_than_the_limit_before() -> None:
    watched = history()
    assert after(watched, looked([50 * MIB], limit=64 * MIB), 3) == []
    assert after(watched, forced(90 * MIB, 90 * MIB, 20 * MIB, 1), 20) != []
    known_from_before = history()  # of a server that was started again
    assert after(known_from_before, forced(90 * MIB, 90 * MIB, 20 * MIB, 0), 20) != []


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
