"""Leases with a time limit: they end by it, are told before, and fill what others wait for."""

from __future__ import annotations

import pytest

from gpupool_manager import backfill
from gpupool_manager.backfill import Backfill
from gpupool_manager.records import Lease, Quota
from gpupool_manager.waiting import OrderRules, Waiting
from queue_world import GRACE, QueueWorld

PATIENCE = 60.0


def make(*, fair: bool = False) -> QueueWorld:
    return QueueWorld(Quota("a"), Quota("b"), order=OrderRules(fair=fair), patience=PATIENCE)


def start(world: QueueWorld, lease: Lease) -> float | None:
    """Seconds from now."""
    found = world.leases.expected_start(lease, world.now)
    return None if found is None else found - world.now


def test_a_lease_ends_by_its_limit_however_it_is_renewed() -> None:
    world = make()
    lease = world.ask("a", time_limit=600.0)
    world.later(600.0 - GRACE - 1)
    assert lease.ending is None
    world.later(1)
    assert world.events == ["lease.ending"]
    assert lease.ending is not None and lease.ending.at == world.now + GRACE
    world.leases.renew(lease, world.now)
    world.later(GRACE)
    assert (lease.state, lease.reason) == ("expired", "its time limit of 600 s is over")


def test_a_limit_shorter_than_the_warning_is_kept_too() -> None:
    world = make()
    lease = world.ask("a", time_limit=10.0)
    world.later(0)
    assert lease.ending is not None
    world.later(10)
    assert lease.state == "expired"


def test_a_lease_with_a_limit_still_expires_unrenewed() -> None:
    world = make()
    lease = world.ask("a", time_limit=1000.0)
    lease.expires = world.now + 30
    world.ledger.remind(lease.expires, lease.id)
    world.later(30)
    assert lease.reason.startswith("not renewed")


def test_the_expected_start_is_when_enough_has_ended() -> None:
    world = make()
    for limit in (3000.0, 1000.0, 2000.0):
        world.ask("a", time_limit=limit)
    endless = world.ask("a")
    assert [start(world, world.ask("b", gpus)) for gpus in (1, 2, 3)] == [1000.0, 2000.0, 3000.0]
    four = world.ask("b", 4)
    assert start(world, four) is None
    world.end(endless)  # the first of them has it now
    assert start(world, four) is None
    assert start(world, world.ask("b", 3)) == 3000.0


@pytest.mark.parametrize("fair", [False, True])
def test_who_ends_in_time_goes_before_who_has_waited_long(fair: bool) -> None:
    world = make(fair=fair)
    for _ in range(3):
        world.ask("a", time_limit=1000.0)
    large = world.ask("a", 4)
    world.later(PATIENCE + 1)
    left = 1000.0 - PATIENCE - 1
    blocked = [world.ask("a", time_limit=left + 1), world.ask("a")]
    assert [str(lease.state) for lease in blocked] == ["queued", "queued"]
    assert "waited long" in world.ledger.queue[blocked[0].id].reason
    fills = world.ask("a", time_limit=left)
    assert fills.state == "active"
    world.later(left)
    assert (large.state, fills.state) == ("active", "expired")


def test_who_waits_already_fills_in_when_there_is_room() -> None:
    world = make()
    last = world.ask("a")
    for _ in range(3):
        world.ask("a", time_limit=1000.0)
    large = world.ask("a", 3, hosts="same")
    long, short = world.ask("b"), world.ask("b", time_limit=500.0)
    world.later(PATIENCE + 1)
    world.end(last)
    assert [str(lease.state) for lease in (large, long, short)] == ["queued", "queued", "active"]


def test_nothing_is_filled_in_where_the_start_is_not_known() -> None:
    world = make()
    for _ in range(3):
        world.ask("a")
    world.ask("a", 4)
    world.later(PATIENCE + 1)
    assert world.ask("b", time_limit=1.0).state == "queued"


def test_a_limit_holds_when_a_warning_for_others_is_taken_back() -> None:
    world = QueueWorld(Quota("a", gpus=0, borrow=True), Quota("b", gpus=4))
    lent = [world.ask("a", beyond="borrow", time_limit=GRACE + 100.0) for _ in range(4)]
    world.later(90)
    owner = world.ask("b")
    assert lent[3].ending is not None and lent[3].ending.state == "reclaimed"
    world.later(20)
    world.end(owner)
    assert lent[3].ending is None
    world.later(50)
    assert [str(lease.state) for lease in lent] == ["expired"] * 4


def test_the_expected_start_counts_what_was_granted_since() -> None:
    world = make()
    world.ask("a", 3, time_limit=1000.0)
    large = world.ask("b", 4)
    assert start(world, large) == 1000.0
    world.ask("a")
    assert start(world, large) is None


def test_who_fills_in_does_not_delay_what_leases_are_taken_back_for() -> None:
    borrows = [Quota(name, gpus=0, borrow=True) for name in "ac"]
    world = QueueWorld(*borrows, Quota("b", gpus=5), Quota("d"), gpus=6, order=OrderRules())
    world.ask("b")
    lent = world.ask("a", 4, beyond="borrow", time_limit=1000.0)
    owner = world.ask("b", 5, beyond="wait")
    world.later(PATIENCE + 1)
    world.ask("c", 2, beyond="borrow", time_limit=500.0)
    world.ledger.quotas["b"].gpus = 6
    world.pump()  # when c is looked at nothing is taken back yet
    assert lent.ending is not None
    assert world.ask("d", time_limit=500.0).state == "queued"
    world.later(GRACE)
    assert owner.state == "active"


def crowded() -> tuple[QueueWorld, list[Lease]]:
    """A full pool, for which 20 different requests have waited long; how long who runs may."""
    world = make()
    held = [world.ask("a", time_limit=limit) for limit in (1000.0, 1001.0, 1002.0, 1003.0)]
    for number in range(20):
        world.ask("b", 4, part=900 - number, time_limit=500.0)
    world.later(PATIENCE + 1)
    return world, held


def test_a_start_is_looked_for_once_however_many_could_fill_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, held = crowded()
    for number in range(20):
        world.ask("a", 2, part=500 - number, time_limit=10.0)
    looks, start_of = list[str](), Backfill.start_of

    def counted(backfill: Backfill, waiting: Waiting, now: float) -> float | None:
        looks.append(waiting.lease.id)
        return start_of(backfill, waiting, now)

    monkeypatch.setattr(Backfill, "start_of", counted)
    world.end(held[0])
    assert len(looks) == len(set(looks)) == 20


def test_behind_too_many_different_requests_nobody_fills_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most, state in ((20, "active"), (19, "queued")):
        monkeypatch.setattr(backfill, "MOST_STARTS", most)
        world, held = crowded()
        fills = world.ask("a", time_limit=10.0)
        world.end(held[0])
        assert fills.state == state
