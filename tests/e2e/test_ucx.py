"""Programs over UCX: its own tcp, by the loopback. RDMA devices take the same way."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PoolServer, wait_until
from test_curve import assert_passes
from toolchain import Toolchain

VARIABLE = "GPUPOOL_UCX_LIBRARY"


def library() -> str:
    """Where UCX is; skips where it is not."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    spec = importlib.util.find_spec("libucx")
    if spec is None or spec.origin is None:
        pytest.skip("no UCX here: pip install libucx-cu12")
    return str(Path(spec.origin).parent / "lib")


@pytest.fixture(scope="module")
def serving(home: paths.Home) -> Iterator[PoolServer]:
    where = library()
    server = PoolServer(ucx="", **{"ucx-library": f"{where}/libucp.so.0"})
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_programs(serving: PoolServer, toolchain: Toolchain) -> None:
    result = serving.run([str(toolchain.runtime_program("vector_add"))], "ucx", **{VARIABLE: library()})
    assert_passes(result, "vector_add")
    assert result.stats["transport"] == "ucx"
