"""What drivers find at moments, beside the log of turns: who was on a GPU in another's turn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpupool_server.board import Account, BoardError, Member, Turn, TurnLog, read_turns
from gpupool_server.watch_turns import (
    FORGET_NS,
    KEPT_NS,
    MARGIN_NS,
    STRAY_MOST_NS,
    Left,
    Moment,
    Moments,
    OutsideTurns,
)

MS = 1_000_000

RED, BLUE, CHILD = 10, 20, 11
WORKERS = (Member(RED, "red", 0, 0, unseen=False), Member(BLUE, "blue", 0, 0, unseen=False))
OWNERS = {RED: RED, BLUE: BLUE, CHILD: RED}

#: A second's rounds, of red's 20 ms and blue's 80.
TURNS = tuple(
    Turn(name, begin * MS, end * MS)
    for at in range(0, 1000, 100)
    for name, begin, end in (("red", at, at + 20), ("blue", at + 20, at + 100))
)


def log(now: int, turns: tuple[Turn, ...] = TURNS, first: int = 0, holder: str = "") -> TurnLog:
    """At ``now`` milliseconds; ``holder`` has had the turn since the last one ended."""
    begin = turns[-1].ended_ns if turns and holder else now * MS
    return TurnLog(now * MS, first, turns, Turn(holder, begin, now * MS))


def moment(at: float, pid: int = RED) -> Moment:
    return Moment(pid, int(at * MS), 7)


def outside(*moments: Moment, told: TurnLog | None = None, workers=WORKERS) -> OutsideTurns:  # type: ignore[no-untyped-def]
    found = OutsideTurns()
    found.add(told or log(1000), Moments(moments, OWNERS), workers)
    return found


@pytest.mark.parametrize(
    ("at", "pid", "is_outside"),
    [
        (210, RED, False),
        (250, RED, True),
        (250, BLUE, False),
        (210, BLUE, True),
        (250, CHILD, True),  # is red's
        (250, 77, False),  # is nobody's whom we know
        # A turn is somebody's a little longer than the arbiter says.
        (220.9, RED, False),
        (221.1, RED, True),
        (299.1, RED, False),
        (298.9, RED, True),
        # What is before the log, or behind it.
        (0.5, BLUE, False),
        (999.5, RED, False),
        (1100, RED, False),
    ],
)
def test_whose_turn_it_was(at: float, pid: int, is_outside: bool) -> None:
    found = outside(moment(at, pid))
    assert sum(found.of_tenant.values()) == sum(found.of_worker.values()) == 7 * is_outside
    if is_outside:
        assert found.of_tenant["blue" if pid == BLUE else "red"] == 7
        assert found.of_worker[BLUE if pid == BLUE else RED] == 7


def test_the_turn_that_is_not_over() -> None:
    told = log(1500, holder="blue")
    assert outside(moment(1200), told=told).of_tenant == {"red": 7}
    assert outside(moment(1200, BLUE), told=told).of_tenant == {}


def test_a_turn_of_nobody_is_nobodys() -> None:
    assert outside(moment(1200), told=log(1500)).of_tenant == {}


def test_turns_of_a_tenant_that_was_removed_may_have_been_ones_own() -> None:
    """A session's group is removed behind it; its last turns are without a name then."""
    told = log(900, (Turn("red", 0, 100 * MS), Turn("", 100 * MS, 800 * MS)))
    assert outside(moment(400), moment(400, BLUE), told=told).of_tenant == {}


def test_tenants_are_forgotten() -> None:
    """Each lease of a pool may be another; counts of years are of nobody who is there."""
    found = outside(moment(250))
    now = 1000 + FORGET_NS // MS
    found.add(log(now - 100, (), first=len(TURNS)), Moments(), WORKERS)
    assert found.of_tenant == {"red": 7}
    found.add(log(now + 100, (), first=len(TURNS)), Moments(), WORKERS)
    assert found.of_tenant == {} and found._found_ns == {}


def test_a_log_goes_on() -> None:
    found = OutsideTurns()
    found.add(log(200, TURNS[:4]), Moments((), OWNERS), WORKERS)
    assert found.next == 4
    found.add(log(400, TURNS[4:8], first=4), Moments((moment(150), moment(310)), OWNERS), WORKERS)
    assert (found.next, found.of_tenant) == (8, {"red": 7})


def test_where_turns_are_forgotten_nothing_is_known() -> None:
    """Red's turn, and that of others, may have been among them."""
    found = OutsideTurns()
    found.add(log(200, TURNS[:4]), Moments((), OWNERS), WORKERS)
    lost = log(800, TURNS[12:16], first=12)
    found.add(lost, Moments((moment(150), moment(350), moment(650)), OWNERS), WORKERS)
    assert found.of_tenant == {"red": 7}  # at 650
    found.add(log(900, (), first=50), Moments((moment(750),), OWNERS), WORKERS)
    assert found.of_tenant == {"red": 7}


def test_another_board_counts_anew() -> None:
    found = outside(moment(250))
    found.forget(1000 * MS, renumbered=True)
    assert found.next == 0
    later = tuple(Turn(t.tenant, t.began_ns + 1000 * MS, t.ended_ns + 1000 * MS) for t in TURNS)
    moments = Moments((moment(950), moment(1250)), OWNERS)
    found.add(log(2000, later), moments, WORKERS)
    assert (found.next, found.of_tenant) == (len(TURNS), {"red": 14})


def test_what_was_before_it_is_told_to_forget_is_not_counted() -> None:
    found = OutsideTurns()
    found.forget(500 * MS)
    found.add(log(1000), Moments((moment(250), moment(750)), OWNERS), WORKERS)
    assert found.of_tenant == {"red": 7}


def test_a_worker_that_has_ended_is_known_for_a_while() -> None:
    """What it did is said later than it ends; its session may have been short."""
    found = OutsideTurns()
    found.add(log(200, TURNS[:4]), Moments((), OWNERS), WORKERS)
    left = Moments((moment(350),), {BLUE: BLUE})
    found.add(log(400, TURNS[4:8], first=4), left, WORKERS[1:])
    assert found.of_tenant == {"red": 7}
    much_later = KEPT_NS // MS + 300
    told = log(much_later, (Turn("blue", 400 * MS, much_later * MS),), first=8)
    found.add(told, Moments((moment(much_later - 100),), {BLUE: BLUE}), WORKERS[1:])
    assert found.of_tenant == {"red": 7} and RED not in found.of_worker


@pytest.mark.parametrize("unseen", [False, True, None])
def test_groups_of_a_tenant(unseen: bool | None) -> None:
    """Each has its own turns; what they did in others' is the tenant's, unless work of them may
    outlive their turns."""
    workers = tuple(
        Member(pid, name, 0, 0, unseen=unseen) for pid, name in ((RED, "red/1"), (BLUE, "red/2"))
    )
    turns = (Turn("red/1", 0, 100 * MS), Turn("red/2", 100 * MS, 800 * MS))
    moments = (moment(50), moment(50, BLUE), moment(400), moment(400, BLUE))
    found = outside(*moments, told=log(900, turns), workers=workers)
    assert found.of_tenant == ({"red": 14} if unseen is False else {})
    assert found.of_worker == ({RED: 7, BLUE: 7} if unseen is False else {})


# Work that outlives its turns --------------------------------------------------------------------


def account(name: str, busy_ms: int, waited_ms: int = 0, *, high: bool = False) -> Account:
    return Account(
        *(name, 0, 1, 500, 1000, high, 0, 0, 0, busy_ms * MS, waited_ms * MS),
        *(0, 0, 0, 0, 1, 1000),
    )


def left(
    red: Member, *, blue_ms: int = 800, waited_ms: int = 0, high: bool = False
) -> OutsideTurns:
    """Red is found in blue's turn, and in its own; blue has work for so long of a second."""
    found = OutsideTurns()
    workers = (red, WORKERS[1])
    moments = Moments(tuple(Moment(RED, at * MS, TOOK) for at in (210, 250)), OWNERS)
    zero = (account("red", 0, high=high), account("blue", 0))
    found.add(log(0, ()), Moments((), OWNERS), workers, zero)
    accounts = (account("red", 200, high=high), account("blue", blue_ms, waited_ms))
    found.add(log(1000), moments, workers, accounts)
    return found


UNSEEN = Member(RED, "red", 0, 0, unseen=True)

#: More than nobody pays for, by a second.
TOOK = 1000 * MS + int(STRAY_MOST_NS)


def test_what_it_left_is_counted_by_itself_and_to_be_paid() -> None:
    found = left(UNSEEN, blue_ms=600, waited_ms=400)
    assert found.of_tenant == {} and found.of_worker == {}
    assert (found.left_of_tenant, found.left_of_worker) == ({"red": TOOK}, {RED: TOOK})
    assert found.unpaid == [Left("red", "blue", 1000 * MS)]
    found.add(log(1100, (), first=found.next), Moments(), (UNSEEN,))
    assert found.unpaid == []  # each once


def test_what_nobody_needed_is_not_to_be_paid() -> None:
    """Who is alone keeps its turn: that had work for most of the time, or none."""
    some = left(UNSEEN, blue_ms=400, waited_ms=400)
    assert some.left_of_tenant == {"red": pytest.approx(0.8 * TOOK)}
    assert some.unpaid[0].ns == pytest.approx(0.8 * TOOK - STRAY_MOST_NS)
    idle = left(UNSEEN, blue_ms=0)
    assert idle.left_of_tenant["red"] == 0 and idle.unpaid == []


def test_work_behind_a_lost_turn_is_paid_likewise() -> None:
    """The arbiter knows what its own clock has charged for that."""
    found = left(Member(RED, "red", 0, 0, late=True, overdue=1, unseen=False))
    assert found.left_of_tenant["red"] == pytest.approx(0.8 * TOOK)
    assert found.unpaid[0].ns == pytest.approx(0.8 * TOOK - STRAY_MOST_NS)


def test_who_may_work_beside_others_owes_nothing() -> None:
    found = left(UNSEEN, high=True)
    assert found.left_of_tenant["red"] == 0 and found.unpaid == []


def test_groups_of_one_tenant_pay_each_other() -> None:
    found = OutsideTurns()
    workers = (replace(UNSEEN, tenant="red/1"), replace(WORKERS[1], tenant="red/2"))
    turns = (Turn("red/1", 0, 100 * MS), Turn("red/2", 100 * MS, 800 * MS))
    zero = (account("red/1", 0), account("red/2", 0))
    found.add(log(0, ()), Moments((), OWNERS), workers, zero)
    now = (account("red/1", 100), account("red/2", 900))
    found.add(log(900, turns), Moments((Moment(RED, 400 * MS, TOOK),), OWNERS), workers, now)
    assert found.left_of_tenant["red"] == 0
    assert found.unpaid == [Left("red/1", "red/2", 1000 * MS)]


def test_a_little_is_nobodys_to_pay() -> None:
    """Of honest programs that make contexts all the time no more than 8% is found."""
    found = OutsideTurns()
    found.add(log(0, ()), Moments(), (UNSEEN, WORKERS[1]), (account("blue", 0),))
    paid = []
    for second in range(1, 101):
        at = 1000 * second
        turn = (Turn("blue", (at - 1000) * MS, at * MS),)
        each = Moments((Moment(RED, (at - 500) * MS, 200 * MS),), OWNERS)
        found.add(
            log(at, turn, first=found.next), each, (UNSEEN, WORKERS[1]), (account("blue", at),)
        )
        paid += [left.ns for left in found.unpaid]
    assert sum(paid) == pytest.approx(100 * 200 * MS - STRAY_MOST_NS - 99 * 80 * MS)
    assert found.left_of_tenant["red"] == 100 * 200 * MS  # all the same


def late(overdue: int, is_late: bool) -> tuple[Member, ...]:
    return (Member(RED, "red", 0, 0, late=is_late, overdue=overdue, unseen=False), WORKERS[1])


def test_work_for_which_it_lost_its_turn() -> None:
    """It goes on until the work is over; what is behind that is no excuse."""
    found = OutsideTurns()
    steps = [
        (200, late(0, False), ()),
        (400, late(1, True), (350,)),
        (600, late(1, True), (550,)),
        (700, late(1, False), (650,)),
        (900, late(1, False), (450, 850)),
    ]
    before = 0
    for now, workers, at in steps:
        turns = tuple(turn for turn in TURNS if before < turn.ended_ns <= now * MS)
        moments = Moments(tuple(moment(each) for each in at), OWNERS)
        found.add(log(now, turns, first=found.next), moments, workers)
        before = now * MS
    assert found.of_tenant == {"red": 7}  # at 850


def test_who_works_beside_one_that_lost_its_turn() -> None:
    """It is nobody's turn, as blue's is used up; its kernel goes on, and red asks for none."""
    workers = (WORKERS[0], Member(BLUE, "blue", 0, 0, late=True, overdue=1, unseen=False))
    found = OutsideTurns()
    found.add(log(200, TURNS[:4]), Moments((), OWNERS), WORKERS)
    moments = Moments((moment(350), moment(350, BLUE)), OWNERS)
    found.add(log(400, (), first=4), moments, workers)
    assert found.of_tenant == {"red": 7}


def test_a_turn_that_was_lost_between_two_looks() -> None:
    found = OutsideTurns()
    found.add(log(200, TURNS[:4]), Moments((), OWNERS), late(0, False))
    moments = Moments((moment(350), moment(350, BLUE)), OWNERS)
    found.add(log(400, TURNS[4:8], first=4), moments, late(1, False))
    assert found.of_tenant == {}


def test_who_loses_its_turn_is_no_excuse_for_another() -> None:
    """One that only says that it still works would be one for all of its tenant's sessions."""
    workers = (*late(1, True), Member(CHILD, "red", 0, 0, unseen=False))
    owners = {RED: RED, CHILD: CHILD}
    found = OutsideTurns()
    found.add(log(200, TURNS[:4]), Moments((), owners), workers)
    moments = Moments((moment(350), moment(350, CHILD)), owners)
    found.add(log(400, TURNS[4:8], first=4), moments, workers)
    assert found.of_worker == {CHILD: 7}


def test_margins_are_less_than_the_shortest_turn() -> None:
    assert 2 * MARGIN_NS < 8 * MS  # QUANTUM_LEAST


# What an arbiter says ---------------------------------------------------------------------------

SAID = {
    "now_ns": 90,
    "holder": "red",
    "began_ns": 50,
    "first": 3,
    "turns": [["blue", 10, 20], ["", 20, 50]],
}


def test_a_log_is_read() -> None:
    turns = (Turn("blue", 10, 20), Turn("", 20, 50))
    assert read_turns(json.dumps(SAID).encode()) == TurnLog(90, 3, turns, Turn("red", 50, 90))
    nobody = json.dumps({**SAID, "holder": ""}).encode()
    assert read_turns(nobody).now == Turn("", 90, 90)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        json.dumps({**SAID, "turns": [["blue", 10]]}).encode(),
        json.dumps({**SAID, "turns": 5}).encode(),
        json.dumps({**SAID, "now_ns": None}).encode(),
        json.dumps({**SAID, "turns": [["blue", "x", 20]]}).encode(),
    ],
)
def test_a_log_that_cannot_be(text: bytes) -> None:
    with pytest.raises(BoardError, match="turns cannot be read"):
        read_turns(text)
