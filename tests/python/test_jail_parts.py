"""What the server makes of a jail without starting one: reports, ids, files, nodes, records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool_common.errors import ConfigError, InstallError
from gpupool_server import jail_devices, jail_files, jail_status
from gpupool_server.config import load_settings
from gpupool_server.device import Device
from gpupool_server.inventory import Inventory
from gpupool_server.jail_ids import Uids
from gpupool_server.jail_leases import lines
from gpupool_server.jail_status import Confined
from gpupool_server.process import start_time
from gpupool_server.worker import WorkerError


def test_a_report_is_read() -> None:
    report = jail_status.parse(
        b"layer net on\nlayer uid off no right, no id\nholder 7\npid 8\ncost-us 900\n"
    )
    assert report.layers == {"net": "on", "uid": "off: no right, no id"}
    assert (report.holder, report.pid, report.cost_us, report.error) == (7, 8, 900, "")
    assert report.off == {"uid": "no right, no id"}
    assert jail_status.parse(b"error it broke\n").error == "it broke"
    assert jail_status.parse(b"").pid == 0


@pytest.mark.parametrize(
    "said",
    [
        b"hello\n",
        b"layer colour on\n",
        b"layer net perhaps\n",
        b"layer net off \n",
        b"pid -1\n",
        b"pid 99999999999\n",
        b"pid 1 2\n",
        b"error \x1b[2J\n",
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_report_is_refused(said: bytes) -> None:
    with pytest.raises(WorkerError, match="gpupool-jail says what nobody expects"):
        jail_status.parse(said)


def test_the_layers_are_those_of_the_starter() -> None:
    header = Path(__file__).parents[2] / "server" / "jail" / "jail.h"
    named = [line.split('"')[1] for line in header.read_text().splitlines() if "    X(" in line]
    assert tuple(named) == jail_status.LAYERS


@pytest.mark.parametrize(
    "raw",
    [
        {"layers": {}, "lease": "x", "uid": -1, "holder": 0, "holder_start": 0, "cost_us": 0},
        {"layers": {"colour": "on"}, "lease": "x", "uid": 1, "holder": 0, "holder_start": 0},
        {"layers": []},
    ],
)
def test_a_record_that_cannot_be_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, AttributeError)):
        Confined.parse(raw)


def test_a_record_of_an_earlier_release_has_no_jail() -> None:
    assert Confined.parse({}) == Confined()


def test_no_two_workers_have_one_id(tmp_path: Path) -> None:
    folder = tmp_path / "uids"
    uids, another = Uids(5000, 5002, folder), Uids(5000, 5002, folder)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        first, second = uids.claim(), another.claim()
        assert {first, second} == {5000, 5001}
        uids.give(first, worker.pid)
        assert Uids(5000, 5002, folder).claim() == 5002  # as a server that starts anew
        with pytest.raises(WorkerError, match="all 3 user ids 5000-5002 are taken"):
            uids.claim()
        worker.kill()
        worker.wait()
    assert start_time(worker.pid) is None and uids.claim() == first
    uids.release(second)
    assert another.claim() == second


def test_ids_are_not_claimed_where_others_write(tmp_path: Path) -> None:
    folder = tmp_path / "uids"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write there"):
        Uids(5000, 5001, folder)


@pytest.mark.parametrize("text", ["", "5000", "0-5000", "999-5000", "6000-5000", "5000-4294967295"])
def test_a_range_of_ids_is_checked(text: str) -> None:
    with pytest.raises(ConfigError, match="--jail-uids"):
        load_settings(None, {"jail_uids": text}, {})


def test_requiring_confinement_has_a_short_name() -> None:
    assert load_settings(None, {"require_confinement": True}, {}).confined == "required"
    assert load_settings(None, {}, {}).confined == "best"


def test_a_description_stays_on_its_lines() -> None:
    assert lines([("root", "/x"), ("uid", 5)]) == b"root /x\nuid 5\n"
    for value in ("/x\nuid 0", "/x\0"):
        with pytest.raises(ValueError, match="'library' of a jail has a line end in it"):
            lines([("library", value)])


def test_files_are_found_as_the_loader_finds_them(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    driver = tmp_path / "libcuda.so.1"
    driver.touch()
    found = jail_files.libraries(Path("/bin/sh"), plugins, driver, "soft", {})
    names = {Path(path).name for path in found}
    assert "/bin/sh" in found and "libc.so.6" in names and str(driver) in found
    assert any(name.startswith("ld-") for name in names)
    beside = tmp_path / "libnvidia-ml.so.1"
    beside.touch()
    assert str(beside) in jail_files.libraries(Path("/bin/sh"), plugins, driver, "cuda", {})
    with pytest.raises(InstallError):
        jail_files.libraries(tmp_path / "none", plugins, driver, "soft", {})
    beside.chmod(0o600)
    assert jail_files.closed_to_others([str(driver), str(beside)]) == str(beside)


def device(index: int, pci: str) -> Device:
    return Device(index, "GPU", f"GPU-{index}", 1, pci)


def test_a_session_gets_the_nodes_of_its_own_gpus(tmp_path: Path) -> None:
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "information").write_text("Model: \t GPU\nDevice Minor: \t 3\n")
    own, other = device(0, "00000000:1B:00.0"), device(1, "00000000:43:00.0")
    assert jail_devices.node_of(own, tmp_path) == "/dev/nvidia3"
    assert jail_devices.node_of(other, tmp_path) is None
    soft = Inventory("soft", Path("/x"), (own,))
    assert jail_devices.nodes(soft, [0]) == ([], "")
    cuda = Inventory("cuda", Path("/x"), (other,))
    found, reason = jail_devices.nodes(cuda, [1])
    assert found == [] and "which nodes in /dev" in reason


def test_a_driver_in_a_jail_counts_its_own_gpus_alone() -> None:
    found = Inventory("cuda", Path("/x"), tuple(device(i, f"0000:0{i}:00.0") for i in range(4)))
    assert jail_devices.ordinals(found, [2], [2]) == [0]
    assert jail_devices.ordinals(found, [3, 1], [3, 1]) == [1, 0]
    assert jail_devices.ordinals(found, [3], [3, 1]) == [1]
    soft = Inventory("soft", Path("/x"), found.devices)
    assert jail_devices.ordinals(soft, [3, 1], [3, 1]) == [3, 1]


def test_the_uids_folder_is_the_owners(tmp_path: Path) -> None:
    Uids(5000, 5001, tmp_path / "uids")
    assert os.stat(tmp_path / "uids").st_mode & 0o777 == 0o700
