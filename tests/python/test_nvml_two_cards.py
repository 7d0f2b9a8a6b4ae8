"""A host with two real cards, as NVML tells of them: whole, and with each part broken in turn."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fake_nvml
from fake_nvml import FUNCTIONS, GIB, UUIDS, NvmlError, TwoCards
from fake_nvml_events import SickCards
from gpupool_common import protocol
from gpupool_server import nvml_cards, nvml_inventory
from gpupool_server.device import Device
from gpupool_server.gpu_events import GpuEvent, NvmlEvents
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_answer import NvmlClient, NvmlHandler, Running, View

ROOT = Path(__file__).resolve().parents[2]
FACTS = tomllib.loads((ROOT / "proto/spec_nvml/facts.toml").read_text(encoding="utf-8"))

#: Asked when the server starts, and not for an answer.
AT_START = {
    "nvmlInit",
    "nvmlShutdown",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
}

#: The name has a line of its own.
NEVER_SAID = {"name"}

Answer = Mapping[str, str]


async def answer_of(nvml: TwoCards, monkeypatch: pytest.MonkeyPatch, what: str = "all") -> Answer:
    """What a client with two devices and a process on each is told."""
    cards = nvml_cards.NvmlCards(nvml)
    monkeypatch.setattr("gpupool_server.nvml_answer.open_cards", lambda _: cards)
    devices = tuple(
        Device(index, "NVIDIA H200", uuid, 141 * GIB, f"00000000:0{index}:00.0", "9.0")
        for index, uuid in enumerate(UUIDS)
    )

    async def visible(_: NvmlClient) -> list[View]:
        return [View(device, processes=(Running(20, 120),)) for device in devices]

    handler = NvmlHandler(Inventory("cuda", Path("/none"), devices), visible)
    question = protocol.Message("nvml", {"what": what})
    decoded = protocol.decode(await handler.answer(question, tenant="default"))
    assert decoded.word == "ok"
    return decoded.fields


def words(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split(" "))


def flat(answer: Answer) -> dict[str, str]:
    """Every fact of an answer by a name of its own."""
    found: dict[str, str] = {}
    for key, value in answer.items():
        if key in ("gpu0", "gpu1"):
            found |= {f"{key} {word}": said for word, said in words(value).items()}
        else:
            found[key] = value
    return found


async def test_all_that_two_cards_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of peers the constant in pynvml is no number; that left nothing of the whole answer."""
    nvml = TwoCards()
    answer = await answer_of(nvml, monkeypatch)
    first, second = words(answer["gpu0"]), words(answer["gpu1"])
    assert (answer["devices"], answer["driver-version"]) == ("2", "580.159.03")
    assert set(first) == set(second) == FACTS.keys() - NEVER_SAID
    assert (first["uuid"], second["uuid"]) == UUIDS
    assert (first["peers"], second["peers"]) == ("01", "10")
    assert (first["topology"], second["topology"]) == ("03", "30")
    assert (first["nvlinks"], first["nvlink-version"]) == ("15", "5")
    links = "00000000:01:00.0," * 4 + "-," * 13 + "-"
    assert first["nvlink-remotes"] == links
    assert (first["utilisation"], second["utilisation"]) == ("50", "51")
    assert (first["ecc-default"], first["ecc-volatile-uncorrected"]) == ("1", "2")
    assert answer["gpu0-processes"] == f"20={7 * GIB}"
    assert nvml.asked | AT_START == set(FUNCTIONS)


def _raise(error: Exception) -> Callable[..., Any]:
    def broken(*_: object) -> Any:
        raise error

    return broken


BROKEN = {
    "an error of NVML": _raise(NvmlError("Not Supported")),
    "another error": _raise(TypeError("Don't know how to convert parameter 3")),
    "nothing": lambda *_: None,
    "an object": lambda *_: object(),
    "too many": lambda *_: [1, 2, 3],
    "a negative number": lambda *_: -1,
    "a long text": lambda *_: "x" * 600,
    "a text of two words": lambda *_: "a=1 b=2\nc: d",
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - AT_START))
async def test_one_fact_that_cannot_be_read_is_one_fact_missing(
    function: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = flat(await answer_of(TwoCards(), monkeypatch))
    nvml = TwoCards(function, BROKEN[how])
    seen = flat(await answer_of(nvml, monkeypatch))
    assert function in nvml.asked
    assert {"devices", "gpu0-name", "gpu1-name", "gpu0 pci", "gpu1 memory-total"} <= seen.keys()
    # What it tells of no device, it cannot tell of any; the rest is as it was.
    lost = {key.rpartition(" ")[2] for key in whole if seen.get(key) != whole[key]}
    allowed = LOST.get(function, 2)
    assert len(lost) <= allowed, lost
    assert set(seen) <= set(whole)


#: What hangs on one function alone, where that is more than two words.
LOST = {
    "nvmlDeviceGetHandleByUUID": len(
        FACTS
    ),  # nothing more can be asked of a card without its handle
    "nvmlDeviceGetTemperatureThreshold": 4,
    "nvmlDeviceGetClockInfo": 4,
    "nvmlDeviceGetMaxClockInfo": 4,
    "nvmlDeviceGetTotalEccErrors": 4,
    "nvmlDeviceGetMemoryErrorCounter": 8,
    "nvmlDeviceGetApplicationsClock": 4,
    "nvmlDeviceGetDefaultApplicationsClock": 4,
    "nvmlDeviceGetMaxCustomerBoostClock": 4,
    "nvmlDeviceGetInforomVersion": 3,
    "nvmlDeviceGetRemappedRows": 4,
    "nvmlDeviceGetRowRemapperHistogram": 5,
    "nvmlDeviceGetNvLinkState": 3,
}


async def test_pairs_that_cannot_be_told_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    for function, word in (
        ("nvmlDeviceGetP2PStatus", "peers"),
        ("nvmlDeviceGetTopologyCommonAncestor", "topology"),
    ):
        nvml = TwoCards(function, BROKEN["another error"])
        answer = await answer_of(nvml, monkeypatch)
        assert words(answer["gpu0"])[word] == "0?"
        assert words(answer["gpu1"])[word] == "?0"


def test_texts_have_the_room_of_the_spec() -> None:
    texts = {word: fact["size"] for word, fact in FACTS.items() if fact["kind"] == "text"}
    assert {word: texts[word] for word in nvml_cards.TEXTS} == nvml_cards.TEXTS
    assert texts.keys() - nvml_cards.TEXTS.keys() == {"name", "uuid", "pci"}


# The inventory ----------------------------------------------------------------


def listed(nvml: TwoCards, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, ...] | None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    found = nvml_inventory.nvml_devices()
    assert found is None or not found.lost
    return None if found is None else found.devices


def test_both_cards_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(TwoCards(), monkeypatch)
    assert found is not None
    assert [device.uuid for device in found] == list(UUIDS)
    assert {device.capability for device in found} == {"9.0"}
    broken = listed(TwoCards("nvmlDeviceGetCudaComputeCapability", BROKEN["nothing"]), monkeypatch)
    assert broken is not None
    assert {device.capability for device in broken} == {"0.0"}


@pytest.mark.parametrize("how", ["an error of NVML", "another error"])
@pytest.mark.parametrize("function", sorted(AT_START - {"nvmlShutdown"}))
def test_where_nvml_cannot_list_them_the_driver_is_asked(
    function: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(TwoCards(function, BROKEN[how]), monkeypatch) is None


def test_the_fake_has_constants_as_pynvml_has_them() -> None:
    """The mistake in pynvml must be in the fake for as long as versions with it are about."""
    pynvml: Any = pytest.importorskip("pynvml")
    assert fake_nvml.TwoCards.NVML_P2P_CAPS_INDEX_READ == (0,)
    for name, value in vars(fake_nvml.TwoCards).items():
        if name.startswith("NVML_") and name != "NVML_P2P_CAPS_INDEX_READ":
            assert getattr(pynvml, name) == value, name
    missing = [name for name in FUNCTIONS if not hasattr(pynvml, name)]
    assert not missing


# Cards that are lost when a server starts ---------------------------------------


GONE = {
    "off the bus": (15, "it has fallen off the bus"),
    "to be reset": (16, "it must be reset before it can be used again"),
    "without a handle": (999, "NVML has no handle for it: no handle"),
}


def lost_card(index: int, error: int, monkeypatch: pytest.MonkeyPatch) -> SickCards:
    nvml = SickCards()
    nvml.failing = {index: error}
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    return nvml


@pytest.mark.parametrize("how", sorted(GONE))
@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_card_takes_no_other_with_it(
    how: str, index: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = listed(TwoCards(), monkeypatch) or ()
    known = nvml_inventory.KnownCards(tmp_path)
    assert known.load() == ()
    error, why = GONE[how]
    lost_card(index, error, monkeypatch)
    new = nvml_inventory.nvml_devices(known.load())
    assert new is not None and new.lost == {index: why}
    assert new.devices == (both[1 - index],), "nothing is known of the other"
    known.save(both)
    again = nvml_inventory.nvml_devices(known.load())
    assert again is not None and (again.devices, again.lost) == (both, {index: why})
    found = Inventory("cuda", Path("/none"), again.devices, lost=again.lost)
    assert found.ordinals([1 - index]) == [0], "the driver counts those that are there"


def test_where_no_card_answers_nvml_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = lost_card(0, 15, monkeypatch)
    nvml.failing[1] = 999
    assert nvml_inventory.nvml_devices() is None


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"index": 0}]', '[{"index": "0"}]'])
def test_what_is_said_of_earlier_cards_may_be_anything(text: str, tmp_path: Path) -> None:
    (tmp_path / "cards.json").write_text(text)
    assert nvml_inventory.KnownCards(tmp_path).load() == ()


def test_of_the_others_a_server_that_starts_then_knows_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML has no handle by a UUID any more, of whichever card."""
    devices = listed(TwoCards(), monkeypatch) or ()
    reader = NvmlEvents(lost_card(1, 15, monkeypatch), devices)
    assert reader.read() == [GpuEvent(UUIDS[1], 0, "it has fallen off the bus")]
    nvml = lost_card(1, 15, monkeypatch)
    passing = asyncio.run(nvml_cards.NvmlCards(nvml).passing(devices[0]))[0]
    assert "temperature" in passing
