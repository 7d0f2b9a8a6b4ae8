"""The fair queue: by shares and weights, quotas that are lent and taken back, nobody starves."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool_common.lease import LeaseState
from gpupool_manager.problems import Problem
from gpupool_manager.records import Beyond, Lease, Quota
from gpupool_manager.scheduler import Placement, place
from gpupool_manager.trial import Trial
from gpupool_manager.waiting import LeaseQueue, OrderRules
from queue_world import GRACE, QueueWorld

FAIR = OrderRules(fair=True, aging=100.0, starving=1000.0)


def states(*leases: Lease) -> list[str]:
    return [str(lease.state) for lease in leases]


# Order ---------------------------------------------------------------------------------


def test_the_smallest_share_for_its_weight_goes_first() -> None:
    world = QueueWorld(Quota("a"), Quota("b", weight=3), Quota("c"), gpus=8, order=FAIR)
    held = [world.ask("c") for _ in range(2)]
    world.ask("a", 2)
    world.ask("b", 4)  # a has 2/8, b 4/8 by 3: b goes first
    first_a, first_b = world.ask("a"), world.ask("b")
    assert [waiting.lease for waiting in world.waiting()] == [first_b, first_a]
    assert [world.ledger.queue.position(lease) for lease in (first_a, first_b)] == [2, 1]
    world.end(held[0])
    assert states(first_a, first_b) == ["queued", "active"]
    world.end(held[1])
    assert states(first_a) == ["active"]


def test_who_asks_for_its_position_costs_the_queue_no_look_at_all_others() -> None:
    """Thousands ask for theirs every few seconds."""
    world, looks = QueueWorld(Quota("a"), Quota("b"), order=FAIR), list[str]()
    share = world.ledger.share

    def counted(tenant: str) -> float:
        looks.append(tenant)
        return share(tenant)

    queue = LeaseQueue(FAIR, counted)
    world.ledger.queue = queue
    held = world.ask("a", 4)
    leases = [world.ask("ab"[number % 2], 1 + number % 3) for number in range(60)]
    looks.clear()
    for _ in range(10):
        positions = [queue.position(lease) for lease in leases]
    assert len(looks) <= len(leases)
    assert [waiting.lease for waiting in queue.in_order()] == [
        lease for _, lease in sorted(zip(positions, leases, strict=True), key=itemgetter(0))
    ]
    world.end(held)
    assert sorted(queue.position(waiting.lease) for waiting in queue) == [*range(1, len(queue) + 1)]


def test_each_grant_changes_whose_turn_it_is() -> None:
    world = QueueWorld(Quota("a"), Quota("b"), Quota("c"), order=FAIR)
    all_of_it = world.ask("c", 4)
    of_a, of_b = ([world.ask(tenant) for _ in range(4)] for tenant in "ab")
    world.end(all_of_it)
    assert states(*of_a) == states(*of_b) == ["active", "active", "queued", "queued"]


def test_the_share_is_of_what_a_tenant_has_most_of() -> None:
    world = QueueWorld(Quota("a"), Quota("b"))
    world.ask("a", part=100)
    assert world.ledger.share("a") == pytest.approx(0.1 / 4)
    lease = world.ask("b")
    assert world.ledger.share("b") == 0.25
    world.end(lease)
    assert world.ledger.share("b") == 0.0


def test_priority_ages_among_a_tenants_own() -> None:
    world = QueueWorld(Quota("a", priority=9), order=FAIR)
    held = world.ask("a", 4)
    old = world.ask("a", 4)
    world.now += 250.0
    high, higher = world.ask("a", 4, priority=2), world.ask("a", 4, priority=3)
    assert [waiting.lease for waiting in world.waiting()] == [higher, old, high]
    world.end(held)
    assert states(old, high, higher) == ["queued", "queued", "active"]


def test_who_has_waited_very_long_goes_before_all_shares() -> None:
    world = QueueWorld(Quota("a"), Quota("b"), order=FAIR, gpus=2)
    mine, held = world.ask("a"), world.ask("a")
    late = world.ask("a", 1)
    world.now += 500.0
    early = world.ask("b")
    assert [waiting.lease for waiting in world.waiting()] == [early, late]
    world.now += 501.0
    world.end(held)
    assert states(mine, late, early) == ["active", "active", "queued"]


def test_strict_order_is_by_priority_and_arrival_alone() -> None:
    world = QueueWorld(Quota("a"), Quota("b"), order=OrderRules())
    held = world.ask("a", 4)
    first, second = world.ask("a"), world.ask("b", 4)
    assert [waiting.lease for waiting in world.waiting()] == [first, second]
    world.end(held)
    assert states(first, second) == ["active", "queued"]


# Quotas that are waited for ------------------------------------------------------------


def test_who_asks_for_it_waits_for_the_quota() -> None:
    world = QueueWorld(Quota("a", gpus=2))
    held = world.ask("a", 2)
    with pytest.raises(Problem, match="2 in use, quota 2"):
        world.ask("a")
    waits = world.ask("a", beyond="wait")
    assert states(waits) == ["queued"]
    assert world.ledger.queue[waits.id].reason == (
        "quota: virtual GPUs: 1 asked, 2 in use, quota 2"
    )
    world.end(held)
    assert states(waits) == ["active"] and not waits.borrowed


def test_what_waits_for_the_quota_takes_none_of_it_from_who_is_within() -> None:
    world = QueueWorld(Quota("a", gpus=2), gpus=2)
    world.ask("a")
    world.ask("a", 2, beyond="wait")
    assert states(world.ask("a")) == ["active"]


@pytest.mark.parametrize(
    ("quota", "ask", "said"),
    [
        (Quota("a", gpus=2), {"gpus": 3, "beyond": "wait"}, "3 asked, 0 in use, quota 2"),
        (Quota("a", gpus=2), {"gpus": 3, "beyond": "borrow"}, "3 asked, 0 in use, quota 2"),
        (Quota("a", sessions=0), {"beyond": "wait"}, "sessions: 1 asked"),
        (Quota("a", sessions=0, borrow=True), {"beyond": "borrow"}, "sessions: 1 asked"),
    ],
)
def test_what_can_never_be_is_refused(quota: Quota, ask: dict[str, Any], said: str) -> None:
    with pytest.raises(Problem, match=said) as refusal:
        QueueWorld(quota).ask("a", **ask)
    assert refusal.value.code == "over-quota"


def test_nobody_fills_the_queue_with_what_may_wait() -> None:
    world = QueueWorld(Quota("a", gpus=1, sessions=2))
    world.ask("a")
    world.ask("a", beyond="wait")
    with pytest.raises(Problem, match="sessions: 1 asked, 1 in use and 1 queued, quota 2"):
        world.ask("a", beyond="wait")


def test_who_waits_for_the_quota_counts_for_that_behind_others_too() -> None:
    quotas = (Quota("a", gpus=1), Quota("b"), Quota("c", gpus=0, borrow=True))
    world = QueueWorld(*quotas, order=OrderRules())
    world.ask("a")
    world.ask("b", 2)
    first = world.ask("b", 4)
    world.now += 61.0
    waits, lent = world.ask("a", beyond="wait"), world.ask("c", beyond="borrow")
    for _ in range(2):
        assert "waited long" in world.ledger.queue[waits.id].reason
        assert not world.ledger.queue[waits.id].group.for_room
        assert world.ledger.queue[lent.id].group.over
        world.restart()
    world.end(first)
    assert states(waits, lent) == ["queued", "active"]


def test_what_waits_may_not_grow_beyond_what_the_quota_can_ever_be() -> None:
    world = QueueWorld(Quota("a", compute_permille=1000))
    held = world.ask("a", part=900)
    waits = world.ask("a", part=500, beyond="wait")
    with pytest.raises(Problem, match="1200|120%"):
        world.resize(waits, share_permille=1200, ceiling_permille=1200)
    world.resize(waits, share_permille=800)  # which the quota will have room for
    assert states(waits) == ["queued"]
    world.end(held)
    assert states(waits) == ["active"]


# Borrowing and its end -----------------------------------------------------------------


def borrowing(**more: Any) -> tuple[QueueWorld, list[Lease]]:
    """A pool of 4 GPUs: ``a`` has 2 of its own and has borrowed 2 of those of ``b``."""
    world = QueueWorld(Quota("a", gpus=2, borrow=True), Quota("b", gpus=2), **more)
    leases = [world.ask("a", beyond="borrow") for _ in range(4)]
    return world, leases


def test_what_is_free_is_lent_and_counted_apart() -> None:
    world, leases = borrowing()
    assert [lease.borrowed for lease in leases] == [False, False, True, True]
    assert world.ledger.guaranteed("a").gpus == world.ledger.borrowed["a"].gpus == 2
    assert world.ledger.active["a"].gpus == 4


def test_the_owner_gets_its_quota_after_a_warning() -> None:
    world, leases = borrowing()
    owner = world.ask("b")
    assert "lease.reclaiming" in world.events
    # The one that began last loses least.
    assert [lease.ending is not None for lease in leases] == [False, False, False, True]
    assert leases[3].ending is not None and leases[3].ending.at == world.now + GRACE
    world.later(GRACE - 1)
    assert states(owner, leases[3]) == ["queued", "active"]
    world.later(1)
    assert states(owner, leases[3]) == ["active", "reclaimed"]
    assert "borrowed" in leases[3].reason
    assert world.ledger.borrowed["a"].gpus == 1 and not world.ledger.ending


def test_leases_themselves_are_never_lent() -> None:
    world = QueueWorld(Quota("a", gpus=2, sessions=2, borrow=True), Quota("b"), gpus=8)
    leases = [world.ask("a"), world.ask("a", 2, beyond="borrow")]
    with pytest.raises(Problem, match="sessions: 1 asked, 2 in use, quota 2"):
        world.ask("a")
    world.end(leases[0])
    assert not leases[1].borrowed  # it was one of them already
    held = world.ask("b", 6)
    waits = world.ask("a", beyond="borrow")
    world.ledger.quotas["a"].sessions = 1
    world.end(held)
    assert states(waits) == ["queued"]
    assert world.ledger.queue[waits.id].reason == "quota: sessions: 1 asked, 1 in use, quota 1"


def test_who_waits_until_the_gpus_come_back_gets_them() -> None:
    world, leases = borrowing()
    owner = world.ask("b", wait=GRACE)
    world.later(GRACE)
    assert states(owner, leases[3]) == ["active", "reclaimed"]


def test_a_manager_that_starts_again_gives_the_whole_warning() -> None:
    world, leases = borrowing()
    owner = world.ask("b")
    world.now += GRACE + 1  # nobody could hear of it
    world.restart()
    assert states(owner, leases[3]) == ["queued", "active"]
    assert leases[3].ending is not None and leases[3].ending.at == world.now + GRACE
    world.later(GRACE)
    assert states(owner, leases[3]) == ["active", "reclaimed"]


def test_a_gang_gets_all_its_gpus_or_none() -> None:
    world, leases = borrowing()
    gang = world.ask("b", 2, hosts="same")
    assert [lease.ending is not None for lease in leases] == [False, False, True, True]
    world.end(leases[3])
    assert states(gang) == ["queued"] and not gang.grants
    world.later(GRACE)
    assert states(gang) == ["active"] and len(gang.grants) == 2


def test_nobody_is_warned_for_what_would_not_be_enough() -> None:
    world = QueueWorld(Quota("a", gpus=2, borrow=True), Quota("b", gpus=4))
    leases = [world.ask("a", beyond="borrow") for _ in range(4)]
    world.ask("b", 3)  # 2 are lent, and 2 are not
    assert [lease.ending for lease in leases] == [None] * 4


def test_a_warned_lease_is_kept_if_nobody_needs_it_any_more() -> None:
    world, leases = borrowing()
    owner = world.ask("b")
    world.end(owner)
    assert "lease.kept" in world.events
    assert leases[3].ending is None
    world.later(GRACE)
    assert states(*leases) == ["active"] * 4


def test_who_is_warned_stays_the_one_while_others_come_and_go() -> None:
    world, leases = borrowing()
    world.ask("b")
    world.later(10)
    at = leases[3].ending
    world.ask("b")
    assert leases[3].ending == at
    assert leases[2].ending is not None and leases[2].ending.at == world.now + GRACE


def test_nothing_more_is_lent_while_an_owner_waits() -> None:
    world, leases = borrowing()
    owner = world.ask("b", 2)
    world.end(leases[0])  # a free GPU, and the quota has room: it is a's own again
    assert leases[2].borrowed is False
    more = world.ask("a", beyond="borrow")
    assert states(more, owner) == ["queued", "queued"]
    world.later(GRACE)
    assert states(owner) == ["active"]


def test_borrowed_leases_come_under_the_quota_when_it_has_room() -> None:
    world, leases = borrowing()
    world.end(leases[0])
    assert "lease.covered" in world.events
    assert [lease.borrowed for lease in leases[1:]] == [False, False, True]
    world.ledger.quotas["a"].gpus = 3
    world.pump()
    assert not leases[3].borrowed and not world.ledger.lent


def test_who_borrows_the_most_for_its_weight_gives_back_first() -> None:
    world = QueueWorld(
        Quota("a", gpus=0, borrow=True),
        Quota("b", gpus=0, borrow=True, weight=4),
        Quota("c", gpus=4),
    )
    of_a = world.ask("a", beyond="borrow")
    of_b = [world.ask("b", beyond="borrow") for _ in range(3)]
    world.ask("c")
    assert of_a.ending is not None
    assert [lease.ending for lease in of_b] == [None] * 3


def test_of_slices_no_more_are_taken_than_it_needs() -> None:
    world = QueueWorld(Quota("a", gpus=0, borrow=True), Quota("b", gpus=1), gpus=1)
    slices = [world.ask("a", part=250, beyond="borrow") for _ in range(4)]
    world.ask("b", part=500)
    assert sum(lease.ending is not None for lease in slices) == 2


def test_a_lease_that_is_borrowed_may_not_be_asked_for_without_leave() -> None:
    world = QueueWorld(Quota("a", gpus=1), Quota("b"))
    world.ask("a", beyond="borrow")
    with pytest.raises(Problem, match="quota 1"):
        world.ask("a", beyond="borrow")


# What holds whatever happens -----------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "end", "later", "restart"]),
        st.sampled_from("abc"),
        st.integers(1, 4),
        st.sampled_from(["refuse", "wait", "borrow"]),
        st.integers(0, 30),
        st.sampled_from([None, None, 100.0, 1000.0]),
    ),
    max_size=40,
)


def check(world: QueueWorld) -> None:
    ledger = world.ledger
    granted = [grant.gpu for lease in ledger.leases.values() for grant in lease.grants]
    assert len(granted) == len(set(granted)), "a whole GPU was granted twice"
    for tenant, quota in ledger.quotas.items():
        live = [lease for lease in ledger.leases.values() if lease.tenant == tenant]
        own = sum(len(lease.grants) for lease in live if not lease.borrowed)
        assert own == ledger.guaranteed(tenant).gpus
        assert quota.gpus is None or own <= quota.gpus
        assert quota.sessions is None or len(live) <= quota.sessions
    shown = [ledger.queue.position(waiting.lease) for waiting in world.waiting()]
    assert shown == [*range(1, len(shown) + 1)]
    world.pump()
    for waiting in ledger.queue.heads(world.now):
        for_room = waiting.group.for_room and not waiting.group.over
        assert for_room == world.is_within(waiting.lease), waiting.reason
    coming = [lease for lease in ledger.lent.values() if lease.ending is not None]
    with Trial(ledger.index) as trial:
        for lease in ledger.lent.values():
            trial.end(lease)
        owed = [each for each in world.waiting() if world.is_within(each.lease)]
        # Nobody within its quota waits while another borrows what it could have.
        first = next(iter(owed), None)
        if first is not None and isinstance(place(ledger.index, first.request), Placement):
            assert coming, f"{first.lease.id} waits while others borrow"


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_quotas_hold_and_nothing_is_granted_twice(
    steps: list[tuple[str, str, int, Beyond, int, float | None]], fair: bool
) -> None:
    world = QueueWorld(
        Quota("a", gpus=3, borrow=True),
        Quota("b", gpus=3, borrow=True, weight=2),
        Quota("c", gpus=2, sessions=3),
        nodes=2,
        order=OrderRules(fair=fair),
    )
    made: list[Lease] = []
    for what, tenant, gpus, beyond, number, limit in steps:
        live = [m for m in made if m.id in world.ledger.leases]
        if what == "ask":
            try:
                made.append(world.ask(tenant, gpus, beyond=beyond, time_limit=limit))
            except Problem as problem:
                assert problem.code == "over-quota"
        elif what == "end" and live:
            world.end(live[number % len(live)])
        elif what == "restart":
            world.restart()
            over = {"expired", "reclaimed"}  # whose time was over before
            assert all(m.id in world.ledger.leases or m.state in over for m in live)
        else:
            world.later(number * 10.0)
        check(world)
    # Nobody starves: when what runs has ended, all have had their turn.
    world.later(GRACE)
    for _ in range(3 * len(made)):
        for lease in [lease for lease in made if lease.state == LeaseState.ACTIVE][:1]:
            world.end(lease)
        world.later(GRACE)
    assert not world.waiting()
