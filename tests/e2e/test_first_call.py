"""What may be the first CUDA call of a process, made as its first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupool_common import paths
from harness import DRIVER, PoolServer, Result, run_program
from toolchain import VARIANTS, Toolchain


@pytest.fixture(autouse=True)
def _has_runtime(request: pytest.FixtureRequest, toolchain: Toolchain) -> None:
    """A machine with a GPU of its own may have one runtime only."""
    variant = getattr(request.node, "callspec", None) and request.node.callspec.params.get(
        "variant"
    )
    if DRIVER == "cuda" and variant and variant not in toolchain.variants():
        pytest.skip(f"there is no runtime {variant} here")


@pytest.mark.real_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_launch_may_be_the_first_call(
    variant: str, transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    """The runtime looks the kernel up before it makes a context; it printed nothing then."""
    result = server.run([str(toolchain.runtime_program("hello", variant))], transport)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines() == [f"hello from thread {i}" for i in range(2)]


def held(result: Result, at_least: int) -> None:
    """Every function gave what CUDA gives, and none of them was left out."""
    wrong = [line for line in result.stdout.splitlines() if "FAIL" in line or "ended" in line]
    assert result.returncode == 0, "\n".join([*wrong, result.stderr[-2000:]])
    assert len(result.stdout.splitlines()) > at_least, result.explain()


@pytest.mark.real_gpu
def test_every_driver_function_may_be_the_first_behind_init(
    transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    """Looking a kernel up, making a graph or reserving addresses asked for a context."""
    binary = toolchain.driver_program("first_calls")
    held(server.run([str(binary)], transport), 80)


@pytest.mark.real_gpu
@pytest.mark.parametrize("variant", ["static13", "static12"])
def test_every_function_of_the_runtime_may_be_the_first(
    variant: str, transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    binary = toolchain.runtime_program("first_runtime_calls", variant)
    held(server.run([str(binary)], transport), 60)


def test_the_soft_gpu_itself_answers_first_calls_so(
    toolchain: Toolchain, home: paths.Home, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").symlink_to(home.part(paths.SOFT_GPU))
    binary = toolchain.driver_program("first_calls")
    held(run_program([str(binary)], {"LD_LIBRARY_PATH": str(tmp_path)}), 80)
