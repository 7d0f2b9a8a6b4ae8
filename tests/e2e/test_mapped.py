"""What pinned memory that kernels reach over a network is around its bytes: limits, maps, forks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from harness import PoolServer, Talk, alive, wait_until
from test_managed import ONE_ARENA, said
from toolchain import Toolchain

StartTalk = Callable[[list[str], dict[str, str]], Talk]
MakeServer = Callable[..., PoolServer]


@pytest.fixture
def edges(toolchain: Toolchain) -> str:
    return str(toolchain.driver_program("driver_managed_edges"))


@pytest.fixture(params=["tcp", "zmq"])
def network(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_counts_as_pinned_memory(edges: str, make_server: MakeServer, network: str) -> None:
    server = make_server(**{"session-pinned-memory": "32MiB"})
    result = server.run([edges, "limit", "mapped"], network)
    assert said(result) == ["32", "32"]


def test_mappings_stay_few(edges: str, server: PoolServer, network: str) -> None:
    result = server.run([edges, "maps", "mapped"], network, MALLOC_ARENA_MAX=ONE_ARENA)
    before, most, closed, after = map(int, said(result))
    assert most < before + 12 * 2048
    assert closed < before + 80
    assert after < before + 40


def test_nothing_grows(edges: str, server: PoolServer, network: str) -> None:
    """3000 allocations that come and go leave no mapping, no descriptor and nothing pinned."""
    result = server.run([edges, "again", "mapped"], network, MALLOC_ARENA_MAX=ONE_ARENA)
    maps, maps_after, files, files_after = map(int, said(result))
    assert maps_after < maps + 20
    assert files_after == files


def test_a_forked_child_has_none(edges: str, server: PoolServer, network: str) -> None:
    assert said(server.run([edges, "fork", "mapped"], network)) == [str(int(signal.SIGSEGV))]


@pytest.mark.parametrize("transport", ["shm", "tcp", "zmq"])
def test_registered_memory(toolchain: Toolchain, server: PoolServer, transport: str) -> None:
    """What is true of pinned memory over a network is true of registered memory everywhere."""
    program = str(toolchain.driver_program("driver_mapped"))
    result = server.run([program, "registered"], transport)
    assert result.stdout == "PASS driver_mapped\n", result.explain()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_registered_memory_that_cannot_be_moved(
    edges: str, server: PoolServer, transport: str
) -> None:
    result = server.run([edges, "registered"], transport, GPUPOOL_LOG="warn")
    assert said(result) == ["0", "CUDA_SUCCESS", *["CUDA_ERROR_NOT_SUPPORTED"] * 6]
    assert "register whole pages" in result.stderr, result.explain()


def test_a_program_outlives_its_worker(
    edges: str, server: PoolServer, network: str, talk: StartTalk
) -> None:
    before = set(server.worker_pids())
    program = talk([edges, "lost", "mapped"], server.environment(network))
    assert program.line() == "ready"
    (worker,) = set(server.worker_pids()) - before
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), "the worker ended")
    program.say("go")
    result = program.finish()
    assert result.returncode == 0, result.explain()
    assert result.stdout == "CUDA_ERROR_DEVICE_UNAVAILABLE\n"


def test_on_the_second_device(toolchain: Toolchain, server: PoolServer, network: str) -> None:
    program = str(toolchain.driver_program("driver_mapped"))
    result = server.run([program], network, E2E_DEVICE="1")
    assert result.stdout == "PASS driver_mapped\n", result.explain()
