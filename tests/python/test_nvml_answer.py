"""What the server tells a client's libnvidia-ml.so.1: its words, limits and pages."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpupool_common import protocol
from gpupool_common.errors import ProtocolError
from gpupool_server import nvml_cards
from gpupool_server.device import Device
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_answer import MAX_PROCESSES, NvmlClient, NvmlHandler, Running, View
from server_harness import TOKEN, MakeOffice, accepted, hello, hello_fields, refused

ROOT = Path(__file__).resolve().parents[2]
FACTS = tomllib.loads((ROOT / "proto/spec_nvml/facts.toml").read_text(encoding="utf-8"))
GIB = 1 << 30


def device(index: int) -> Device:
    return Device(index, f"GPU model {index}", f"GPU-{index:08}", 8 * GIB, f"0000:{index:02x}:00.0")


def question(**fields: str) -> protocol.Message:
    return protocol.Message("nvml", fields)


def handler_for(views: Sequence[View], asked: list[NvmlClient] | None = None) -> NvmlHandler:
    async def visible(client: NvmlClient) -> Sequence[View]:
        if asked is not None:
            asked.append(client)
        return views

    return NvmlHandler(Inventory("soft", Path("/none"), tuple(v.device for v in views)), visible)


def words(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split(" "))


async def ask(handler: NvmlHandler, **fields: str) -> Mapping[str, str]:
    answer = protocol.decode(await handler.answer(question(**fields), tenant="default"))
    assert answer.word == "ok"
    return answer.fields


async def test_one_device() -> None:
    fields = await ask(handler_for([View(device(3))]))
    assert fields["devices"] == "1"
    assert fields["gpu0-name"] == "GPU model 3"
    assert "next" not in fields
    said = words(fields["gpu0"])
    assert said["uuid"] == "GPU-00000003"
    assert said["memory-total"] == str(8 * GIB)
    assert said["memory-used"] == "0"
    assert said["architecture"] == str(0xFFFFFFFF)  # which nvidia-smi topo takes
    assert "temperature" not in said
    assert set(said) <= FACTS.keys()


async def test_fresh_is_what_changes() -> None:
    fields = await ask(handler_for([View(device(0))]), what="fresh")
    said = words(fields["gpu0"])
    assert {FACTS[word]["kind"] for word in said if word != "uuid"} == {"fresh"}
    assert "gpu0-name" not in fields


async def test_a_limit_is_the_total() -> None:
    view = View(device(0), limit=2 * GIB, used=GIB)
    said = words((await ask(handler_for([view])))["gpu0"])
    assert (said["memory-total"], said["memory-used"]) == (str(2 * GIB), str(GIB))
    generous = replace(view, limit=100 * GIB)
    said = words((await ask(handler_for([generous])))["gpu0"])
    assert said["memory-total"] == str(8 * GIB)


async def test_use_is_that_of_the_processes() -> None:
    running = (Running(20, 120, 5), Running(10, 110, 7), Running(30, 130))
    fields = await ask(handler_for([View(device(0), processes=running)]))
    assert fields["gpu0-processes"] == "10=7 20=5 30=-"
    assert words(fields["gpu0"])["memory-used"] == "12"


async def test_processes_end_where_the_client_has_no_room() -> None:
    running = tuple(Running(pid, pid, 1) for pid in range(1, 1000))
    fields = await ask(handler_for([View(device(0), processes=running)]))
    assert len(fields["gpu0-processes"].split(" ")) == MAX_PROCESSES
    huge = tuple(Running(4_000_000 + n, n, 2**63) for n in range(1000))
    views = [View(device(index), processes=huge) for index in range(4)]
    assert "gpu0-processes" in await ask(handler_for(views))


@pytest.mark.parametrize("what", ["all", "fresh"])
async def test_pages(what: str) -> None:
    views = [
        View(device(index), processes=tuple(Running(pid, pid, GIB) for pid in range(1, 50)))
        for index in range(64)
    ]
    handler, seen, first = handler_for(views), list[str](), "0"
    while first:
        fields = await ask(handler, what=what, **{"from": first})
        assert fields["devices"] == "64"
        page = [key for key in fields if key.removeprefix("gpu").isdecimal()]
        assert page
        seen += page
        first = fields.get("next", "")
    assert seen == [f"gpu{index}" for index in range(64)]


async def test_names_fit() -> None:
    long = replace(device(0), name="Ä" * 60 + "\n")
    assert (await ask(handler_for([View(long)])))["gpu0-name"] == "Ä" * 47
    empty = replace(device(0), name=" \t")
    assert (await ask(handler_for([View(empty)])))["gpu0-name"] == "GPU"


@pytest.mark.parametrize(
    "fields",
    [
        {"what": "everything"},
        {"from": "-1"},
        {"from": "1024"},
        {"from": "one"},
        {"pid": "0"},
        {"gpus": "0"},
        {"memory": "8GiB"},
        {"memory": "9223372036854775808"},
        {"devices": "x"},
    ],
)
async def test_bad_questions(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="nvml: "):
        await ask(handler_for([View(device(0))]), **fields)


async def test_the_asker_is_known() -> None:
    asked: list[NvmlClient] = []
    handler = handler_for([View(device(0))], asked)
    await ask(handler, group="g", host="h", pid="7", gpus="2", memory="5", devices="0,1")
    assert asked == [NvmlClient("default", "g", "h", 7, 2, 5, (0, 1))]


# At the front end ----------------------------------------------------------


def nvml(**fields: str) -> bytes:
    return protocol.encode("nvml", {"token": TOKEN, **fields})


async def test_the_front_end_answers(make_office: MakeOffice) -> None:
    office = await make_office()
    fields = accepted(await office.handler.answer(nvml()))
    assert fields["devices"] == "2"
    assert accepted(await office.handler.answer(nvml(gpus="1")))["devices"] == "1"
    code, _ = refused(await office.handler.answer(protocol.encode("nvml", {"token": "wrong"})))
    assert code == "bad-token"
    assert refused(await office.handler.answer(nvml(what="x")))[0] == "bad-request"


async def test_sessions_are_shown_on_their_own_host(make_office: MakeOffice) -> None:
    office = await make_office()
    client = hello_fields()
    opened = accepted(await office.handler.answer(hello(devices="1")))
    assert opened["devices"] == "1"
    there = {"host": client["host"], "pid": client["pid"]}
    own = accepted(await office.handler.answer(nvml(**there)))
    assert own["devices"] == "1"  # a process sees the devices that its session has
    assert own["gpu0-processes"].startswith(f"{client['pid']}=")
    elsewhere = accepted(await office.handler.answer(nvml(host="elsewhere", pid=client["pid"])))
    assert elsewhere["devices"] == "2"
    assert not any(key.endswith("-processes") for key in elsewhere)


# Real cards -----------------------------------------------------------------


class FakeError(Exception):
    """Stands for pynvml.NVMLError."""


class FakeNvml:
    """As much of pynvml as a card that knows only a few things needs."""

    NVMLError = FakeError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 2

    def __init__(self) -> None:
        self.readings = 0

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.580.1"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetHandleByUUID(self, text: str) -> str:
        return text

    def nvmlDeviceGetMemoryInfo(self, card: str, version: int) -> Any:
        return SimpleNamespace(total=8 * GIB, reserved=1, used=2 * GIB, free=0)

    def nvmlDeviceGetTemperature(self, card: str, sensor: int) -> int:
        self.readings += 1
        return 40

    def nvmlDeviceGetClockInfo(self, card: str, kind: int) -> int:
        return 1980

    def nvmlDeviceGetVbiosVersion(self, card: str) -> bytes:
        return b"96.00 A"

    def nvmlDeviceGetNumaNodeId(self, card: str) -> int:
        return -1

    def nvmlDeviceGetFanSpeed(self, card: str) -> int:
        raise FakeError

    def nvmlDeviceGetComputeRunningProcesses(self, card: str) -> list[Any]:
        return [SimpleNamespace(pid=120, usedGpuMemory=7), SimpleNamespace(pid=1, usedGpuMemory=9)]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, two: str) -> int:
        return 30

    NVML_P2P_CAPS_INDEX_READ = 0
    NVML_P2P_STATUS_OK = 0

    def nvmlDeviceGetP2PStatus(self, one: str, two: str, index: int) -> int:
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(
        "gpupool_server.nvml_answer.open_cards", lambda _: nvml_cards.NvmlCards(fake)
    )
    return fake


async def test_a_real_card_says_what_it_can(fake: FakeNvml) -> None:
    views = [View(device(0), processes=(Running(20, 120),)), View(device(1))]
    fields = await ask(handler_for(views))
    assert fields["driver-version"] == "580.1"
    said = words(fields["gpu0"])
    assert said["temperature"] == "40"
    assert said["clock-sm"] == "1980"
    assert (said["peers"], said["topology"]) == ("01", "03")
    assert said["memory-used"] == str(2 * GIB)
    assert said["memory-reserved"] == "1"
    assert not {"fan", "numa-node", "vbios"} & said.keys()  # refused, negative, with a blank
    assert set(said) <= FACTS.keys()
    assert fields["gpu0-processes"] == "20=7"  # the client's number, the worker's memory


async def test_a_tenant_with_a_limit_sees_its_own_use(fake: FakeNvml) -> None:
    view = View(device(0), limit=GIB, processes=(Running(20, 120),))
    said = words((await ask(handler_for([view])))["gpu0"])
    assert (said["memory-total"], said["memory-used"]) == (str(GIB), "7")
    assert "memory-reserved" not in said


async def test_readings_are_shared_for_a_moment(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_cards, "FRESH_SECONDS", 1e9)
    handler = handler_for([View(device(0))])
    for _ in range(5):
        await ask(handler, what="fresh")
    assert fake.readings == 1
    monkeypatch.setattr(nvml_cards, "FRESH_SECONDS", -1.0)
    await ask(handler, what="fresh")
    assert fake.readings == 2
