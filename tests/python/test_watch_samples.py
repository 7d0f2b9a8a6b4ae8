"""What a driver's samples say of time: honest tenants, and liars."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpupool_server.usage import SOFT
from gpupool_server.watch import NS, History, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_samples import may_be_chance, stretches_of
from gpupool_server.watch_settings import WatchSettings

SETTINGS = WatchSettings.model_construct()
SAMPLE = 0.2


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
    seed: int = 1

    def sampled(self, seconds: float) -> Iterator[tuple[float, bool, int]]:
        """When the driver looks, whether it finds red, and how many turns red has had by then."""
        chance = random.Random(self.seed)
        begin, length, at, turns = 0.0, self.round, 0.0, 1
        while at < seconds:
            at += SAMPLE + chance.uniform(-0.001, 0.001)
            while begin + length < at:
                begin += length
                length = self.round * chance.uniform(1 - self.differ, 1 + self.differ)
                turns += 1
            red = at - begin < self.part * length or chance.random() < self.steals
            yield at, red, turns if self.part else 0

    def looks(self, seconds: float, *, measured: bool) -> Iterator[Look]:
        samples, used, turns = self.sampled(seconds), 0.0, 0
        at, red, then = next(samples)
        for i in range(int(seconds * 4) - 4):
            now = i / 4
            while at < now:
                used, turns = used + 0.99 * SAMPLE * red, then
                at, red, then = next(samples)
            held, blue = int(now * self.part * NS), int(now * (1 - self.part) * NS)
            workers = (
                SeenWorker(1, "red", None, 0, int(used * NS), held),
                SeenWorker(2, "blue", None, 0, 0, blue),
            )
            tenants = {
                "red": SeenTenant(0, held, held, int(now * NS), turns=turns),
                "blue": SeenTenant(0, blue, blue, int(now * NS)),
            }
            yield Look(
                int(now * NS), workers, tenants, sample_ns=0 if measured else int(SAMPLE * NS)
            )

    def judged(self, seconds: float, *, measured: bool = False) -> list[tuple[float, Verdict]]:
        watched = History(SETTINGS, SOFT, 0)
        return [
            (look.now_ns / NS, verdict)
            for look in self.looks(seconds, measured=measured)
            for verdict in watched.look(look)
        ]


@pytest.mark.parametrize("part", [0.01, 0.05, 0.25, 0.5])
@pytest.mark.parametrize(("period", "differ"), [(0.02, 0.1), (0.1, 0.01), (1.0, 0.1)])
def test_honest_tenants_are_never_ended(part: float, period: float, differ: float) -> None:
    judged = Card(part, period, differ, seed=int(part * 100)).judged(300.0)
    assert not any(verdict.certain for _, verdict in judged)
    # rounds that are as regular as samples are may give an honest one a name, and no more
    assert differ < 0.1 or judged == []


def test_as_if_time_were_measured_some_would_be() -> None:
    """Which is why samples are not taken for that."""
    judged = [Card(0.25, seed=seed).judged(300.0, measured=True) for seed in range(3)]
    assert any(verdict.certain for each in judged for _, verdict in each)


@pytest.mark.parametrize(
    ("card", "within"),
    [
        (Card(0.0, steals=0.45, seed=3), 8.0),
        (Card(0.0, steals=0.2, seed=3), 15.0),
        (Card(0.01, 2.0, steals=0.45, seed=3), 15.0),  # has a turn now and then
    ],
)
def test_liars_are_ended(card: Card, within: float) -> None:
    at, verdict = next(each for each in card.judged(60.0) if each[1].certain)
    assert (verdict.pid, verdict.cause) == (1, "time")
    assert at <= within


@pytest.mark.parametrize(
    ("part", "steals", "within"), [(0.05, 0.45, 85.0), (0.25, 0.45, 325.0), (0.05, 0.2, 325.0)]
)
def test_liars_that_take_their_turns_are_named(part: float, steals: float, within: float) -> None:
    at, verdict = Card(part, steals=steals, seed=3).judged(400.0)[0]
    assert (verdict.pid, verdict.certain) == (1, False)
    assert at <= within


def steady(t: float, *, used: float, held: float, turns: float, sample: float = SAMPLE) -> Look:
    """Red has so much in each second; blue always has work."""
    red = SeenWorker(1, "red", None, 0, int(t * used * NS))
    tenants = {
        "red": SeenTenant(0, int(t * held * NS), turns=int(t * turns)),
        "blue": SeenTenant(0, 0, int(t * NS)),
    }
    blue = SeenWorker(2, "blue", None, 0)
    return Look(int(t * NS), (red, blue), tenants, sample_ns=int(sample * NS))


def test_who_is_named_for_a_time_is_ended_for_a_longer_one() -> None:
    watched = History(SETTINGS, SOFT, 0)
    judged: list[bool] = []
    for i in range(400):
        look = steady(i / 4, used=0.796, held=0.01, turns=3.4)
        judged += [verdict.certain for verdict in watched.look(look)]
    assert judged[0] is False
    assert True in judged


def test_two_samples_that_come_closer_make_nobody_a_liar() -> None:
    """Turns of 0.21 s, each of which was found at work twice: what that counted for stays so."""
    watched = History(SETTINGS, SOFT, 0)
    for i in range(80):
        sample = 0.06 if i > 60 else SAMPLE
        look = steady(i / 4, used=0.4, held=0.21, turns=1.0, sample=sample)
        assert watched.look(look) == []


def test_how_long_samples_are_judged() -> None:
    assert stretches_of(5) == (1, 4, 16, 64)
    assert stretches_of(60) == (1, 4)
    assert stretches_of(600) == (1,)


def test_what_may_be_chance() -> None:
    assert not may_be_chance(0, 0.5, 1.0)  # measured
    assert not may_be_chance(25, 0.0, 0.12)  # work without a turn
    assert may_be_chance(25, 0.5, 0.4)
    assert may_be_chance(100, 0.5, 1.0)  # 100 in a row, of which most say nothing
    assert not may_be_chance(400, 0.5, 1.0)
    assert may_be_chance(1000, 1.2, 1.1)  # turns that end late count for more than there is
