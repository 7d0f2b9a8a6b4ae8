"""Reservations: what they keep free, what may go before them, and how they begin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpupool_manager.calendar import Plans
from gpupool_manager.problems import Problem
from gpupool_manager.records import Ending, Lease, Quota, Reservation
from gpupool_manager.reservations import MOST, MOST_EACH, Reclaims
from gpupool_manager.transaction import Transaction
from gpupool_manager.trial import Trial
from gpupool_manager.waiting import OrderRules
from queue_world import GRACE, QueueWorld

HOUR = 3600.0


def pool(
    *quotas: Quota, gpus: int = 4, fair: bool = False, reclaims: Reclaims = "none"
) -> QueueWorld:
    quotas = quotas or (Quota("a"), Quota("b"))
    return QueueWorld(*quotas, gpus=gpus, order=OrderRules(fair=fair), reclaims=reclaims)


def begun(world: QueueWorld, reservation: Reservation) -> Lease:
    """The lease that it has become."""
    return world.ledger.leases[reservation.id]


def refused(world: QueueWorld, *reserve: Any) -> str:
    with pytest.raises(Problem) as found:
        world.reserve(*reserve)
    return f"{found.value.code}: {found.value.detail}"


@pytest.mark.parametrize("fair", [False, True])
def test_what_may_last_longer_leaves_it_free(fair: bool) -> None:
    world = pool(fair=fair)
    kept = world.reserve("a", 3, 2 * HOUR, HOUR)
    first, second = world.ask("b"), world.ask("b")
    assert (first.state, second.state) == ("active", "queued")
    assert second.reason.startswith("reserved: what is free is so from 1970-01-12T15:46Z on")
    short = world.ask("b", gpus=3, time_limit=2 * HOUR)
    longer = world.ask("b", time_limit=2 * HOUR + 1)
    assert (short.state, longer.state) == ("active", "queued")
    world.later(2 * HOUR)
    assert short.state == "expired"
    lease = begun(world, kept)
    assert (lease.state, lease.time_end) == ("active", kept.end)
    assert second.state == longer.state == "queued"
    world.later(HOUR)
    assert (lease.state, second.state, longer.state) == ("expired", "active", "active")


def test_one_that_is_cancelled_leaves_everything() -> None:
    world = pool()
    kept = world.reserve("a", 4, HOUR, HOUR)
    waits = world.ask("b")
    assert waits.state == "queued"
    world.cancel(kept)
    assert waits.state == "active"
    world.later(2 * HOUR)
    assert kept.id not in world.ledger.leases


def test_whoever_waits_long_does_not_hold_up_what_ends_before() -> None:
    world = pool()
    world.reserve("a", 4, 4 * HOUR, HOUR)
    large = world.ask("b", gpus=4)
    world.later(1000)
    start = world.leases.expected_start(large, world.now)
    assert start == 1_000_000 + 5 * HOUR, "behind the reservation"
    short = world.ask("b", gpus=4, time_limit=HOUR)
    assert short.state == "active"
    world.later(5 * HOUR)
    assert large.state == "active"


def test_the_start_of_what_fits_before_is_before() -> None:
    world = pool()
    running = world.ask("b", gpus=4, time_limit=HOUR)
    world.reserve("a", 4, 4 * HOUR, HOUR)
    fits = world.ask("b", gpus=4, time_limit=3 * HOUR)
    late = world.ask("b", gpus=4, time_limit=3 * HOUR + 1)
    assert world.leases.expected_start(fits, world.now) == running.time_end
    assert world.leases.expected_start(late, world.now) == 1_000_000 + 5 * HOUR


def test_parts_of_gpus_are_reserved() -> None:
    world = pool(gpus=1)
    world.reserve("a", 1, HOUR, HOUR, 600)
    fits, too_much = world.ask("b", part=400), world.ask("b", part=100)
    assert (fits.state, too_much.state) == ("active", "queued")
    assert world.ask("b", part=600, time_limit=HOUR).state == "active"


def test_it_begins_before_all_who_wait() -> None:
    world = pool(Quota("a"), Quota("b", priority=100), gpus=1)
    holds = world.ask("b")
    waits = world.ask("b", priority=100)
    kept = world.reserve("a", 1, HOUR, 2 * HOUR)
    assert world.reservations.in_the_way(kept) == 1
    world.later(HOUR)
    lease = begun(world, kept)
    assert (lease.state, holds.state) == ("queued", "active"), "nobody is taken anything"
    assert world.waiting()[0].lease is lease
    world.later(HOUR)
    world.end(holds)
    assert (lease.state, waits.state) == ("active", "queued")
    assert lease.time_end == kept.end, "late, it ends when that was said all the same"


def test_one_that_never_finds_room_ends_with_its_time() -> None:
    world = pool(gpus=1)
    world.ask("b")
    kept = world.reserve("a", 1, HOUR, HOUR)
    world.later(HOUR)
    lease = begun(world, kept)
    world.later(HOUR)
    assert lease.state == "timed-out"
    assert kept.id not in world.ledger.leases


@pytest.mark.parametrize("reclaims", ["none", "borrowed", "all"])
def test_who_is_in_the_way_goes_back_if_that_is_the_policy(reclaims: Reclaims) -> None:
    quotas = Quota("a"), Quota("b", gpus=1, borrow=True)
    world = pool(*quotas, gpus=2, reclaims=reclaims)
    own, lent = world.ask("b"), world.ask("b", beyond="borrow")
    kept = world.reserve("a", 2, HOUR, HOUR)
    world.later(HOUR - GRACE - 1)
    assert own.ending is lent.ending is None
    world.later(1)
    warned = [lease for lease in (own, lent) if lease.ending is not None]
    assert warned == {"none": [], "borrowed": [lent], "all": [own, lent]}[reclaims]
    for lease in warned:
        assert lease.ending is not None and lease.ending.at == kept.start
        assert lease.ending.reason == "its GPUs are reserved from 1970-01-12T14:46Z on"
    world.later(1)
    assert world.events == [], "nothing is said twice"
    world.later(GRACE - 1)
    assert all(lease.state == "reclaimed" for lease in warned)
    assert begun(world, kept).state == ("active" if reclaims == "all" else "queued")


def test_as_few_as_will_do_go_back_and_are_kept_if_it_is_cancelled() -> None:
    world = pool(reclaims="all")
    leases = [world.ask("b") for _ in range(4)]
    kept = world.reserve("a", 1, HOUR, HOUR)
    world.later(HOUR - GRACE)
    assert [lease.ending is not None for lease in leases].count(True) == 1
    world.cancel(kept)
    assert "lease.kept" in world.events
    assert all(lease.ending is None for lease in leases)
    world.later(GRACE)
    assert all(lease.state == "active" for lease in leases)


def test_nobody_is_warned_any_more_once_there_is_room() -> None:
    world = pool(gpus=2, reclaims="all")
    first, second = world.ask("b"), world.ask("b")
    world.reserve("a", 1, HOUR, HOUR)
    world.later(HOUR - GRACE)
    (warned,) = (lease for lease in (first, second) if lease.ending)
    world.end(second if warned is first else first)
    world.later(1)
    assert warned.ending is None
    world.later(GRACE)
    assert warned.state == "active"


def test_a_manager_that_was_away_warns_late() -> None:
    world = pool(gpus=1, reclaims="all")
    holds = world.ask("b")
    kept = world.reserve("a", 1, HOUR, HOUR)
    world.now += HOUR + 10
    world.restart()
    world.later(0)
    lease = begun(world, kept)
    assert lease.state == "queued"
    world.later(0)
    assert holds.ending is not None and holds.ending.at == world.now + GRACE
    world.later(GRACE)
    assert (holds.state, lease.state) == ("reclaimed", "active")


def test_reservations_of_one_time_share_the_pool() -> None:
    world = pool()
    first = world.reserve("a", 3, HOUR, HOUR)
    assert refused(world, "b", 2, HOUR + 60, HOUR).startswith("full: ")
    assert refused(world, "b", 2, 60, 2 * HOUR) == (
        "full: it would take what is reserved for that time already"
    )
    beside, behind = world.reserve("b", 1, HOUR, HOUR), world.reserve("b", 4, 2 * HOUR, HOUR)
    world.later(HOUR)
    assert begun(world, first).state == begun(world, beside).state == "active"
    world.later(HOUR)
    assert begun(world, behind).state == "active"


def test_a_quota_has_to_have_room_for_all_of_one_time() -> None:
    world = pool(Quota("a", gpus=2), Quota("b"))
    world.ask("a", gpus=2)  # of now: that is another time
    world.reserve("a", 1, HOUR, HOUR)
    assert refused(world, "a", 2, HOUR + 60, HOUR).startswith("over-quota: ")
    world.reserve("a", 2, 2 * HOUR, HOUR)


def test_it_waits_for_its_quota_as_others_do() -> None:
    world = pool(Quota("a", gpus=1), Quota("b"), gpus=2)
    holds = world.ask("a")
    kept = world.reserve("a", 1, HOUR, HOUR)
    world.later(HOUR)
    lease = begun(world, kept)
    assert lease.state == "queued"
    assert world.ledger.queue[lease.id].reason.startswith("quota: ")
    assert world.ask("b").state == "active", "who waits for a quota holds nobody back"
    world.end(holds)
    assert lease.state == "active"


def test_it_is_planned_on_what_its_tenant_may_have() -> None:
    world = pool(Quota("a", models=["NVIDIA H2*"]), Quota("b"))
    for gpu in world._loaded.gpus[:2]:
        gpu.model = "another"
    world._load()
    world.reserve("a", 2, HOUR, HOUR)
    assert sorted(grant.gpu for grant in world.ask("b", gpus=2).grants) == ["n0-0", "n0-1"]


def test_what_is_certain_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lease that ended cost a plan of the whole pool, which took seconds for large ones."""
    world = pool(gpus=8)
    calendar, made, ended = world.leases.calendar, 0, 0
    plan, end = calendar.plan, Trial.end

    def counted_plan(reservations: Iterable[Reservation]) -> Plans:
        nonlocal made
        made += 1
        return plan(reservations)

    def counted_end(trial: Trial, lease: Lease) -> None:
        nonlocal ended
        ended += 1
        end(trial, lease)

    timed = [world.ask("b", time_limit=number * HOUR + 1) for number in range(5)]
    monkeypatch.setattr(calendar, "plan", counted_plan)
    monkeypatch.setattr(Trial, "end", counted_end)
    for number in range(1, 6):
        world.reserve("a", 1, number * HOUR, HOUR)
    # Of each that is made: with it, and once before the first.
    assert (made, ended) == (6, 1 + 2 + 3 + 4 + 5)
    for lease in timed:
        world.end(lease)
        world.end(world.ask("b", time_limit=60))
    assert made == 6
    transaction = Transaction(world.now)
    node = world.ledger.nodes["n0"]
    node.labels = {"rack": "7"}
    world.ledger.refresh("n0")
    world.leases.pump(transaction)
    world.ask("b")
    assert made == 7


def test_a_large_pool_rests_before_it_plans_anew_what_is_not_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 10,000 GPUs each lease that ended, with one such reservation, cost 0.4 s."""
    world = QueueWorld(Quota("a"), Quota("b"), nodes=64, gpus=8, reclaims="all")
    leases = [world.ask("b", 8) for _ in range(64)]
    kept = world.reserve("a", 16, HOUR, HOUR)
    calendar, made = world.leases.calendar, 0
    plan, room = calendar.plan, calendar.plans()[kept.id]
    assert room is not None and len(room.ended) == 2
    others = [lease for lease in leases if lease not in room.ended]

    def counted(reservations: Iterable[Reservation]) -> Plans:
        nonlocal made
        made += 1
        return plan(reservations)

    monkeypatch.setattr(calendar, "plan", counted)
    world.end(room.ended[0])
    assert (world.reservations.in_the_way(kept), made) == (1, 0)
    with pytest.raises(Problem):  # what was counted on is kept all the same
        world.ask("b", wait=0)
    world.end(others[0])
    assert (world.reservations.in_the_way(kept), made) == (1, 0)
    world.later(10)
    assert (world.reservations.in_the_way(kept), made) == (0, 1)
    world.later(HOUR)
    assert begun(world, kept).state == "active"


def test_a_plan_that_counted_on_an_end_is_made_again_if_there_is_none() -> None:
    world = pool(gpus=2)
    first, second = world.ask("b"), world.ask("b")
    ending = Ending(world.now + HOUR, "it is idle", cause="idle")
    world.ledger.announce(first, ending)
    kept = world.reserve("a", 1, 2 * HOUR, HOUR)
    assert world.reservations.in_the_way(kept) == 0
    world.ledger.announce(first, None)
    world.ledger.announce(second, ending)
    world.pump()
    assert world.reservations.in_the_way(kept) == 0
    world.ledger.announce(second, None)
    world.pump()
    assert world.reservations.in_the_way(kept) == 1


def test_what_cannot_be_is_refused() -> None:
    world = pool(*map(Quota, "abcde"))
    assert refused(world, "a", 5, HOUR, HOUR).startswith("impossible: ")
    assert refused(world, "nobody", 1, HOUR, HOUR).startswith("not-found: ")
    assert refused(world, "a", 1, -HOUR, 2 * HOUR).startswith("bad-request: ")
    assert refused(world, "a", 1, 400 * 24 * HOUR, HOUR).startswith("bad-request: ")


def test_so_many_are_kept_and_of_one_tenant() -> None:
    world = pool(*map(Quota, "abcdef"))
    for name in "abcd":
        for number in range(MOST_EACH):
            world.reserve(name, 1, number * HOUR, HOUR, 1)
        assert "of a tenant" in refused(world, name, 1, HOUR, HOUR) or name == "d"
    assert 4 * MOST_EACH == MOST
    assert refused(world, "e", 1, HOUR, HOUR).startswith(f"full: {MOST} ")


def test_another_manager_keeps_it() -> None:
    world = pool()
    kept = world.reserve("a", 4, HOUR, HOUR)
    world.restart()
    assert world.ask("b").state == "queued"
    world.later(HOUR)
    lease = begun(world, kept)
    assert lease.state == "active"
    world.restart()
    assert begun(world, kept).time_end == kept.end


def test_nothing_grows_into_it() -> None:
    world = pool(gpus=1)
    lease = world.ask("b", part=400)
    world.reserve("a", 1, HOUR, HOUR, 500)
    with pytest.raises(Problem, match="what is free is reserved"):
        world.resize(lease, share_permille=501)
    world.resize(lease, share_permille=500)


def test_a_lease_that_began_as_one_is_in_nobodys_way() -> None:
    world = pool(gpus=1, reclaims="all")
    first = world.reserve("a", 1, 0, HOUR)
    world.later(0)
    assert begun(world, first).state == "active"
    assert refused(world, "b", 1, HOUR / 2, HOUR).startswith("full: ")
    second = world.reserve("b", 1, HOUR, HOUR)
    world.later(HOUR)
    assert begun(world, second).state == "active"


def test_what_is_kept_free_is_not_lent_and_nothing_is_taken_back_for_it() -> None:
    world = pool(Quota("a"), Quota("b", gpus=0, borrow=True), gpus=2)
    world.reserve("a", 1, HOUR, HOUR)
    lent, more = world.ask("b", beyond="borrow"), world.ask("b", beyond="borrow")
    assert (lent.state, more.state) == ("active", "queued")


def test_one_that_begins_finds_what_was_planned_though_others_are_to_come() -> None:
    world = pool(gpus=4)
    timed = world.ask("b", gpus=2, time_limit=HOUR / 2)
    long = world.ask("b", gpus=2, time_limit=1.5 * HOUR)
    first = world.reserve("a", 2, HOUR, 2 * HOUR)
    second = world.reserve("a", 2, 2 * HOUR, HOUR)
    assert world.reservations.in_the_way(first) == world.reservations.in_the_way(second) == 0
    world.later(HOUR / 2)
    assert (timed.state, long.state) == ("expired", "active")
    world.later(HOUR / 2)
    assert begun(world, first).state == "active"
    world.later(HOUR)
    assert begun(world, second).state == "active"
