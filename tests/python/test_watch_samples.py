"""What a driver's looks at moments say of time: honest tenants, and liars."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpupool_server.board import Account, Member, Turn, TurnLog
from gpupool_server.usage import SOFT
from gpupool_server.watch import History
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_samples import STRAY, may_be_chance, stretches_of
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_turns import Moment, Moments, OutsideTurns

SETTINGS = WatchSettings.model_construct()
SAMPLE = 0.2
LOOK = 0.25

#: How far the driver's moments were from the turns they were of, on an H100.
BESIDE = 0.0004


@dataclass
class Card:
    """Red has the first part of each round of turns, blue the rest; both always have work."""

    part: float
    #: Seconds of a round, on average.
    round: float = 0.02
    #: By which part of it one may be longer or shorter.
    differ: float = 0.1
    #: How often red is on the GPU in blue's turns.
    steals: float = 0.0
    #: Red's sessions last so long; None: one goes on.
    sessions: float | None = None
    #: Each in a group of its own.
    groups: bool = False
    #: It says that work of it outlives its turns.
    unseen: bool = False
    seed: int = 1

    def rounds(self, chance: random.Random) -> Iterator[Turn]:
        begin = 0.0
        while True:
            length = self.round * chance.uniform(1 - self.differ, 1 + self.differ)
            middle = begin + self.part * length
            if self.part:
                yield Turn("red", int(begin * NS), int(middle * NS))
            begin += length
            yield Turn("blue", int(middle * NS), int(begin * NS))

    def found(self, turn: Turn, at: float, chance: random.Random) -> int:
        """Whom the driver finds: 2 is blue's worker, and red's are 10 and more."""
        near = chance.uniform(-BESIDE, BESIDE) * NS
        whose = turn.tenant
        if int(at * NS) + near > turn.ended_ns or int(at * NS) + near < turn.began_ns:
            whose = "blue" if whose == "red" else "red"
        if chance.random() < self.steals:
            whose = "red"
        if whose == "red" and not self.part and not self.steals:
            whose = "blue"
        return 2 if whose == "blue" else self.worker(at)

    def account(self, at: float) -> str:
        return f"red/{self.worker(at)}" if self.groups else "red"

    def worker(self, at: float) -> int:
        return 10 + (int(at / self.sessions) if self.sessions else 0)

    def looks(self, seconds: float) -> Iterator[Look]:
        chance = random.Random(self.seed)
        rounds, outside = self.rounds(chance), OutsideTurns()
        turn, sample, number = next(rounds), SAMPLE, 0
        for i in range(int(seconds / LOOK)):
            now = i * LOOK
            over: list[Turn] = []
            moments: list[Moment] = []
            while turn.ended_ns <= now * NS or sample < now:
                if sample * NS < turn.ended_ns and sample < now:
                    pid = self.found(turn, sample, chance)
                    moments.append(Moment(pid, int(sample * NS), int(0.98 * SAMPLE * NS)))
                    sample += SAMPLE + chance.uniform(-0.001, 0.001)
                else:
                    over.append(turn)
                    turn = next(rounds)
            at_ns = int(now * NS)
            log = TurnLog(at_ns, number, tuple(over), Turn(turn.tenant, turn.began_ns, at_ns))
            number += len(over)
            yield self.look(now, log, moments, outside)

    def look(self, now: float, log: TurnLog, moments: list[Moment], outside: OutsideTurns) -> Look:
        red, at_ns = self.worker(now), log.now_ns
        name = self.account(now)
        members = (
            Member(red, name, 0, 0, unseen=self.unseen),
            Member(2, "blue", 0, 0, unseen=False),
        )
        held, blue = int(at_ns * self.part), int(at_ns * (1 - self.part))
        accounts = tuple(
            Account(who, 0, 1, 500, 1000, False, 0, 0, 0, busy, at_ns - busy, 0, 0, 0, 0, 1, 1000)
            for who, busy in ((name, held), ("blue", blue))
        )
        outside.add(log, Moments(tuple(moments), {red: red, 2: 2}), members, accounts)
        workers = (
            SeenWorker(
                *(red, name, None, 0, 0, held),
                unseen=self.unseen,
                outside_ns=outside.of_worker[red],
                left_ns=outside.left_of_worker[red],
            ),
            SeenWorker(2, "blue", None, 0, 0, blue, outside_ns=outside.of_worker[2]),
        )
        tenants = {
            name: SeenTenant(0, held, held, at_ns - held, due=500),
            "blue": SeenTenant(0, blue, blue, at_ns - blue, due=500),
        }
        return Look(
            *(at_ns, workers, tenants),
            sample_ns=int(SAMPLE * NS),
            outside_ns=dict(outside.of_tenant),
            left_ns=dict(outside.left_of_tenant),
        )

    def judged(self, seconds: float) -> list[tuple[float, Verdict]]:
        watched = History(SETTINGS, SOFT, 0)
        return [
            (look.now_ns / NS, verdict)
            for look in self.looks(seconds)
            for verdict in watched.look(look)
        ]


@pytest.mark.parametrize("part", [0.0, 0.05, 0.5])
@pytest.mark.parametrize(("period", "differ"), [(0.02, 0.1), (0.1, 0.001), (1.0, 0.1)])
def test_honest_tenants_are_never_ended(part: float, period: float, differ: float) -> None:
    """Also where rounds are as regular as the driver's looks are."""
    assert Card(part, period, differ, seed=int(part * 100)).judged(330.0) == []


def test_work_that_asks_for_no_turn_now_and_then() -> None:
    """Contexts that are made again and again, and modules that are loaded."""
    assert Card(0.25, steals=STRAY * 0.8).judged(330.0) == []


def test_who_left_work_there_has_its_part() -> None:
    """By that and by its turns; here it is a twentieth less."""
    assert Card(0.1, 0.1, steals=0.38, unseen=True).judged(330.0) == []


def test_who_left_much_owes_it() -> None:
    """All but one of 24 looks, beside a neighbour's small kernels, and turns as well."""
    at, verdict = Card(0.1, 0.1, steals=0.96, unseen=True).judged(200.0)[0]
    assert 120.0 < at < 160.0 and not verdict.liar
    assert "more than its part" in verdict.reason


@pytest.mark.parametrize(
    ("card", "within"),
    [
        (Card(0.0, steals=0.9, seed=3), 8.0),
        (Card(0.0, steals=0.45, seed=3), 28.0),
        (Card(0.0, steals=0.2, seed=3), 90.0),
        (Card(0.01, 2.0, steals=0.45, seed=3), 28.0),  # has a turn now and then
        # It hides behind many turns of its own.
        (Card(0.5, steals=0.9, seed=3), 28.0),
        (Card(0.5, steals=0.45, seed=3), 90.0),
        (Card(0.25, steals=0.2, seed=3), 340.0),
        # Its sessions are short.
        (Card(0.0, steals=0.9, sessions=3.0, seed=3), 28.0),
        (Card(0.25, steals=0.45, sessions=2.0, seed=3), 90.0),
        (Card(0.0, steals=0.9, sessions=3.0, groups=True, seed=3), 28.0),
        (Card(0.0, steals=0.45, sessions=4.0, groups=True, seed=3), 90.0),
    ],
)
def test_liars_are_ended(card: Card, within: float) -> None:
    at, verdict = card.judged(within)[0]
    assert (verdict.pid, verdict.cause) == (card.worker(at), "time")
    assert verdict.tenant == card.account(at)
    assert "outside its turns" in verdict.reason


def test_nobody_is_ended_for_a_session_that_is_over() -> None:
    """Red's liar has ended, and its next session keeps to its turns."""
    honest = Card(0.5).looks(60.0)
    outside = 0
    watched = History(SETTINGS, SOFT, 0)
    for look in honest:
        outside += NS // 5 if look.now_ns < 10 * NS else 0
        red = look.tenants["red"]
        tenants = {**look.tenants, "red": SeenTenant(0, red.held_ns)}
        told = {"red": outside}
        look = Look(look.now_ns, look.workers, tenants, sample_ns=NS // 5, outside_ns=told)
        assert watched.look(look) == []


def test_how_long_looks_are_judged() -> None:
    assert stretches_of(5) == (1, 4, 16, 64)
    assert stretches_of(60) == (1, 4)
    assert stretches_of(600) == (1,)


def test_what_may_be_chance() -> None:
    assert may_be_chance(25, 0.5)
    assert not may_be_chance(25, 0.56)
    assert may_be_chance(100, 0.28)
    assert not may_be_chance(100, 0.3)
    assert may_be_chance(10_000, STRAY)
    assert not may_be_chance(1600, 0.125)
    assert not may_be_chance(25, 1.1)
