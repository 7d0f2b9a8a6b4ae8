"""What may be the first CUDA call of a process, made as its first."""

from __future__ import annotations

import pytest

from harness import PoolServer
from toolchain import VARIANTS, Toolchain

pytestmark = pytest.mark.real_gpu


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_launch_may_be_the_first_call(
    variant: str, transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    """The runtime looks the kernel up before it makes a context; it printed nothing then."""
    result = server.run([str(toolchain.runtime_program("hello", variant))], transport)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines() == [f"hello from thread {i}" for i in range(2)]
