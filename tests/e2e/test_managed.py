"""What managed memory is around its bytes: limits, mappings, forks, a worker that is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PoolServer, Result, Talk, alive, wait_until
from toolchain import Toolchain

StartTalk = Callable[[list[str], dict[str, str]], Talk]
MIB = 1 << 20
#: glibc gives threads that allocate at the same time arenas of their own, which are mappings too.
ONE_ARENA = "1"  # MALLOC_ARENA_MAX


@pytest.fixture
def edges(toolchain: Toolchain) -> str:
    return str(toolchain.driver_program("driver_managed_edges"))


def said(result: Result) -> list[str]:
    """What a mode has printed before its last line."""
    assert result.returncode == 0, result.explain()
    line, passed = result.stdout.splitlines()
    assert passed == "PASS driver_managed_edges"
    return line.split()


def test_it_counts_against_the_memory_limit(edges: str, server: PoolServer, transport: str) -> None:
    result = server.run([edges, "limit"], transport, GPUPOOL_MEMORY="32MiB")
    assert said(result) == ["32", "32"]


def test_mappings_stay_few(edges: str, server: PoolServer, transport: str) -> None:
    """Pages here and there of 384 MiB: as many mappings as blocks at most, and none stays."""
    result = server.run([edges, "maps"], transport, MALLOC_ARENA_MAX=ONE_ARENA)
    before, most, closed, after = map(int, said(result))
    assert most < before + 12 * 2048
    assert closed < before + 40
    assert after < before + 40


def test_a_forked_child_has_none(edges: str, server: PoolServer, transport: str) -> None:
    assert said(server.run([edges, "fork"], transport)) == [str(int(signal.SIGSEGV))]


def test_a_sequential_program_waits_seldom(edges: str, server: PoolServer, transport: str) -> None:
    """64 MiB go over and come back once, in pieces that grow."""
    result = server.run([edges, "sequential"], transport)
    assert result.stdout == "PASS driver_managed_edges\n", result.explain()
    assert result.stats["round_trips"] < 40
    if transport != "shm":  # where bytes travel in messages
        assert result.stats["bytes_sent"] < 66 * MIB
        assert result.stats["bytes_received"] < 66 * MIB


def test_a_program_outlives_its_worker(
    edges: str, server: PoolServer, transport: str, talk: StartTalk
) -> None:
    """What it touches then is what was last known; the next call says what happened."""
    before = set(server.worker_pids())
    program = talk([edges, "lost"], server.environment(transport))
    assert program.line() == "ready"
    (worker,) = set(server.worker_pids()) - before
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), "the worker ended")
    program.say("go")
    result = program.finish()
    assert result.returncode == 0, result.explain()
    assert result.stdout == "CUDA_ERROR_DEVICE_UNAVAILABLE\n"


@pytest.mark.parametrize("name", ["driver_managed", "driver_managed_random"])
def test_on_the_second_device(
    name: str, toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    program: Path = toolchain.driver_program(name)
    result = server.run([str(program)], transport, E2E_DEVICE="1")
    assert result.stdout == f"PASS {name}\n", result.explain()


def test_random_operations_from_other_seeds(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    program = str(toolchain.driver_program("driver_managed_random"))
    for seed in range(2, 4):
        result = server.run([program, "400", str(seed)], transport)
        assert result.stdout == "PASS driver_managed_random\n", (seed, result.explain())
