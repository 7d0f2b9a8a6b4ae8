"""GPUs that are sick: seen, put aside, told of, and brought back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from fake_nvml import UUIDS
from fake_nvml_events import SickCards
from gpupool_common.ask import ask
from gpupool_common.errors import ConfigError, RefusedError
from gpupool_common.node_protocol import OrderedGpu
from gpupool_server import health as health_module
from gpupool_server import inventory as inventories
from gpupool_server.admin import AdminHandler
from gpupool_server.config import load_settings
from gpupool_server.device import Device
from gpupool_server.gpu import Gpu
from gpupool_server.gpu_events import GpuEvent, NvmlEvents
from gpupool_server.health import MOST_XIDS, GpuHealth
from gpupool_server.health_metrics import HealthCollector
from gpupool_server.health_settings import SICK_XIDS
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_cards import NvmlCards
from gpupool_server.rundir import Meta
from gpupool_server.usage import NvmlReader
from lease_token_harness import NOW, Node, issued
from server_harness import (
    MakeOffice,
    MakeServer,
    Office,
    accepted,
    eventually,
    hello,
    hello_fields,
    refused,
)

CARDS = [Device(i, "NVIDIA H200", uuid, 1 << 37, "0:0", "9.0") for i, uuid in enumerate(UUIDS)]
WHEN = datetime(2026, 11, 23, 2, 0, tzinfo=UTC)
SICK = "XID 79 at 2026-11-23T02:00:00Z"


def health_of(office: Office) -> GpuHealth:
    return GpuHealth(SICK_XIDS, office.gpus, office.supervisor, clock=lambda: WHEN)


def gpu_of(office: Office, index: int = 0) -> Gpu:
    gpu = office.gpus.get(index)
    assert gpu is not None
    return gpu


def xid(office: Office, number: int, index: int = 0) -> GpuEvent:
    return GpuEvent(gpu_of(office, index).device.uuid, number)


# What NVML says ----------------------------------------------------------------------------


def test_xid_errors_are_read() -> None:
    nvml = SickCards()
    reader = NvmlEvents(nvml, CARDS)
    assert nvml.registered == [0, 1]
    assert reader.read() == []
    nvml.events = [(1, 8, 79), (0, 16, 5), (0, 8, 13)]
    assert reader.read() == [GpuEvent(UUIDS[1], 79), GpuEvent(UUIDS[0], 13)]
    reader.close()


@pytest.mark.parametrize(
    ("error", "text"),
    [(15, "it has fallen off the bus"), (16, "it must be reset before it can be used again")],
)
def test_a_card_that_does_not_answer_any_more(error: int, text: str) -> None:
    nvml = SickCards()
    reader = NvmlEvents(nvml, CARDS)
    nvml.failing = {1: error}
    assert reader.read() == [GpuEvent(UUIDS[1], 0, text)]
    nvml.failing = {1: 3}
    assert reader.read() == [], "a card that cannot say its temperature is not lost"


def test_a_card_without_events_is_still_looked_at() -> None:
    nvml = SickCards(can_register=False)
    reader = NvmlEvents(nvml, CARDS)
    nvml.failing = {0: 15}
    assert [event.uuid for event in reader.read()] == [UUIDS[0]]


def test_of_the_other_cards_all_is_known_while_one_is_lost() -> None:
    nvml = SickCards()
    cards, usage = NvmlCards(nvml), NvmlReader(nvml)
    before = asyncio.run(cards.passing(CARDS[0]))[0], usage.read(CARDS[0]).memory
    nvml.failing = {1: 15}
    cards._passing.clear()
    assert (asyncio.run(cards.passing(CARDS[0]))[0], usage.read(CARDS[0]).memory) == before
    assert "temperature" in before[0] and before[1]


def test_events_are_not_freed_while_they_are_waited_for() -> None:
    nvml = SickCards()
    reader = NvmlEvents(nvml, CARDS)
    waits, goes = threading.Event(), threading.Event()
    freed: list[bool] = []

    def wait() -> None:
        waits.set()
        goes.wait(30)
        freed.append("nvmlEventSetFree" in nvml.asked)

    nvml.before_waiting = wait
    look, end = threading.Thread(target=reader.read), threading.Thread(target=reader.close)
    look.start()
    assert waits.wait(30)
    end.start()
    end.join(0.2)  # it cannot end yet
    goes.set()
    look.join(30)
    end.join(30)
    assert freed == [False] and "nvmlEventSetFree" in nvml.asked
    assert reader.read() == [], "it is closed"


# The server --------------------------------------------------------------------------------


async def test_nothing_new_is_placed_on_it_and_its_programs_are_told(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = await make_office()
    health, changed = health_of(office), []
    accepted(await office.handler.answer(hello(devices="0")))
    accepted(await office.handler.answer(hello(devices="1")))
    office.supervisor.on_change = lambda: changed.append(1)
    said: list[tuple[int, str]] = []

    def say(chosen: Callable[[Meta], bool], text: str) -> None:
        metas = [session.meta for session in office.supervisor._sessions.values()]
        said.extend((meta.devices[0], text) for meta in metas if chosen(meta))

    monkeypatch.setattr(office.supervisor, "say", say)
    health.take([xid(office, 13), GpuEvent("GPU-of-somebody-else", 79)])
    assert not gpu_of(office).sick and not said
    health.take([xid(office, 79), xid(office, 48)])
    assert gpu_of(office).sick == SICK, "what came first stays the reason"
    assert len(said) == len(changed) == 1
    assert said[0][0] == 0 and said[0][1].startswith(f"GPU 0 of the server is put aside: {SICK}")
    code, message = refused(await office.handler.answer(hello(devices="0")))
    assert code == "no-worker" and message.startswith(f"GPU 0 is put aside: {SICK}; use another")
    for asked in ({}, {"gpus": "1"}):
        assert accepted(await office.handler.answer(hello(**asked)))["devices"] == "1"
    code, message = refused(await office.handler.answer(hello(gpus="2")))
    assert code == "bad-request" and "of which its tenant may use 1" in message
    health.put_aside(gpu_of(office, 1), "by hand")
    assert refused(await office.handler.answer(hello()))[0] == "no-worker"


async def test_it_looks_for_as_long_as_the_server_runs(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "PAUSE_SECONDS", 0.01)
    office = await make_office()

    class Reader:
        looks = closed = 0

        def read(self) -> list[GpuEvent]:
            self.looks += 1
            if self.looks == 1:
                raise RuntimeError("one look is missing then")
            return [xid(office, 79)] if self.looks == 3 else []

        def close(self) -> None:
            self.closed += 1

    reader = Reader()
    health = GpuHealth(SICK_XIDS, office.gpus, office.supervisor, reader)
    health.start()
    await eventually(lambda: bool(gpu_of(office).sick))
    await health.close()
    looks = reader.looks
    await asyncio.sleep(0.05)
    assert (reader.looks, reader.closed) == (looks, 1)


async def test_it_lasts_over_a_restart_until_an_operator_opens_it(make_office: MakeOffice) -> None:
    office = await make_office()
    health_of(office).take([xid(office, 79, 1)])
    office.run_dir.close()
    after = await make_office()
    assert gpu_of(after, 1).sick == SICK
    handler = AdminHandler(after.supervisor, after.gpus, health=health_of(after))

    async def ask(**question: object) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await handler.answer(json.dumps(question).encode()))
        return answer

    (_, shown) = (await ask(do="status"))["gpus"]
    assert shown["sick"] == SICK
    assert (await ask(do="gpu-open", gpu=1))["sick"] == ""
    accepted(await after.handler.answer(hello(devices="1")))
    assert (await ask(do="gpu-aside", gpu=0, reason="a fan"))["sick"].startswith("a fan at 2026")
    for wrong in ({"gpu": 9}, {"gpu": None}, {"gpu": "1"}):
        assert (await ask(do="gpu-open", **wrong))["code"] in ("not-found", "bad-request")
    for reason in ("", "two\nlines", 7, None):
        assert (await ask(do="gpu-aside", gpu=1, reason=reason))["code"] == "bad-request"


async def test_errors_are_counted_with_bounds(make_office: MakeOffice) -> None:
    office = await make_office()
    health = health_of(office)
    counter = {}

    def read() -> dict[tuple[str, str], float]:
        sick, xids = HealthCollector(office.gpus, health).collect()
        counter.update({s.labels["gpu"]: s.value for s in sick.samples})
        return {(s.labels["gpu"], s.labels["xid"]): s.value for s in xids.samples}

    assert read()["0", "79"] == 0, "so that the first can be seen to come"
    health.take([xid(office, 79), xid(office, 79), xid(office, 13)])
    assert (read()["0", "79"], read()["0", "13"], read()["1", "79"]) == (2, 1, 0)
    assert counter == {"0": 1, "1": 0}
    health.take([xid(office, number, 1) for number in range(1000, 1000 + 2 * MOST_XIDS)])
    series = [key for key in read() if key[0] == "1"]
    assert len(series) == MOST_XIDS + 1
    assert read()["1", "other"] == MOST_XIDS + len(SICK_XIDS)


def test_which_errors_make_sick_is_a_setting() -> None:
    assert load_settings(None, {}, {}).sick_xids == SICK_XIDS
    # By NVIDIA's catalogue: context switch timeouts and what follows a retired resource are resets,
    # what programs cause and what was contained is not.
    assert {48, 79, 95, 109, 110, 136, 156, 158} < set(SICK_XIDS)
    assert not {13, 31, 43, 45, 63, 94, 154, 155, 157} & set(SICK_XIDS)
    assert load_settings(None, {"sick_xids": "79,48"}, {}).sick_xids == (79, 48)
    assert load_settings(None, {"sick_xids": "none"}, {}).sick_xids == ()
    for bad in ("79,79", "0", "x", "10000", ""):
        with pytest.raises(ConfigError, match="flag --sick-xids: .*XID"):
            load_settings(None, {"sick_xids": bad}, {})


async def test_a_card_that_was_lost_before_the_server_started(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served no more, by name; the others are."""
    take = inventories.take

    def lost(*asked: Any) -> Inventory:
        found = take(*asked)
        return dataclasses.replace(found, lost={0: "it has fallen off the bus"})

    monkeypatch.setattr(inventories, "take", lost)
    server = await make_server(soft_gpus=2)
    answer = await asyncio.to_thread(ask, server.url, "hello", hello_fields())
    assert answer.fields["devices"] == "1"
    with pytest.raises(RefusedError, match="GPU 0 is put aside: it has fallen off the bus at "):
        await asyncio.to_thread(ask, server.url, "hello", hello_fields(devices="0"))


# A server of a pool ------------------------------------------------------------------------


async def test_a_server_tells_its_pool_and_obeys(make_office: MakeOffice) -> None:
    office = await make_office()
    node = Node(office)
    health = health_of(office)
    gpu = gpu_of(office)
    assert node.member.heartbeat().sick == {}
    node.apply(at=NOW - 100)
    accepted(await node.hello(issued()))
    health.take([xid(office, 79)])
    assert node.member.heartbeat().sick == {gpu.device.uuid: SICK}
    (told, _) = node.member.report("tcp://h:1", "", {}).gpus
    assert told.sick == SICK
    # Its lease has this GPU and no other.
    assert refused(await node.hello(issued()))[0] == "no-worker"
    ordered: dict[str, Any] = {"policy": "share", "max_inst": 20, "prio_ratio": 90}
    for opened in ("", "XID 48 at another time"):
        node.apply(at=NOW - 100, gpus=[OrderedGpu(uuid=gpu.device.uuid, opened=opened, **ordered)])
        assert gpu.sick == SICK, "an operator has not seen this one"
    node.apply(at=NOW - 100, gpus=[OrderedGpu(uuid=gpu.device.uuid, opened=SICK, **ordered)])
    assert gpu.sick == "" and node.member.heartbeat().sick == {}
