"""What tenants owe for work that outlives their turns, and when one is ended for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from gpupool_server.watch_debt import ASKED_NS, LEAST_NS, Debts
from gpupool_server.watch_look import NS, Look, SeenTenant, SeenWorker, Verdict
from gpupool_server.watch_settings import WatchSettings

LOOK = NS
RED, BLUE = 10, 20
SETTINGS = WatchSettings.model_construct(owed_seconds=60)


@dataclass(frozen=True)
class Gpu:
    """Parts of the time: red's left work is found, red's turns, blue's wish for the GPU."""

    left: float
    held: float = 0.0
    wanted: float = 1.0
    red: SeenTenant = SeenTenant(0, due=500)
    blue: SeenTenant = SeenTenant(0, due=500)
    #: Red has others, which do nothing.
    groups: int = 0

    def looks(self, seconds: float, begin: Look | None = None) -> Iterator[Look]:
        look = begin or self.look(0, SeenTenant(0), SeenTenant(0), 0)
        for _ in range(int(seconds * NS / LOOK)):
            red, blue = look.tenants["red"], look.tenants["blue"]
            left = look.left_ns["red"] + int(self.left * LOOK)
            look = self.look(look.now_ns + LOOK, red, blue, left)
            yield look

    def look(self, now: int, red: SeenTenant, blue: SeenTenant, left: int) -> Look:
        held = (red.held_ns or 0) + int(self.held * LOOK)
        busy = blue.busy_ns + int(self.wanted * LOOK)
        tenants = {
            "red": replace(self.red, held_ns=held, busy_ns=held),
            "blue": replace(self.blue, held_ns=0, busy_ns=busy),
            **{f"red/{i}": SeenTenant(0, 0, due=500) for i in range(self.groups)},
        }
        workers = (SeenWorker(RED, "red", 0, 0, left_ns=left), SeenWorker(BLUE, "blue", 0, 0))
        return Look(now, workers, tenants, sample_ns=NS // 5, left_ns={"red": left})


def judged(gpu: Gpu, seconds: float, settings: WatchSettings = SETTINGS) -> list[Verdict]:
    debts = Debts(settings, 0)
    return [verdict for look in gpu.looks(seconds) for verdict in debts.look(look)]


def owed(gpu: Gpu, seconds: float) -> float:
    debts = Debts(SETTINGS, 0)
    for look in gpu.looks(seconds):
        debts.look(look)
    return debts.owed.get("red", 0.0) / NS


@pytest.mark.parametrize(
    ("gpu", "a_second"),
    [
        (Gpu(0.5), 0.0),  # its half, by work that goes on
        (Gpu(0.3, 0.2), 0.0),  # a part of it in turns of its own, of which it had fewer
        (Gpu(0.9), 0.4),
        (Gpu(0.9, 0.1), 0.5),
        (Gpu(0.9, wanted=0.0), 0.9),  # what was found is what others lost
        (Gpu(0.1, 0.9), 0.1),  # turns are the arbiter's to give
        (Gpu(0.5, red=SeenTenant(0, due=50), blue=SeenTenant(0, due=950)), 0.45),
        (Gpu(0.5, red=SeenTenant(0, due=500, most=250)), 0.25),
        (Gpu(0.9, red=SeenTenant(0, most=500), blue=SeenTenant(0)), 0.4),  # nobody says
        (Gpu(0.9, groups=5), 0.4),  # groups without workers have no part
        (Gpu(0.0, 0.1), 0.0),
    ],
)
def test_what_is_owed(gpu: Gpu, a_second: float) -> None:
    assert owed(gpu, 20.0) == pytest.approx(19 * a_second, rel=0.02, abs=0.01)


def test_it_is_paid_with_turns_and_forgiven_in_time() -> None:
    debts = Debts(SETTINGS, 0)
    looks = [*Gpu(0.9).looks(50.0)]
    for look in looks:
        debts.look(look)
    before = debts.owed["red"]
    looks = [*Gpu(0.0, 0.2).looks(30.0, looks[-1])]
    for look in looks:
        debts.look(look)
    assert debts.owed["red"] == pytest.approx(before - 9 * NS, rel=0.1)
    for look in Gpu(0.0, 0.5).looks(2000.0, looks[-1]):
        debts.look(look)
    assert debts.owed["red"] < NS


def test_whoever_owes_too_much_is_asked_and_then_ended() -> None:
    debts = Debts(SETTINGS, 0)
    found = [
        (look.now_ns, verdict) for look in Gpu(0.96).looks(170.0) for verdict in debts.look(look)
    ]
    (asked_ns, asked), (ended_ns, ended) = found[:2]
    assert 130 * NS < asked_ns < 150 * NS and ended_ns == asked_ns + ASKED_NS
    assert (asked.pid, asked.tenant, asked.cause, asked.liar) == (RED, "red", "time", False)
    assert (ended.pid, ended.liar) == (RED, True)
    assert "60 s more than its part" in asked.reason


@pytest.mark.parametrize(
    "gpu",
    [
        Gpu(0.5),
        Gpu(0.08, 0.5),  # what an honest program's contexts were found at
        Gpu(0.0, 1.0),
    ],
)
def test_who_has_its_part_is_never_ended(gpu: Gpu) -> None:
    assert judged(gpu, 2000.0) == []


def test_an_operator_may_end_nobody_for_it() -> None:
    assert judged(Gpu(0.96), 400.0, WatchSettings.model_construct(owed_seconds=0)) == []


def test_the_debt_outlives_the_worker_and_the_next_one_is_not_ended_for_it_at_once() -> None:
    """It is ended once it has left something itself."""
    debts = Debts(SETTINGS, 0)
    looks = [*Gpu(0.96).looks(170.0)]
    for look in looks:
        debts.look(look)
    gone = replace(looks[-1], workers=(), sample_ns=0)
    assert debts.look(gone) == [] and debts.owed["red"] > 60 * NS
    found = []
    for look in Gpu(0.96).looks(20.0, looks[-1]):
        left = look.left_ns["red"] - looks[-1].left_ns["red"]
        workers = (SeenWorker(11, "red", 0, 0, left_ns=left), look.workers[1])
        found += [(left, verdict) for verdict in debts.look(replace(look, workers=workers))]
    (left, verdict), *_ = found
    assert verdict.pid == 11 and not verdict.liar and 0.8 * LEAST_NS <= left < LEAST_NS + LOOK


def test_short_sessions_are_ended_once_more_is_owed() -> None:
    """At less, and at twice as much without being asked."""
    debts = Debts(SETTINGS, 0)
    found: list[Verdict] = []
    for number, look in enumerate(Gpu(0.96).looks(400.0)):
        session = replace(look.workers[0], pid=100 + number // 4, left_ns=number % 4 * LOOK)
        found += debts.look(replace(look, workers=(session, look.workers[1])))
        if any(verdict.liar for verdict in found):
            break
    assert found[-1].liar and 120 * NS <= debts.owed["red"] < 125 * NS


def test_it_is_forgiven_also_while_nobody_is_there() -> None:
    debts = Debts(SETTINGS, 0)
    looks = [*Gpu(0.96).looks(170.0)]
    for look in looks:
        debts.look(look)
    before = debts.owed["red"]
    for after in range(1, 640):
        now_ns = looks[-1].now_ns + after * LOOK
        debts.look(replace(looks[-1], now_ns=now_ns, workers=(), sample_ns=0))
    assert debts.owed["red"] == pytest.approx(before / math.e, rel=0.01)


@pytest.mark.parametrize("turns", [True, False])
def test_where_there_are_no_turns_or_no_moments_nobody_owes(turns: bool) -> None:
    debts = Debts(SETTINGS, 0)
    looks = [*Gpu(0.96).looks(50.0)]
    for look in looks:
        debts.look(look)
    assert debts.owed
    debts.look(replace(looks[-1], turns=turns, sample_ns=0 if turns else NS // 5))
    assert not debts.owed


def test_counts_of_another_board_are_not_compared() -> None:
    debts = Debts(SETTINGS, 0)
    (first, second) = Gpu(0.96).looks(2.0)
    debts.look(first)
    debts.look(replace(second, era=1))
    assert not debts.owed
