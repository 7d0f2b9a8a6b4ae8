"""Tenants of many sessions, where the driver looks at moments: they come, end and have groups."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from gpupool_server.board import Member, Turn, TurnLog
from gpupool_server.usage import SOFT
from gpupool_server.watch import History
from gpupool_server.watch_groups import Groups, fold
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_turns import Moment, Moments, OutsideTurns

SETTINGS = WatchSettings.model_construct()
SAMPLE, LOOK = 0.2, 0.25
BLUE = Member(2, "blue", 0, 0, unseen=False)


@dataclass(frozen=True)
class Red:
    """Its sessions at some time, and how likely one of them is found then, in a turn of blue's."""

    sessions: Callable[[float], tuple[Member, ...]]
    found: Callable[[float], float]
    #: Whether blue, whose turn it always is, does anything with it.
    wanted: bool = True
    seed: int = 1

    def looks(self, seconds: float) -> Iterator[Look]:
        chance, outside, at, samples = random.Random(self.seed), OutsideTurns(), 0.0, 0
        for i in range(int(seconds / LOOK)):
            now = int(i * LOOK * NS)
            moments = []
            while (at := samples * SAMPLE) * NS < now - NS // 100:
                who = BLUE
                if chance.random() < self.found(at):  # each of them in its turn
                    who = self.sessions(at)[samples % len(self.sessions(at))]
                moments.append(Moment(who.pid, int(at * NS), int(0.98 * SAMPLE * NS)))
                samples += 1
            members = (*self.sessions(now / NS), BLUE)
            log = TurnLog(now, 0, (), Turn("blue", 0, now))
            owners = {each.pid: each.pid for each in members}
            outside.add(log, Moments(tuple(moments), owners), members)
            yield self.look(now, members, outside)

    def look(self, now: int, members: tuple[Member, ...], outside: OutsideTurns) -> Look:
        workers = tuple(
            SeenWorker(
                m.pid,
                m.tenant,
                None,
                0,
                0,
                unseen=m.unseen,
                slice_us=1000,
                outside_ns=outside.of_worker[m.pid],
            )
            for m in members
        )
        tenants = {m.tenant: SeenTenant(0, 0) for m in members}
        tenants["blue"] = SeenTenant(0, now, now * self.wanted)
        told = dict(outside.of_tenant)
        return Look(now, workers, tenants, sample_ns=int(SAMPLE * NS), outside_ns=told)

    def judged(self, seconds: float) -> list[tuple[float, Verdict]]:
        watched = History(SETTINGS, SOFT, 0)
        return [(x.now_ns / NS, each) for x in self.looks(seconds) for each in watched.look(x)]


def renewed(count: int, life: float, *, groups: bool) -> Callable[[float], tuple[Member, ...]]:
    """So many sessions at a time, each for so long."""

    def sessions(at: float) -> tuple[Member, ...]:
        first = 10 + int(at / life) * count
        return tuple(
            Member(pid, f"red/{pid}" if groups else "red", 0, 0, unseen=False)
            for pid in range(first, first + count)
        )

    return sessions


def ranks_and_others(at: float) -> tuple[Member, ...]:
    """One that leaves work behind its turns, and another that does not, by turns."""
    number, late = int(at / 10), at % 10 >= 5
    return (Member(10 + 2 * number + late, "red", 0, 0, unseen=not late),)


@pytest.mark.parametrize("seed", range(2))
def test_nobody_is_ended_for_work_that_a_rank_left(seed: int) -> None:
    """It had half of the time, as slices gave it; who comes then makes a context."""
    red = Red(ranks_and_others, lambda at: 0.5 if at % 10 < 5 else 0.03, seed=seed)
    assert red.judged(330.0) == []


def test_nobody_is_ended_while_nobody_else_has_work() -> None:
    """Whose turn it is keeps it as long as nobody asks for it."""
    red = Red(renewed(1, 3.0, groups=True), lambda at: 0.3, wanted=False)
    assert red.judged(330.0) == []


@pytest.mark.parametrize(
    ("red", "within"),
    [
        # Each has too little to be found alone.
        (Red(renewed(16, 1000.0, groups=True), lambda at: 0.9), 8.0),
        (Red(renewed(16, 1000.0, groups=True), lambda at: 0.25), 90.0),
    ],
)
def test_liars_that_share_it_out_are_ended(red: Red, within: float) -> None:
    at, verdict = red.judged(within)[0]
    assert verdict.pid in {each.pid for each in red.sessions(at)}
    assert verdict.tenant in {each.tenant for each in red.sessions(at)}


def test_what_is_kept_of_minutes_is_little() -> None:
    watched = History(SETTINGS, SOFT, 0)
    for look in Red(renewed(1, 4.0, groups=True), lambda at: 0.0).looks(700.0):
        watched.look(look)
    assert len(watched._time._looks) < 40 and len(watched._time._long) < 80


# Sums ------------------------------------------------------------------------------------------


def look(tenants: dict[str, SeenTenant], *workers: SeenWorker, **told: int) -> Look:
    return Look(0, workers, tenants, sample_ns=1, outside_ns=told)


def test_what_groups_had_only_grows() -> None:
    groups = Groups()
    one, two = SeenTenant(0, 5, 10, 20), SeenTenant(0, 1, 2, 3, beside=True)
    joined = groups.join(look({"red/1": one, "red/2": two}, red=7)).tenants
    assert joined == {"red": SeenTenant(0, 6, 12, 23, beside=True, outside_ns=7)}
    more = replace(one, held_ns=9)
    assert groups.join(look({"red/1": more})).tenants == {"red": SeenTenant(0, 10, 12, 23)}
    anew = {"red/1": more, "red/2": SeenTenant(0, 2)}
    assert groups.join(look(anew)).tenants["red"].held_ns == 12
    assert groups.join(look({"red/1": one, "blue": two})).tenants["red"].held_ns == 12


def test_one_look_in_place_of_many() -> None:
    looks = [
        look({"red": SeenTenant(0, 1, beside=True), "blue": SeenTenant(0, 1)}),
        look({"red": SeenTenant(0, 2)}),
    ]
    assert fold(looks).tenants == {
        "red": SeenTenant(0, 2, beside=True),
        "blue": SeenTenant(0, 1),
    }
