"""One process with the GPUs of several servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpupool import paths
from harness import PoolServer, Result
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]


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


def over(servers: tuple[PoolServer, ...] | list[PoolServer]) -> dict[str, str]:
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
