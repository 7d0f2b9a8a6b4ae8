"""Two GPUs of one server in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpupool_common import paths
from harness import PoolServer
from toolchain import Toolchain


@pytest.fixture(scope="module")
def server(home: paths.Home) -> Iterator[PoolServer]:
    server = PoolServer(**{"soft-gpus": "2"})
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_memory_of_the_other_device(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """The driver refused what was mapped for one device in work of the other."""
    result = server.run([str(toolchain.driver_program("driver_peers"))], transport)
    assert (result.returncode, result.stdout) == (0, "PASS driver_peers\n"), result.explain()
