"""One process with the GPUs of several servers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catalog import DRIVER_PROGRAMS, Program
from gpupool_common import paths
from harness import PROGRAM_PATIENCE, TOKEN, PoolServer, Result, Talk, alive, wait_until
from ports import free_port
from test_cupy import CuPy
from test_cupy import cupy as cupy  # a fixture
from test_cupy import kernel_cache as kernel_cache  # what it needs
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]
GONE = "CUDA_ERROR_DEVICE_UNAVAILABLE"


@pytest.fixture(scope="module")
def pair(home: paths.Home) -> Iterator[tuple[PoolServer, PoolServer]]:
    """Two hosts with two devices each."""
    servers = [PoolServer(**{"soft-gpus": "2", "max-sessions": "8"}) for _ in range(2)]
    try:
        for server in servers:
            server.start()
        yield servers[0], servers[1]
    finally:
        for server in servers:
            server.close()


def over(servers: tuple[PoolServer, ...] | list[PoolServer]) -> dict[str, Any]:
    return {"GPUPOOL_SERVER": ",".join(server.url for server in servers)}


def passes(result: Result, name: str) -> None:
    assert (result.returncode, result.stdout) == (0, f"PASS {name}\n"), result.explain()


def test_driver_calls(
    toolchain: Toolchain, pair: tuple[PoolServer, PoolServer], transport: str
) -> None:
    program = str(toolchain.driver_program("driver_hosts"))
    passes(pair[0].run([program, "2"], transport, **over(pair)), "driver_hosts")


def test_between_hosts(
    toolchain: Toolchain, pair: tuple[PoolServer, PoolServer], transport: str
) -> None:
    """Copies and waits over hosts; the bytes do not come by the client."""
    program = str(toolchain.driver_program("driver_between"))
    result = pair[0].run([program, "2"], transport, **over(pair))
    passes(result, "driver_between")
    copied = (12 + 20) * 4 * (1 << 19)  # by ring and default_streams
    assert result.stats["bytes_sent"] + result.stats["bytes_received"] < copied / 4


def test_events_behind_copies(
    toolchain: Toolchain, pair: tuple[PoolServer, PoolServer], transport: str
) -> None:
    """Who waits for one where the bytes are hears of it there; of more, if there is more to it."""
    program = str(toolchain.driver_program("driver_behind"))
    passes(pair[0].run([program, "2"], transport, **over(pair)), "driver_behind")


def test_the_runtime(
    toolchain: Toolchain, pair: tuple[PoolServer, PoolServer], transport: str
) -> None:
    program = str(toolchain.runtime_program("hosts"))
    passes(pair[0].run([program], transport, **over(pair)), "hosts")


#: Stream-ordered memory of the second host and later ones is not in the driver's pools (where
#: drivers put those, addresses of two hosts may be the same), so driver_vmm finds them empty.
SECOND = [program for program in DRIVER_PROGRAMS if program.name != "driver_vmm"]


@pytest.mark.parametrize("program", SECOND, ids=lambda p: str(p.name))
def test_programs_on_the_second_host(
    program: Program, toolchain: Toolchain, pair: tuple[PoolServer, PoolServer], transport: str
) -> None:
    """What they do on a server that is the only one, they do on the last of several."""
    binary = program.build(toolchain, "driver")
    result = pair[0].run(program.command(binary), transport, E2E_DEVICE="3", **over(pair))
    assert result.stdout.splitlines()[-1].startswith("PASS "), result.explain()
    assert result.returncode == 0, result.explain()


def test_three_hosts_and_both_transports(
    toolchain: Toolchain, pair: tuple[PoolServer, PoolServer], make_server: MakeServer
) -> None:
    """A server may be named twice; each time is a session, and a host to the client."""
    servers = [*pair, make_server(), pair[0]]
    program = str(toolchain.runtime_program("hosts"))
    passes(pair[0].run([program], "", **over(servers)), "hosts")


def test_every_call_waits(toolchain: Toolchain, pair: tuple[PoolServer, PoolServer]) -> None:
    program = str(toolchain.runtime_program("hosts"))
    passes(pair[0].run([program], "shm", GPUPOOL_SYNC="1", **over(pair)), "hosts")


def test_cupy_of_two_hosts(pair: tuple[PoolServer, PoolServer], cupy: CuPy, transport: str) -> None:
    result = pair[0].run(
        cupy.command("devices"), transport, PROGRAM_PATIENCE, **cupy.env, **over(pair)
    )
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1] == "PASS devices", result.explain()


# Opening ----------------------------------------------------------------------------------


def ended_without_workers(servers: tuple[PoolServer, ...] | list[PoolServer]) -> None:
    for server in servers:
        wait_until(lambda server=server: server.worker_pids() == [], "its workers ended")  # type: ignore[misc]


def refused(result: Result, *words: str) -> None:
    assert result.returncode == 1, result.explain()
    (line,) = result.own_lines()
    for word in words:
        assert word in line, line


def test_all_or_none(toolchain: Toolchain, pair: tuple[PoolServer, PoolServer]) -> None:
    """What the first server gave is given back when the second one gives nothing."""
    program = [str(toolchain.runtime_program("hosts"))]
    nobody = f"tcp://127.0.0.1:{free_port()}"
    ended_without_workers(pair)
    wrong = over(pair) | {"GPUPOOL_TOKEN": f"{TOKEN},wrong"}
    refused(pair[0].run(program, "shm", **wrong), "token")
    few = over(pair) | {"GPUPOOL_TOKEN": f"{TOKEN},{TOKEN},{TOKEN}"}
    refused(pair[0].run(program, "shm", **few), "3 tokens for 2 servers")
    empty: dict[str, Any] = {"GPUPOOL_SERVER": f"{pair[0].url},,{pair[1].url}"}
    refused(pair[0].run(program, "shm", **empty), "empty address")
    ended_without_workers(pair)
    right = over(pair) | {"GPUPOOL_TOKEN": f"{TOKEN}, {TOKEN}"}
    passes(pair[0].run(program, "shm", **right), "hosts")
    absent: dict[str, Any] = {"GPUPOOL_SERVER": f"{pair[0].url},{nobody}"}
    refused(pair[0].run(program, "shm", **absent), nobody)
    ended_without_workers(pair)


# NVML ---------------------------------------------------------------------------------------

LISTS = """
import ctypes, json
import pynvml

cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
pynvml.nvmlInit()
count = pynvml.nvmlDeviceGetCount()
seen = ctypes.c_int()
assert cuda.cuDeviceGetCount(ctypes.byref(seen)) == 0 and seen.value == count
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
listed = []
for i, handle in enumerate(handles):
    uuid, bus = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
    assert cuda.cuDeviceGetUuid_v2(uuid, i) == 0
    assert cuda.cuDeviceGetPCIBusId(bus, 32, i) == 0
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    found = pynvml.nvmlDeviceGetHandleByPciBusId(bus.value)
    listed.append({
        "cuda": [bytes(uuid).hex(), int(bus.value.split(b":")[0], 16)],
        "nvml": [pynvml.nvmlDeviceGetUUID(handle)[4:].replace("-", ""), pci.domain],
        "found": pynvml.nvmlDeviceGetIndex(found),
        "peers": [
            pynvml.nvmlDeviceGetP2PStatus(handle, other, 0) == 0
            for other in handles if other is not handle
        ],
        "levels": [
            pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other) for other in handles
        ],
    })
print(json.dumps(listed))
"""


def test_nvml_lists_the_same_devices(pair: tuple[PoolServer, PoolServer], transport: str) -> None:
    pytest.importorskip("pynvml")
    result = pair[0].run([sys.executable, "-c", LISTS], transport, **over(pair))
    assert result.returncode == 0, result.explain()
    listed = json.loads(result.stdout)
    assert len(listed) == 4
    for index, device in enumerate(listed):
        assert device["cuda"] == device["nvml"]
        assert device["found"] == index
        for other, level in enumerate(device["levels"]):
            assert (level == 0) == (other == index)
    uuids = [device["cuda"][0] for device in listed]
    assert len(set(uuids)) == 4
    domains = [device["cuda"][1] for device in listed]
    assert domains == [0, 0, 1, 1]
    over_hosts = [listed[0]["peers"][1:], listed[3]["peers"][:2]]
    assert over_hosts == [[False, False], [False, False]]


# A host dies ----------------------------------------------------------------------------------


def say(program: Talk, line: str) -> str:
    program.say(line)
    return program.line()


def test_a_host_dies(
    toolchain: Toolchain, make_server: MakeServer, talk: StartTalk, transport: str
) -> None:
    """Its devices' calls fail, at once and from then on; the others' go on."""
    servers = [make_server(), make_server(), make_server()]
    env = servers[0].environment(transport, **over(servers))
    program = talk([str(toolchain.driver_program("driver_survivor"))], env)
    assert program.line() == "ready 3"
    assert [say(program, f"use {i}") for i in range(3)] == ["1", "1", "1"]
    assert say(program, "use 1") == "2"
    assert [say(program, "copy 1 0"), say(program, "wait 1 2")] == ["2", "1"]
    (worker,) = servers[1].worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), "the worker is gone")
    assert [say(program, "use 1") for _ in range(3)] == [GONE] * 3
    assert [say(program, "use 0"), say(program, "use 2")] == ["3", "2"]
    assert [say(program, "copy 1 0"), say(program, "copy 0 1")] == [GONE] * 2
    assert [say(program, "wait 1 2"), say(program, "wait 2 1")] == [GONE] * 2
    assert [say(program, "copy 0 2"), say(program, "use 2"), say(program, "use 0")] == [
        "3",
        "4",
        "4",
    ]
    assert program.process.stdin is not None
    program.process.stdin.close()
    program.process.stdin = None
    result = program.finish()
    assert result.stdout == "PASS driver_survivor\n", result.explain()
    (line,) = result.own_lines()
    assert servers[1].url in line and "on device 1" in line, line
    ended_without_workers(servers)
