"""Which driver is opened, and what the server learns from it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpupool_common import paths
from gpupool_common.ask import ask
from gpupool_common.errors import ConfigError, InstallError
from gpupool_server import driver, inventory
from server_harness import MakeServer, hello_fields, make_settings


def test_our_own_client_library_is_never_the_driver(home: paths.Home) -> None:
    ours = home.part(paths.CLIENT_LIBRARY)
    assert paths.is_client_library(ours)
    with pytest.raises(InstallError, match="gpupool's own client library"):
        driver.checked(ours)
    with pytest.raises(InstallError, match="own client library"):
        driver.find_system({driver.VARIABLE: str(ours)})


def test_a_named_driver_must_exist(folder: Path) -> None:
    with pytest.raises(InstallError, match="does not exist"):
        driver.find_system({driver.VARIABLE: str(folder / "none")})


def test_the_search_passes_over_our_own(
    monkeypatch: pytest.MonkeyPatch, home: paths.Home, driver: Path
) -> None:
    from gpupool_server import driver as module

    ours = home.part(paths.CLIENT_LIBRARY)
    monkeypatch.setattr(module, "_ldconfig", lambda: iter([ours]))
    monkeypatch.setattr(module, "_PLACES", (str(ours), str(driver)))
    assert module.find_system({}) == driver
    monkeypatch.setattr(module, "_PLACES", (str(ours),))
    assert module.find_system({}) is None


def test_a_driver_by_path_is_probed(folder: Path, home: paths.Home, driver: Path) -> None:
    settings = make_settings(folder, driver=str(driver), soft_gpus=3, soft_memory="3MiB")
    found = inventory.take(settings, home)
    assert found.kind == "library"
    assert found.driver == driver
    assert [device.name for device in found.devices] == ["fake GPU 0", "fake GPU 1", "fake GPU 2"]
    assert {device.memory_bytes for device in found.devices} == {3 << 20}
    assert found.devices[1].uuid == "GPU-02020202-0202-0202-0202-020202020202"
    assert found.devices[1].pci == "00000000:02:00.0"


def test_a_driver_that_does_not_work_is_named(
    folder: Path, home: paths.Home, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DRIVER", "broken")
    with pytest.raises(InstallError, match="does not work: cuInit answered error 100"):
        inventory.take(make_settings(folder, driver=str(driver)), home)
    text = folder / "text.so"
    text.write_text("not a library")
    with pytest.raises(InstallError, match=r"text\.so does not work"):
        inventory.take(make_settings(folder, driver=str(text)), home)


def test_some_devices_only(folder: Path, home: paths.Home) -> None:
    settings = make_settings(folder, soft_gpus=4, devices="3,1")
    assert inventory.take(settings, home).indexes == (1, 3)
    with pytest.raises(ConfigError, match="names GPU 5, but this host has GPUs 0, 1"):
        inventory.take(make_settings(folder, soft_gpus=2, devices="5"), home)


def test_auto_falls_back_to_soft_and_cuda_does_not(
    folder: Path, home: paths.Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "find_system", lambda: None)
    assert inventory.take(make_settings(folder, driver="auto"), home).kind == "soft"
    with pytest.raises(InstallError, match=r"no libcuda\.so\.1; install NVIDIA's driver"):
        inventory.take(make_settings(folder, driver="cuda"), home)


def test_nvml_names_the_devices_of_a_real_driver(
    folder: Path, home: paths.Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml: Any = pytest.importorskip("pynvml")
    real = folder / "libcuda.so.1"
    real.write_bytes(b"\x7fELF")

    class Memory:
        total = 80 << 30

    class Pci:
        busId = b"00000000:0A:00.0"

    monkeypatch.setattr(driver, "find_system", lambda: real)
    for name, answer in {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetName": b"NVIDIA Test",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetMemoryInfo": Memory,
        "nvmlDeviceGetPciInfo": Pci,
    }.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    found = inventory.take(make_settings(folder, driver="auto"), home)
    assert (found.kind, found.driver, found.indexes) == ("cuda", real, (0, 1))
    assert found.devices[0].name == "NVIDIA Test"
    assert found.devices[0].memory_bytes == 80 << 30
    assert found.devices[0].pci == "00000000:0a:00.0"


def test_nothing_of_a_client_reaches_a_worker(folder: Path) -> None:
    env = inventory.driver_environment(
        make_settings(folder, soft_memory="1GiB"),
        {
            "PATH": "/bin",
            "CUDA_VISIBLE_DEVICES": "1",
            "GPUPOOL_TOKEN": "t",
            "GPUPOOL_SERVER": "s",
            "GPUPOOL_SOFT_THREADS": "2",
            "GPUPOOL_WATCH_CAPTURES": "1",
        },
    )
    assert env == {
        "PATH": "/bin",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUPOOL_SOFT_THREADS": "2",
        "GPUPOOL_WATCH_CAPTURES": "1",
        "GPUPOOL_SOFT_GPUS": "2",
        "GPUPOOL_SOFT_MEMORY": str(1 << 30),
        "GPUPOOL_SOFT_SEED": str(folder / "run"),
        "GPUPOOL_SOFT_TIME": str(folder / "run" / "gpus" / "soft"),
    }


def test_homes(folder: Path, home: paths.Home) -> None:
    found = paths.find_home({"GPUPOOL_HOME": str(home.root)})
    assert found.lib_path == home.root / "lib"
    empty = paths.find_home({"GPUPOOL_HOME": str(folder / "empty")})
    with pytest.raises(InstallError, match=r"libcuda\.so\.1 is missing \(GPUPOOL_HOME names"):
        _ = empty.lib_path
    assert os.path.isabs(paths.find_home({}).root)


def test_a_pool_is_given_soft_gpus_only_on_purpose(
    folder: Path, home: paths.Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose driver was broken joined with simulated GPUs, and programs crept there."""
    monkeypatch.setattr("gpupool_server.driver.find_system", lambda: None)
    pool = {"pool": "tcp://m:7781", "join_token": "gpn_" + "x" * 43 + "." + "ab" * 32}
    with pytest.raises(ConfigError, match=r"only on purpose.*--driver soft$"):
        inventory.take(make_settings(folder, driver="auto", **pool), home)
    found = inventory.take(make_settings(folder, driver="soft", **pool), home)
    assert (found.kind, found.simulated) == ("soft", False)
    alone = inventory.take(make_settings(folder, driver="auto", devices=(0,)), home)
    assert (alone.kind, alone.simulated, alone.indexes) == ("soft", True, (0,))


async def test_alone_it_is_said_where_it_cannot_be_missed(
    folder: Path, home: paths.Home, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.driver.find_system", lambda: None)
    for chosen, said in (("soft", False), ("auto", True)):
        with capture_logs() as logs:
            server = await make_server(driver=chosen)
        assert ("THE GPUS ARE SIMULATED" in logs[-1]["event"]) is said
        assert logs[-1]["log_level"] == ("warning" if said else "info")
        answer = await asyncio.to_thread(ask, server.url, "hello", hello_fields())
        assert answer.fields.get("simulated") == ("1" if said else None)
        await server.close()
