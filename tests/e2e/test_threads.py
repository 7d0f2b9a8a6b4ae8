"""Many threads in one process: what one of them does harms no other, and every byte is right."""

from __future__ import annotations

import os

import pytest

from growth import grown
from harness import PoolServer
from toolchain import Toolchain

pytestmark = pytest.mark.real_gpu

#: Each run of random operations; `make soak` has longer ones.
SECONDS = int(os.environ.get("GPUPOOL_RANDOM_SECONDS", "3"))
SEEDS = (1, 2)


def test_captures_beside_other_threads(
    transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    """A copy's staging memory was refused beside a capture, and ended it; a free in stream
    order beside one left a stale range; a host function's bytes could wait for ever."""
    result = server.run([str(toolchain.driver_program("driver_captures"))], transport)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1] == "PASS driver_captures"


def test_threads_that_all_read_long_copies(
    transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    """Each held some of the arena's slots and waited for more, which the others held."""
    result = server.run([str(toolchain.driver_program("downloads")), "threads", "16"], transport)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1] == "PASS downloads"


@pytest.mark.alone  # eight threads, and how many operations they come to in a few seconds
@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations(
    seed: int, transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    """Eight threads, memory and copies of every kind, events, captures, graphs: all modelled.

    A synchronize that returned before a copy had arrived showed here, and worker threads
    that waited for what they had to tell each other.
    """
    binary = toolchain.driver_program("driver_random")
    result = server.run(
        [str(binary), str(seed), "8", "0", str(SECONDS)], transport, timeout=SECONDS + 60
    )
    assert result.returncode == 0, result.explain()
    said = result.stdout.splitlines()
    assert said[-1] == "PASS driver_random"
    assert int(said[-2].split()[0]) > 1000, "so few operations show nothing"


def test_growth_is_seen() -> None:
    """What `make soak` judges by."""
    steady = [(400 + i % 7) << 20 for i in range(60)]
    assert grown(steady) == 0
    assert grown([10 << 20] * 20 + [400 << 20] * 40) == 0, "it may fill its pools"
    assert grown([bytes_now + (i << 22) for i, bytes_now in enumerate(steady)]) == 0
    assert grown([bytes_now + (i << 24) for i, bytes_now in enumerate(steady)]) > 100 << 20
    assert grown([0, 1 << 40]) == 0, "too few looks"
