"""What the GPU tells of by itself: who is there to ask when it tells nothing any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from harness import PoolServer, Talk
from toolchain import Toolchain


@pytest.mark.parametrize("name", ["driver_polled", "driver_waits"])
def test_killed_worker_ends_the_polling_of_an_event_and_a_wait(
    make_server: Callable[..., PoolServer],
    talk: Callable[[list[str], dict[str, str]], Talk],
    toolchain: Toolchain,
    transport: str,
    name: str,
) -> None:
    """Nobody writes any more that it is over."""
    server = make_server()
    polling = str(toolchain.driver_program(name))
    program = talk([polling, "hold"], server.environment(transport))
    assert program.line() == "ready"
    (worker,) = server.worker_pids()
    os.kill(worker, signal.SIGKILL)
    result = program.finish()
    assert result.returncode == 0, result.explain()
    assert f"PASS {name}" in result.stdout
    assert len(result.own_lines()) == 1, result.explain()
