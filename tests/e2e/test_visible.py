"""CUDA_VISIBLE_DEVICES means to a program here what it means to CUDA's driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gpupool_common import paths
from harness import OURS, PROGRAM_PATIENCE, TOKEN, PoolServer, Result, wait_until
from tenants import StartTalk
from toolchain import Toolchain

#: What cuInit gives to a program that goes on.
INIT = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True); input()"
NVML = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"


class Pair:
    """Two servers with two GPUs each, to a program one list of four."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.program = str(toolchain.driver_program("driver_visible"))
        self.servers = [PoolServer(**{"soft-gpus": "2"}) for _ in range(2)]

    def environment(self, visible: str | None) -> dict[str, str]:
        url = ",".join(server.address for server in self.servers)
        env = {"GPUPOOL_SERVER": url, "GPUPOOL_TOKEN": TOKEN}
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        return env

    def see(self, visible: str | None, *command: str) -> Result:
        env = self.environment(visible)
        return self.servers[0].run(list(command or [self.program]), "shm", PROGRAM_PATIENCE, **env)

    def uuids(self, visible: str | None = None) -> list[str]:
        seen = self.see(visible)
        *uuids, last = seen.stdout.splitlines()
        assert (seen.returncode, last) == (0, "PASS driver_visible"), seen.explain()
        return uuids


@pytest.fixture(scope="module")
def pair(home: paths.Home, toolchain: Toolchain) -> Iterator[Pair]:
    found = Pair(toolchain)
    try:
        for server in found.servers:
            server.start()
        yield found
    finally:
        for server in found.servers:
            server.close()


@pytest.fixture(scope="module")
def all_uuids(pair: Pair) -> list[str]:
    found = pair.uuids()
    assert len(set(found)) == 4
    return found


@pytest.mark.parametrize(
    ("visible", "places"),
    [("2", [2]), ("3,0", [3, 0]), ("1,0,2,3", [1, 0, 2, 3]), ("0,3,9,1", [0, 3])],
)
def test_devices_are_in_the_order_of_the_list(
    pair: Pair, all_uuids: list[str], visible: str, places: list[int]
) -> None:
    assert pair.uuids(visible) == [all_uuids[place] for place in places]


def test_devices_are_named_by_uuid(pair: Pair, all_uuids: list[str]) -> None:
    wanted = [all_uuids[3], all_uuids[1]]
    assert pair.uuids(",".join(wanted)) == wanted


@pytest.mark.parametrize("visible", ["", "-1"])
def test_nothing_visible_is_no_device_and_no_question(pair: Pair, visible: str) -> None:
    seen = pair.see(visible)
    assert (seen.returncode, seen.stdout) == (0, "none\n"), seen.explain()
    assert OURS not in seen.stderr


def test_a_list_that_fits_no_device_is_said(pair: Pair) -> None:
    seen = pair.see("9")
    assert (seen.returncode, seen.stdout) == (0, "none\n"), seen.explain()
    (line,) = [text for text in seen.stderr.splitlines() if text.startswith(OURS)]
    assert "CUDA_VISIBLE_DEVICES=9 names none of the 4 devices" in line


def test_a_list_that_fits_no_device_leaves_no_session(pair: Pair, talk: StartTalk) -> None:
    """How many there are is known from the servers alone; then the program goes on without them."""
    env = pair.servers[0].environment("shm", **pair.environment("9"))
    program = talk([sys.executable, "-c", INIT], env)
    assert program.line() == "100"
    wait_until(lambda: not any(server.sessions() for server in pair.servers), "none is left")
    program.say("")
    assert program.finish().returncode == 0


def test_a_list_with_one_twice_is_no_list(pair: Pair) -> None:
    seen = pair.see("1,0,1")
    assert (seen.returncode, seen.stdout) == (0, "one twice\n"), seen.explain()
    assert "names twice one of the 4 devices" in seen.stderr


def test_nvml_shows_all(pair: Pair) -> None:
    seen = pair.see("1", sys.executable, "-c", NVML)
    assert (seen.returncode, seen.stdout) == (0, "4\n"), seen.explain()
