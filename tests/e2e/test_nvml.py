"""libnvidia-ml.so.1 against a server with soft GPUs, through pynvml."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from harness import PoolServer, Result, Talk, run_program

PROGRAMS = Path(__file__).with_name("nvml_programs.py")
LIBRARY = "lib/libnvidia-ml.so.1"


@pytest.fixture(autouse=True)
def _built(home: paths.Home) -> None:
    if not (home.root / LIBRARY).is_file():
        pytest.skip("this build has no libnvidia-ml.so.1: nvidia-nvml-dev was not installed")


def command(program: str) -> list[str]:
    return [sys.executable, str(PROGRAMS), program]


def run(server: PoolServer, program: str, variables: Mapping[str, str]) -> Result:
    return run_program(command(program), {**server.environment(""), **variables})


def result(server: PoolServer, program: str, **variables: str) -> Any:
    done = run(server, program, variables)
    assert done.returncode == 0, done.explain()
    return json.loads(done.stdout.splitlines()[-1])


def test_devices_are_those_of_cuda(server: PoolServer) -> None:
    seen = result(server, "look")
    assert len(seen["devices"]) == 2
    for index, (ours, cuda) in enumerate(zip(seen["devices"], result(server, "cuda"), strict=True)):
        assert (ours["name"], ours["uuid"]) == (cuda["name"], cuda["uuid"])
        assert ours["total"] == cuda["total"]
        assert ours["pci"].lower().endswith(cuda["pci"].lower())
        assert ours["sums"] == [ours["total"], ours["total"]]
        assert ours["index"] == index
        assert ours["found"] == [index] * 3
        assert (ours["utilisation"], ours["display"]) == (0, 0)
    assert re.fullmatch(r"\d+(\.\d+)+", seen["driver"])
    assert seen["nvml"] == f"13.{seen['driver']}"
    assert seen["cuda"] == 13000


def test_fewer_devices_where_fewer_are_wanted(server: PoolServer) -> None:
    assert len(result(server, "look", GPUPOOL_GPUS="1")["devices"]) == 1


def test_a_limit_is_the_total(server: PoolServer) -> None:
    seen = result(server, "look", GPUPOOL_MEMORY="256MiB")
    assert [device["total"] for device in seen["devices"]] == [256 << 20] * 2
    assert [device["sums"] for device in seen["devices"]] == [[256 << 20] * 2] * 2


def test_many_devices(make_server: Callable[..., PoolServer]) -> None:
    seen = result(make_server(**{"soft-gpus": "16"}), "look")
    assert len({device["uuid"] for device in seen["devices"]}) == 16
    assert [device["index"] for device in seen["devices"]] == list(range(16))


def test_a_process_finds_itself_and_its_memory(make_server: Callable[..., PoolServer]) -> None:
    seen = result(make_server(**{"soft-gpus": "1"}), "use")
    assert (seen["before"], seen["times"], seen["graphics"]) == (False, 1, 0)
    assert seen["grown"] >= 64 << 20
    assert seen["name"] == sys.executable


def test_older_functions_write_no_more_than_their_structures(server: PoolServer) -> None:
    """One of 52 bytes was written to its 68th: NVIDIA's bindings call it nvmlPciInfo_v2_t."""
    said = result(server, "older")
    bus = said["nvmlDeviceGetPciInfo_v3"][1]
    assert len(bus) == 12
    assert said == {
        "nvmlDeviceGetPciInfo": [36, bus],
        "nvmlDeviceGetPciInfo_v2": [36, bus],
        "nvmlDeviceGetPciInfo_v3": [68, bus],
    }


def test_what_nvidia_smi_asks_without_a_name(server: PoolServer) -> None:
    assert result(server, "private") == {
        "watched": 1,
        "no device": "InvalidArgument",
        "no answer": "InvalidArgument",
        "level": 4,  # over the system
        "itself": 0,
        "no bus": "InvalidArgument",
        "other bus": "NotFound",
        "no level": "InvalidArgument",
    }


def test_errors_are_those_of_nvml(server: PoolServer) -> None:
    assert result(server, "errors") == {
        "before init": "Uninitialized",
        "index": "InvalidArgument",
        "uuid": "NotFound",
        "bus": "InvalidArgument",
        "other bus": "NotFound",
        "temperature": "NotSupported",
        "sensor": "InvalidArgument",
        "set": "NotSupported",
        "mig": "NotSupported",
        "no handle": "InvalidArgument",
        "wild handle": "InvalidArgument",
        "no room": "InsufficientSize",
        "null": "InvalidArgument",
        "version": "ArgumentVersionMismatch",
        "events": "NotSupported",
        "wait": "Timeout",
        "still there": "none",
        "after": "Uninitialized",
        "once more": "Uninitialized",
    }


@pytest.mark.parametrize(
    ("variable", "value", "error", "says"),
    [
        ("GPUPOOL_SERVER", "", "DriverNotLoaded", "GPUPOOL_SERVER is not set"),
        ("GPUPOOL_SERVER", "tcp://127.0.0.1:1", "DriverNotLoaded", "connection refused"),
        ("GPUPOOL_SERVER", "nonsense", "DriverNotLoaded", "nonsense"),
        ("GPUPOOL_TOKEN", "wrong", "NoPermission", "token"),
        ("GPUPOOL_MEMORY", "much", "InvalidArgument", "GPUPOOL_MEMORY"),
    ],
)
def test_no_server_is_an_error_and_a_line(
    server: PoolServer, variable: str, value: str, error: str, says: str
) -> None:
    done = run(server, "begin", {variable: value})
    assert json.loads(done.stdout) == error, done.explain()
    assert [says in line for line in done.own_lines()] == [True], done.explain()


def test_a_server_that_goes_away(
    make_server: Callable[..., PoolServer], talk: Callable[[list[str], dict[str, str]], Talk]
) -> None:
    server = make_server(**{"soft-gpus": "1"})
    asking = talk(command("lose"), server.environment(""))
    assert asking.line() == "ready"
    server.kill()
    asking.say("go")
    seen = json.loads(asking.line())
    assert seen == {"fresh": "GpuIsLost", "name": "gpupool soft GPU"}
    ended = asking.finish()
    assert ended.returncode == 0, ended.explain()


def test_every_name_of_the_header_is_exported(home: paths.Home) -> None:
    package = importlib.util.find_spec("nvidia.cu13")
    assert package is not None and package.submodule_search_locations
    header = Path(next(iter(package.submodule_search_locations))) / "include" / "nvml.h"
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(encoding="utf-8"), flags=re.S)
    declared = set(re.findall(r"\bDECLDIR\s+(nvml[A-Z]\w*)\s*\(", text))
    assert len(declared) > 300
    exported = symbols(home, "--defined-only")
    assert declared <= exported
    assert {"nvmlInit", "nvmlInit_v2", "nvmlInternalGetExportTable"} <= exported
    assert all(name.startswith("nvml") for name in exported)


def test_it_needs_libc_only(home: paths.Home) -> None:
    done = subprocess.run(
        ["readelf", "-d", str(home.part(LIBRARY))], capture_output=True, text=True, check=True
    )
    needed = re.findall(r"NEEDED.*\[(.+)\]", done.stdout)
    assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2"}


def symbols(home: paths.Home, which: str) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", which, str(home.part(LIBRARY))], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in done.stdout.splitlines()}
