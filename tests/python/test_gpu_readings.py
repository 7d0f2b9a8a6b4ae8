"""How GPUs do: what a node tells its manager of them, and what the manager shows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gpupool_common.node_protocol import GpuReading, Heartbeat
from gpupool_server.board import Grant
from gpupool_server.device import Device
from gpupool_server.gpu_readings import STALE_SECONDS, GpuReadings
from gpupool_server.nvml_cards import Facts, SoftCards
from gpupool_server.pool_member import PoolMember
from manager_rest import Rest
from server_harness import MakeOffice, Office

SECOND = 1_000_000_000


class FakeCards(SoftCards):
    """Cards that say what the test has told them to, when it lets them."""

    def __init__(self) -> None:
        self.facts: Facts = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0

    async def passing(self, device: Device) -> tuple[Facts, Mapping[int, int]]:
        self.asked += 1
        await self.may_answer.wait()
        if "broken" in self.facts:
            raise RuntimeError("it fell off the bus")
        return self.facts, {}


def work(office: Office, nanoseconds: int) -> None:
    """A second goes by, in which a lease was at work for so long."""
    gpu, board = office.gpus.get(0), office.boards.of(0)
    assert gpu is not None
    if "red/lease-1" not in board.grants:
        board.put("red/lease-1", Grant())
        gpu.claims["red/lease-1"] = None  # type: ignore[assignment]
    board.now_ns += SECOND
    board.busy_ns["red/lease-1"] = board.busy_ns.get("red/lease-1", 0) + nanoseconds
    gpu.look()


async def first(readings: GpuReadings) -> GpuReading:
    """What a heartbeat says after the card has answered."""
    readings.read()
    await readings.settled()
    return readings.read()[0]


async def test_how_busy_it_is_the_arbiter_has_seen(make_office: MakeOffice) -> None:
    office = await make_office()
    readings = GpuReadings(office.gpus)
    assert readings.read()[0].busy_permille is None
    work(office, 0)
    work(office, SECOND // 4)
    assert readings.read()[0].busy_permille == 250
    work(office, 0)
    assert readings.read()[0].busy_permille == 0
    readings.close()


async def test_what_a_card_says_is_told_and_what_it_cannot_is_not(make_office: MakeOffice) -> None:
    office, cards = await make_office(), FakeCards()
    readings = GpuReadings(office.gpus, cards)
    cards.facts = {"temperature": 66, "memory-used": 1 << 60, "ecc-volatile-uncorrected": "x"}
    found = await first(readings)
    gpu = office.gpus.get(0)
    assert gpu is not None
    assert (found.gpu, found.temperature_celsius) == (gpu.device.uuid, 66)
    assert found.memory_used_bytes == gpu.device.memory_bytes  # more cannot be
    assert found.memory_errors is None
    readings.close()
    assert (await first(GpuReadings(office.gpus))).temperature_celsius is None  # a soft GPU


async def test_a_card_that_hangs_or_fails_holds_no_heartbeat_up(make_office: MakeOffice) -> None:
    now = 1000.0
    office, cards = await make_office(), FakeCards()
    readings = GpuReadings(office.gpus, cards, lambda: now)
    cards.facts = {"temperature": 66}
    assert (await first(readings)).temperature_celsius == 66
    await readings.settled()
    cards.may_answer.clear()
    asked = cards.asked
    for _ in range(5):
        assert readings.read()[0].temperature_celsius == 66
        await asyncio.sleep(0)
    assert cards.asked - asked == len(list(office.gpus))  # and not once more each time
    now += STALE_SECONDS + 1
    assert readings.read()[0].temperature_celsius is None
    cards.facts = {"broken": 1}
    cards.may_answer.set()
    await readings.settled()
    assert (await first(readings)).temperature_celsius is None
    readings.close()


async def test_a_heartbeat_has_them(make_office: MakeOffice) -> None:
    office = await make_office()
    readings = GpuReadings(office.gpus)
    folder = office.run_dir.path
    member = PoolMember("n1", folder, office.gpus, office.supervisor, readings=readings)
    beat = member.heartbeat()
    assert [each.gpu for each in beat.readings] == [gpu.device.uuid for gpu in office.gpus]
    member.close()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"busy_permille": 1001}, {"busy_permille": -1}, {"temperature_celsius": 1 << 40}),
        *({"memory_used_bytes": -1}, {"memory_errors": 1 << 62}, {"gpu": "a b"}, {"gpu": None}),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Heartbeat.model_validate({"readings": [{"gpu": "GPU-1", **wrong}]})
    with pytest.raises(ValueError):
        Heartbeat.model_validate({"readings": [{"gpu": "GPU-1"}] * 65})


async def test_the_manager_shows_what_a_node_says_of_its_own(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.world.join("n2", 1)
    assert (await rest.do("GET", "/gpus/GPU-n1-0"))["reading"] is None
    told = [{"gpu": "GPU-n1-0", "busy_permille": 5}, {"gpu": "GPU-n2-0", "busy_permille": 999}]
    await rest.world.beat("n1", readings=told)
    found = {gpu["uuid"]: gpu["reading"] for gpu in await rest.pages("/gpus")}
    nothing = {"temperature_celsius": None, "memory_used_bytes": None, "memory_errors": None}
    assert found == {"GPU-n1-0": {"busy_permille": 5, **nothing}, "GPU-n2-0": None}
    await rest.world.later(1000)  # it is lost
    assert (await rest.do("GET", "/gpus/GPU-n1-0"))["reading"] is None
