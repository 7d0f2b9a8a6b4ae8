"""GPUs that MIG divides, beside whole ones: what is listed, chosen, shown to workers, leased."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

import fake_nvml_mig
from fake_nvml import GIB, UUIDS
from fake_nvml_mig import DIVIDED, MOST, PARTS, DividedCards, Part
from gpupool import info
from gpupool_common import lease_token
from gpupool_common.lease_token import TokenGrant
from gpupool_common.models import is_instance
from gpupool_manager.index import Index
from gpupool_manager.placement_request import PlacementRequest, Slot
from gpupool_manager.scheduler import NoRoom, Placement, could_ever, place
from gpupool_server import jail_devices, nvml_inventory
from gpupool_server.device import Device
from gpupool_server.gpu_events import GpuEvent, NvmlEvents
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_handles import NvmlHandles
from gpupool_server.nvml_inventory import KnownCards, Listed
from gpupool_server.rundir import Meta
from lease_token_harness import KEYS, MIB, issued, token_of
from server_harness import MakeOffice, Office, accepted, hello, refused

#: Behind the two cards, at seven places for each.
FIRST = len(UUIDS) + DIVIDED * MOST
INSTANCES = [FIRST, FIRST + 1, FIRST + 3]


def listed(
    nvml: DividedCards, monkeypatch: pytest.MonkeyPatch, known: tuple[Device, ...] = ()
) -> Listed:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    found = nvml_inventory.nvml_devices(known)
    assert found is not None
    return found


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """A whole GPU, and three instances of another."""
    found = listed(DividedCards(), monkeypatch)
    return Inventory("cuda", Path("/none"), found.devices, divided=found.divided)


# What is listed ---------------------------------------------------------------------------


def test_instances_are_devices_and_their_gpu_is_none(host: Inventory) -> None:
    assert host.divided and host.indexes == (0, *INSTANCES)
    whole, *parts = host.devices
    assert whole.instance is None and (whole.card, whole.card_uuid) == (0, UUIDS[0])
    assert [part.uuid for part in parts] == [part.uuid for part in PARTS]
    assert all(is_instance(part.name) and part.card == DIVIDED for part in parts)
    assert {part.card_uuid for part in parts} == {UUIDS[DIVIDED]}
    shares = [part.instance.share_permille for part in parts if part.instance]
    assert shares == [3000 // MOST, 1000 // MOST, 1000 // MOST]
    assert parts[0].pci.startswith("00000000:01"), "of the card that it is on"


def test_compute_instances_divide_the_memory_that_they_share(host: Inventory) -> None:
    assert [part.memory_bytes for part in host.devices[1:]] == [70 * GIB, 17 * GIB, 17 * GIB]


def test_an_instance_has_a_number_of_its_own_whatever_others_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (_, only) = listed(DividedCards(PARTS[2:]), monkeypatch).devices
    assert (only.index, only.memory_bytes) == (INSTANCES[2], 34 * GIB)


def test_names_without_a_profile_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Part, "name", "NVIDIA H200")
    (_, part, *_) = listed(DividedCards(), monkeypatch).devices
    assert part.name == "NVIDIA H200 MIG 3g" and is_instance(part.name)


def test_an_instance_that_does_not_answer_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = DividedCards()
    nvml.failing_parts = {PARTS[0].uuid: 999}
    with capture_logs() as events:
        found = listed(nvml, monkeypatch)
    assert [device.index for device in found.devices] == [0, *INSTANCES[1:]]
    assert [event["gpu"] for event in events if event["log_level"] == "error"] == [DIVIDED]


def test_a_gpu_without_instances_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as events:
        found = listed(DividedCards(()), monkeypatch)
    assert [device.index for device in found.devices] == [0] and found.divided
    assert "there are no instances" in events[0]["event"]


def test_a_place_that_no_number_is_left_for_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_nvml_mig, "MOST", 9)
    found = listed(DividedCards((PARTS[0], replace(PARTS[1], place=8))), monkeypatch)
    assert [device.index for device in found.devices] == [0, INSTANCES[0]]


@pytest.mark.parametrize("error", [15, 16])
def test_the_instances_of_a_lost_gpu_are_lost(
    error: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: Inventory
) -> None:
    known = KnownCards(tmp_path)
    known.save(host.devices)
    assert known.load() == host.devices
    nvml = DividedCards()
    nvml.failing = {DIVIDED: error}
    found = listed(nvml, monkeypatch, known.load())
    assert found.devices == host.devices and found.lost.keys() == {DIVIDED, *INSTANCES}


def test_an_instance_written_wrongly_is_not_read(tmp_path: Path, host: Inventory) -> None:
    known = KnownCards(tmp_path)
    known.save(host.devices)
    text = (tmp_path / "cards.json").read_text()
    for wrong in ('"parent": 1', '"parent": null', '"father": "GPU"'):
        (tmp_path / "cards.json").write_text(text.replace(f'"parent": "{UUIDS[1]}"', wrong))
        assert known.load() == ()


def test_handles_are_found_without_those_of_lost_gpus() -> None:
    nvml = DividedCards()
    nvml.failing = {0: 15}  # and so NVML finds none by a UUID
    assert NvmlHandles(nvml).of(PARTS[1].uuid) == PARTS[1]


# Errors of the driver ---------------------------------------------------------------------


def test_an_error_is_of_the_instance_that_has_it(host: Inventory) -> None:
    nvml = DividedCards()
    reader = NvmlEvents(nvml, host.devices)
    assert nvml.registered == [0, 1], "each card once"
    nvml.instances = {48: PARTS[1].gpu_instance, 31: 99}
    nvml.events = [(DIVIDED, 8, 48), (DIVIDED, 8, 79), (0, 8, 31), (DIVIDED, 8, 31)]
    found = reader.read()
    assert [event.uuid for event in found if event.xid == 48] == [PARTS[1].uuid, PARTS[2].uuid]
    assert [event.uuid for event in found if event.xid == 79] == [part.uuid for part in PARTS]
    assert [event.uuid for event in found if event.xid == 31] == [UUIDS[0]], "one that is gone"
    nvml.failing = {DIVIDED: 15}
    assert reader.read() == [GpuEvent(p.uuid, 0, "it has fallen off the bus") for p in PARTS]


# What a worker's driver sees ----------------------------------------------------------------


def test_a_driver_is_told_what_it_may_see(host: Inventory) -> None:
    one = {"CUDA_VISIBLE_DEVICES": PARTS[1].uuid}
    assert host.visible([INSTANCES[1]]) == one and host.ordinals([INSTANCES[1]]) == [0]
    assert host.visible([0]) == {"CUDA_VISIBLE_DEVICES": UUIDS[0]}
    assert jail_devices.ordinals(host, [INSTANCES[2]], [INSTANCES[2]]) == [0]
    assert replace(host, divided=False).visible([0]) == {}


def test_a_jail_has_the_nodes_of_its_own_instance(
    host: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minors = {"gi2/access": 21, "gi2/ci0/access": 22, "gi5/access": 48, "gi5/ci0/access": 49}
    for name, minor in minors.items():
        path = tmp_path / "gpu4" / "mig" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    whole, first, second, third = host.devices
    node = "/dev/nvidia4"
    assert jail_devices.capability_nodes(whole, node, tmp_path) == []
    caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (48, 49)]
    assert jail_devices.capability_nodes(second, node, tmp_path) == caps
    assert jail_devices.capability_nodes(third, node, tmp_path) is None, "it has no compute node"
    assert jail_devices.capability_nodes(first, "/dev/nvidia1", tmp_path) is None
    (tmp_path / "gpu4/mig/gi5/access").write_text("DeviceFileMinor: ../0\n")
    assert jail_devices.capability_nodes(second, node, tmp_path) is None

    monkeypatch.setattr(jail_devices, "_CAPABILITIES", tmp_path)
    monkeypatch.setattr(jail_devices, "node_of", lambda device: "/dev/null")
    assert "which nodes in /dev" in jail_devices.nodes(host, [INSTANCES[2]])[1]
    monkeypatch.setattr(jail_devices, "capability_nodes", lambda *_: ["/dev/zero"])
    found, reason = jail_devices.nodes(host, INSTANCES)
    assert reason == "" and found.count("/dev/null") == found.count("/dev/zero") == 1


# Sessions ---------------------------------------------------------------------------------


@pytest.fixture
async def office(make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch, driver: Path) -> Office:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", DividedCards())
    monkeypatch.setenv("GPUPOOL_DRIVER_LIBRARY", str(driver))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none of a worker's")
    return await make_office(driver="cuda")


async def seen(office: Office, **fields: str) -> tuple[tuple[int, ...], str, str]:
    """The devices of a new session; which its worker's driver may see, and those it takes."""
    session = accepted(await office.handler.answer(hello(**fields)))["session"]
    meta = Meta.parse((office.run_dir.sessions / session / "meta.json").read_text())
    proc = Path(f"/proc/{meta.pid}")
    env = dict(v.split("=", 1) for v in (proc / "environ").read_text().split("\0") if "=" in v)
    words = (proc / "cmdline").read_text().split("\0")
    return meta.devices, env["CUDA_VISIBLE_DEVICES"], words[words.index("--devices") + 1]


async def test_a_worker_is_started_on_its_instance(office: Office) -> None:
    index = INSTANCES[1]
    assert await seen(office, devices=str(index)) == ((index,), PARTS[1].uuid, "0")
    assert await seen(office, devices="0") == ((0,), UUIDS[0], "0")


async def test_who_asks_for_nothing_gets_whole_gpus(office: Office) -> None:
    assert (await seen(office))[0] == (0,)
    assert (await seen(office, gpus="1"))[0] == (INSTANCES[0],), "the first that nobody uses"


async def test_an_instance_is_had_alone(office: Office) -> None:
    both = f"{INSTANCES[0]},{INSTANCES[1]}"
    for fields in ({"devices": both}, {"devices": f"0,{INSTANCES[0]}"}, {"gpus": "2"}):
        code, message = refused(await office.handler.answer(hello(**fields)))
        assert code == "bad-request" and "one instance of a GPU (MIG)" in message


async def test_where_there_are_instances_alone_one_is_given(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch, driver: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", DividedCards())
    monkeypatch.setenv("GPUPOOL_DRIVER_LIBRARY", str(driver))
    office = await make_office(driver="cuda", devices=",".join(map(str, INSTANCES)))
    group = {"group": "job"}
    assert [(await seen(office, **group))[0] for _ in range(2)] == [(INSTANCES[0],)] * 2
    assert (await seen(office))[0] == (INSTANCES[1],)


# Leases -----------------------------------------------------------------------------------

H200, A100 = ("NVIDIA H200", (9, 0), 141 * GIB), ("NVIDIA A100-SXM4-40GB", (8, 0), 40 * GIB)
SEVENTH = ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), 5 * GIB)


def pool(*slots: tuple[str, tuple[str, tuple[int, int], int]]) -> Index:
    return Index(Slot(name, name[0], place, *kind) for place, (name, kind) in enumerate(slots))


def placed(index: Index, gpus: int, memory: int | None, **more: Any) -> list[str] | str:
    found = place(index, PlacementRequest(gpus, memory, 100, **more))
    return [slot.uuid for slot in found.slots] if isinstance(found, Placement) else found.reason


def test_a_pool_of_several_kinds() -> None:
    index = pool(("a0", H200), ("a1", H200), ("b0", A100), ("c0", SEVENTH), ("c1", SEVENTH))
    assert placed(index, 1, 4 * GIB) == ["c0"], "binpack takes what leaves the least"
    assert placed(index, 1, 30 * GIB) == ["b0"]
    assert placed(index, 1, 4 * GIB, model="nvidia a100*") == ["c0"]
    assert placed(index, 1, 4 * GIB, model="NVIDIA A100-SXM4-40GB") == ["b0"]
    assert placed(index, 1, None, model="*MIG 1g.5gb") == ["c0"]
    assert placed(index, 2, 4 * GIB, hosts="same") == ["a0", "a1"]
    assert set(placed(index, 3, 4 * GIB)) == {"a0", "a1", "b0"}, "instances are had alone"


def test_a_lease_of_several_has_no_instances() -> None:
    index = pool(("c0", SEVENTH), ("c1", SEVENTH), ("b0", A100))
    want = PlacementRequest(2, 4 * GIB, 100)
    assert isinstance(place(index, want), NoRoom)
    why = could_ever(index, want)
    assert why is not None and "that is whole" in why and "(MIG)" in why
    named = replace(want, uuids=("c0", "c1"))
    assert "MIG: it is a part of a GPU" in (could_ever(index, named) or "")


def test_a_token_names_an_instance() -> None:
    uuid = "MIG-" + "0123abcd-0123-4123-8123-0123456789ab"
    token = token_of(TokenGrant(0, uuid, 64 * MIB, 500))
    assert lease_token.check(issued(token), KEYS) == token


def test_info_says_what_an_instance_is_a_part_of(
    host: Inventory, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {
        "url": "tcp://gpu-1:7700",
        "server": "0",
        "host": "gpu-1",
        "max_sessions": 4,
        "sessions": [],
        "devices": (devices := [device.as_dict() for device in host.devices]),
    }
    del devices[0]["instance"]  # as a server before this release answers
    info._print_server(Console(width=120), answer)
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if "3g.71gb" in line)
    assert "42.8% of GPU 1" in line
    assert sum("of GPU" in line for line in lines) == len(PARTS), "the first is whole"
