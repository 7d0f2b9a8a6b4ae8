"""The watchdog on a server: what it ends, what it says, and what it leaves alone."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpupool_common.node_protocol import Heartbeat, ReportedLiar
from gpupool_server.admin import AdminHandler
from gpupool_server.board import BoardGpu, Grant, Turn
from gpupool_server.device import Device
from gpupool_server.usage import SOFT, Usage
from gpupool_server.watch import ASKED_SECONDS, Own
from gpupool_server.watch_look import NS
from gpupool_server.watch_samples import STRAY
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_turns import STRAY_MOST_NS, Moment
from gpupool_server.watchdog import HIDDEN, MISSED, UNTOLD, Watchdog
from server_harness import (
    MakeOffice,
    Office,
    eventually,
    hello,
    process_lives,
    refused,
    write_worker,
)
from test_sessions import opened

MIB = 1 << 20


class Reader:
    """A driver that says what the test wants."""

    def __init__(self) -> None:
        self.usage = Usage()

    def own(self, settings: WatchSettings) -> Own:
        return SOFT

    def read(self, device: Device) -> Usage:
        return self.usage


class Watch:
    """A server with two sessions, a watchdog that looks when it is told to, and its driver."""

    def __init__(self, office: Office, settings: WatchSettings) -> None:
        self.office = office
        self.reader = Reader()
        self.dog = Watchdog(settings, office.gpus, office.supervisor, self.reader)
        self.board = office.boards.of(0)
        #: Seconds of work.
        self.worked = 0

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.dog.look(self.dog._watched[0])

    async def judge(self) -> None:
        """Look for so long that who was asked to end has had its time."""
        await self.look(SOFT.looks)
        self.board.now_ns += ASKED_SECONDS * NS
        await self.look()

    async def work(self, pid: int, seconds: int, *, steals: bool, unseen: bool = False) -> None:
        """Until then: turns of 0.1 s each with blue; the driver finds it in each of its own, or in
        blue's."""
        if 999_999 not in self.board.members:
            self.board.put("blue", Grant())
            self.board.join(999_999, "blue")
        self.board.members[pid] = dataclasses.replace(self.board.members[pid], unseen=unseen)
        for second in range(self.worked, seconds):
            self.board.now_ns = second * NS
            self.board.busy_ns["blue"] = second * NS
            self.board.held_ns = dict.fromkeys(("default", "blue"), second * NS // 2)
            for tenth in range(10 * (second - 1), 10 * second):
                whose = "blue" if tenth % 2 else "default"
                self.board.log.append(Turn(whose, tenth * NS // 10, (tenth + 1) * NS // 10))
            offset = 5 * steals + 2
            seen = [(second - 1) * NS + (2 * i * 5 + offset) * NS // 50 for i in range(5)]
            moments = tuple(Moment(pid, at, NS // 5) for at in seen)
            self.reader.usage = Usage({}, {pid: second * NS}, sample_ns=NS // 5, moments=moments)
            await self.look()
        self.worked = seconds

    async def session(self, memory: int = 0) -> tuple[str, int]:
        session, pid = await opened(self.office)
        self.board.put("default", Grant(memory=64 * MIB))
        self.board.join(pid, "default", memory)
        return session, pid


@pytest.fixture
async def watch(make_office: MakeOffice) -> Watch:
    return Watch(await make_office(), WatchSettings.model_construct())


@pytest.fixture
async def stubborn(make_office: MakeOffice, folder: Path) -> Watch:
    """Its workers do not end when they are asked to."""
    office = await make_office(worker=write_worker(folder / "worker", "stubborn"))
    return Watch(office, WatchSettings.model_construct())


async def test_a_worker_is_asked_to_end_first(watch: Watch) -> None:
    """Its driver may have taken that by itself."""
    session, pid = await watch.session()
    watch.reader.usage = Usage({pid: 100 * MIB})
    with capture_logs() as events:
        await watch.look(SOFT.looks)
        await eventually(lambda: not process_lives(pid))
        await eventually(lambda: any(e["event"] == "session ended" for e in events))
    (asked,) = [event for event in events if event["event"] == "asking a session to end"]
    assert asked["session"] == session
    assert asked["reason"] == "the driver took 36 MiB beyond the limit of the session"
    (ended,) = [event for event in events if event["event"] == "session ended"]
    assert ended["reason"] == "exit code 0"
    assert watch.office.supervisor.liars.describe() == []


async def test_a_worker_with_too_much_memory_is_ended(stubborn: Watch) -> None:
    watch = stubborn
    session, liar = await watch.session()
    _, honest = await watch.session(60 * MIB)
    watch.reader.usage = Usage({liar: 40 * MIB, honest: 60 * MIB})
    await watch.look(SOFT.looks)
    assert process_lives(liar)
    with capture_logs() as events:
        await watch.judge()
        await eventually(lambda: not process_lives(liar))
    assert process_lives(honest)
    (event,) = [event for event in events if event["event"].startswith("ended a liar")]
    assert (event["session"], event["cause"], event["gpu"]) == (session, "memory", 0)
    (shown,) = watch.office.supervisor.liars.describe()
    assert (shown["session"], shown["worker_pid"]) == (session, liar)
    assert "may have 64MiB" in shown["reason"]


async def test_who_works_outside_of_its_turns_is_ended(watch: Watch) -> None:
    _, liar = await watch.session()
    board = watch.board
    board.put("blue", Grant())
    board.join(999_999, "blue")
    for second in range(9):
        board.now_ns = second * 10**9
        board.busy_ns["blue"] = second * 10**9
        board.held_ns = dict.fromkeys(("default", "blue"), 0)
        watch.reader.usage = Usage({}, {liar: second * 10**9})
        await watch.look()
    await eventually(lambda: not process_lives(liar))
    assert watch.office.supervisor.liars.describe()[0]["cause"] == "time"


async def test_who_says_that_work_of_it_outlives_its_turns_pays_for_it(watch: Watch) -> None:
    _, pid = await watch.session()
    await watch.work(pid, 9, steals=True, unseen=True)
    assert {(name, whose) for name, _, whose in watch.board.charged} == {("default", "blue")}
    free = STRAY_MOST_NS + STRAY * 8 * NS
    assert sum(ns for _, ns, _ in watch.board.charged) == pytest.approx(8 * NS - free, rel=0.02)
    assert watch.dog.describe(0)["tenants"]["default"]["owed"] == pytest.approx(8 * NS, rel=0.02)


async def test_who_owes_too_much_is_ended(stubborn: Watch) -> None:
    watch = Watch(stubborn.office, WatchSettings.model_construct(owed_seconds=10))
    _, pid = await watch.session()
    await watch.work(pid, 12, steals=True, unseen=True)
    assert watch.office.supervisor.liars.describe() == []  # it was asked
    await watch.work(pid, 15, steals=True, unseen=True)
    (shown,) = watch.office.supervisor.liars.describe()
    assert (shown["worker_pid"], shown["cause"]) == (pid, "time")
    assert "more than its part" in shown["reason"]


async def test_what_is_known_of_times_is_shown(watch: Watch) -> None:
    _, busy = await watch.session()
    board = watch.board
    board.put("blue", Grant())
    for second in range(9):
        board.now_ns = second * 10**9
        board.held_ns = {"default": second * 10**8, "blue": 0}
        watch.reader.usage = Usage({}, {busy: second * 10**9}, late=second == 2)
        await watch.look()
    assert watch.dog.describe(0)["tenants"] == {}  # not for long enough since they were late
    board.now_ns = 9 * 10**9
    watch.reader.usage = Usage({}, {busy: 9 * 10**9})
    await watch.look()
    seen = watch.dog.describe(0)["tenants"]
    assert seen["default"]["used"] == 5 * 10**9
    assert seen["default"]["held_back"].startswith("it says that work of it outlives its turns")
    assert seen["blue"]["held_back"] == "it worked in its turns"


async def test_without_turns_nobody_is_ended_for_time(watch: Watch) -> None:
    _, busy = await watch.session()
    board = watch.board
    board.gpu = BoardGpu("native", 20, 90, True, 1 << 30)
    board.put("blue", Grant())
    for second in range(12):
        board.now_ns = second * 10**9
        board.busy_ns["blue"] = second * 10**9
        board.held_ns = dict.fromkeys(("default", "blue"), 0)
        watch.reader.usage = Usage({}, {busy: second * 10**9})
        await watch.look()
    assert process_lives(busy)


async def test_nobody_is_ended_for_what_cannot_be_seen(watch: Watch) -> None:
    _, pid = await watch.session(60 * MIB)
    watch.reader.usage = Usage({4: 100 * MIB}, {}, "NVML: Not Supported", "NVML: Not Supported")
    with capture_logs() as events:
        await watch.look(3 * SOFT.looks)
    assert process_lives(pid)
    said = [event for event in events if event["event"].startswith("what workers have")]
    assert [event["what"] for event in said] == ["memory", "time"]  # once each
    assert watch.dog.describe(0)["memory"] == "off: NVML: Not Supported"
    watch.reader.usage = Usage({pid: 60 * MIB})
    await watch.look()
    seen = watch.dog.describe(0)
    assert (seen["memory"], seen["time"], seen["looks"]) == ("on", "on", 3 * SOFT.looks + 1)
    assert watch.dog.describe(7) == {}


async def test_processes_that_are_hidden(watch: Watch) -> None:
    """A container, or a card in parts: the driver lists pids, and none is a worker's."""
    _, pid = await watch.session(60 * MIB)
    watch.reader.usage = Usage({1 << 21: 100 * MIB})
    await watch.look(MISSED - 1)
    assert watch.dog.describe(0)["memory"] == "on"
    await watch.look()
    assert watch.dog.describe(0)["memory"] == watch.dog.describe(0)["time"] == f"off: {HIDDEN}"
    assert process_lives(pid)
    watch.reader.usage = Usage({pid: 60 * MIB})
    await watch.look()
    assert watch.dog.describe(0)["memory"] == watch.dog.describe(0)["time"] == "on"


async def test_one_that_is_listed_shows_that_they_can_be_seen(watch: Watch) -> None:
    _, listed = await watch.session(20 * MIB)
    await watch.session(20 * MIB)
    watch.reader.usage = Usage({listed: 20 * MIB})
    await watch.look(3 * MISSED)
    assert watch.dog.describe(0)["memory"] == "on"


async def test_looks_that_are_too_seldom_for_time(make_office: MakeOffice) -> None:
    watch = Watch(await make_office(), WatchSettings.model_construct(interval_ms=2000))
    await watch.dog.start()
    seen = watch.dog.describe(0)
    assert seen["memory"] == "on" and "interval_ms" in str(seen["time"])
    await watch.dog.close()


async def test_it_may_only_say_so(make_office: MakeOffice) -> None:
    settings = WatchSettings.model_construct(mode="log")
    watch = Watch(await make_office(), settings)
    _, liar = await watch.session()
    watch.reader.usage = Usage({liar: 100 * MIB})
    with capture_logs() as events:
        await watch.look(3 * SOFT.looks)
        assert process_lives(liar)
        del watch.board.members[liar]
        await watch.look()
        watch.board.join(liar, "default", 0)  # another one, by the same number
        await watch.look(3 * SOFT.looks)
    named = [event for event in events if "it is not ended" in event["event"]]
    assert [event["worker_pid"] for event in named] == [liar] * 2
    assert len(watch.dog._watched[0].named) == 1


@pytest.mark.parametrize("steals", [False, True])
async def test_whose_turn_it_was_is_compared(watch: Watch, steals: bool) -> None:
    _, pid = await watch.session()
    await watch.work(pid, 12, steals=steals)
    if steals:
        await eventually(lambda: not process_lives(pid))
        (found,) = watch.office.supervisor.liars.describe()
        assert (found["cause"], found["worker_pid"]) == ("time", pid)
        assert "5.0 of 5.0 s outside its turns" in found["reason"]
    else:
        assert process_lives(pid)
        assert watch.dog.describe(0)["tenants"]["default"]["outside"] == 0


async def test_another_board_knows_nothing_of_turns_before(watch: Watch) -> None:
    _, pid = await watch.session()
    for _ in range(4):  # none is there for long enough
        await watch.work(pid, 7, steals=True)
        watch.dog._watched[0].board = None
        watch.board.log.clear()
    assert process_lives(pid)


async def test_an_arbiter_that_does_not_say_whose_turn_it_was(watch: Watch) -> None:
    _, pid = await watch.session()
    watch.board.knows_turns = False
    await watch.work(pid, 20, steals=True)
    assert process_lives(pid)
    assert watch.dog.describe(0)["time"] == f"off: {UNTOLD}"
    assert watch.dog.describe(0)["memory"] == "on"


async def test_without_turns_moments_say_nothing(watch: Watch) -> None:
    _, pid = await watch.session()
    watch.board.gpu = BoardGpu("native", 20, 90, True, 1 << 30)
    await watch.work(pid, 20, steals=True)
    assert process_lives(pid)
    assert watch.dog.describe(0)["time"] == "on"


async def test_off_is_said(make_office: MakeOffice) -> None:
    watch = Watch(await make_office(), WatchSettings.model_construct(mode="off"))
    await watch.dog.start()
    assert watch.dog.describe(0)["memory"] == "off: watch.mode is off"
    await watch.dog.close()


async def test_it_looks_by_itself(make_office: MakeOffice) -> None:
    watch = Watch(await make_office(), WatchSettings.model_construct(interval_ms=100))
    _, liar = await watch.session()
    watch.reader.usage = Usage({liar: 100 * MIB})
    await watch.dog.start()
    await eventually(lambda: not process_lives(liar))
    await watch.dog.close()


async def test_a_look_that_fails_is_one_look(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(await make_office(), WatchSettings.model_construct(interval_ms=100))
    failed: list[int] = []
    good = watch.reader.read

    def read(device: Device) -> Usage:
        failed.append(1)
        if len(failed) == 5:
            raise RuntimeError("broken")
        return good(device)

    monkeypatch.setattr(watch.reader, "read", read)
    _, liar = await watch.session()
    watch.reader.usage = Usage({liar: 100 * MIB})
    await watch.dog.start()
    await eventually(lambda: not process_lives(liar))
    await watch.dog.close()


async def test_one_that_lies_before_it_is_ready_is_ended(
    make_office: MakeOffice, folder: Path
) -> None:
    """It has a seat, and its client waits for it."""
    worker = write_worker(folder / "worker", "silent")
    office = await make_office(worker=worker, worker_start_seconds=600.0)
    watch = Watch(office, WatchSettings.model_construct())
    asked = asyncio.create_task(office.handler.answer(hello()))
    await eventually(lambda: bool(office.supervisor.launcher.starting))
    (starting,) = office.supervisor.launcher.starting
    liar = starting.meta.pid
    watch.board.put("default", Grant(memory=64 * MIB))
    watch.board.join(liar, "default")
    watch.reader.usage = Usage({liar: 100 * MIB})
    await watch.judge()
    assert refused(await asked)[0] == "no-worker"
    assert not process_lives(liar)
    assert [each["worker_pid"] for each in office.supervisor.liars.describe()] == [liar]
    assert office.supervisor.launcher.starting == []


async def test_operators_see_it(stubborn: Watch) -> None:
    watch = stubborn
    session, liar = await watch.session()
    watch.reader.usage = Usage({liar: 100 * MIB})
    await watch.judge()
    handler = AdminHandler(watch.office.supervisor, watch.office.gpus, watch.dog)
    status: dict[str, Any] = await handler._status()
    assert [each["session"] for each in status["liars"]] == [session]
    seen = status["gpus"][0]["watch"]
    assert (seen["memory"], seen["time"], seen["looks"]) == ("on", "on", SOFT.looks + 1)


async def test_what_the_manager_is_told(stubborn: Watch) -> None:
    """Of a lease's session, again and again until it has answered."""
    watch = stubborn
    session, pid = await watch.session()
    supervisor = watch.office.supervisor
    kept = supervisor._sessions[session]
    kept.meta = dataclasses.replace(kept.meta, lease="lease-1")
    watch.reader.usage = Usage({pid: 100 * MIB})
    await watch.judge()
    (told,) = supervisor.liars.untold()
    assert told == ReportedLiar(
        session=session,
        lease="lease-1",
        gpu=watch.office.gpus.get(0).device.uuid,  # type: ignore[union-attr]
        cause="memory",
        reason=told.reason,
    )
    assert supervisor.liars.untold() == [told]
    supervisor.liars.told(Heartbeat(liars=[told]).liars)
    assert supervisor.liars.untold() == []
