"""CUDA runtimes of older packages; `make test-targets` fetches them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness import PoolServer

RUNTIMES = Path(os.environ.get("GPUPOOL_RUNTIMES", ""))
PROGRAM = Path(__file__).resolve().parent / "runtime_calls.py"
pytestmark = pytest.mark.skipif(
    "GPUPOOL_RUNTIMES" not in os.environ, reason="no older runtimes are here; make test-targets"
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("version", ["11.8.89", "12.1.105", "12.4.127"])
def test_an_older_runtime_runs(version: str, transport: str, server: PoolServer) -> None:
    folder = RUNTIMES / version / "nvidia/cuda_runtime/lib"
    (library,) = folder.glob("libcudart.so.*")
    result = server.run([sys.executable, str(PROGRAM), str(library)], transport)
    major, minor = version.split(".")[:2]
    expected = f"PASS {int(major) * 1000 + int(minor) * 10} on "
    assert result.returncode == 0 and result.stdout.startswith(expected), result.explain()
    assert result.stats["transport"] == transport
