"""CuPy for CUDA 12 and for CUDA 13, unmodified, on the soft GPU."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from harness import PoolServer

SCRIPT = Path(__file__).resolve().parent / "cupy_programs.py"

#: Importing CuPy and compiling a program's kernels, on a slow machine.
PATIENCE = 240.0


def programs() -> list[str]:
    """The names under @program, read without importing CuPy here."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "program" for d in node.decorator_list)
    ]


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("GPUPOOL_E2E_CACHE")
    return Path(kept) / "cupy" if kept else tmp_path_factory.mktemp("cupy")


@pytest.fixture(scope="session", params=["cuda12", "cuda13"])
def cupy_environment(request: pytest.FixtureRequest, kernel_cache: Path) -> dict[str, str]:
    """CuPy 12x is in this Python; 13x in a folder of its own, which GPUPOOL_CUPY13 names."""
    env = {
        "CUPY_COMPILE_WITH_PTX": "1",
        # CuPy's copy of CUB is machine code; without it reductions are compiled like the rest.
        "CUPY_ACCELERATORS": "",
        "CUPY_CACHE_DIR": str(kernel_cache / request.param),
    }
    if request.param == "cuda13":
        folder = os.environ.get("GPUPOOL_CUPY13", "")
        if not (Path(folder) / "cupy").is_dir() or not folder:
            pytest.skip("cupy-cuda13x is not here: set GPUPOOL_CUPY13 to the folder that has it")
        env["PYTHONPATH"] = folder
    elif importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy-cuda12x is not installed")
    return env


@pytest.mark.parametrize("name", programs())
def test_cupy(name: str, server: PoolServer, cupy_environment: dict[str, str]) -> None:
    command = [sys.executable, str(SCRIPT), name]
    result = server.run(command, "shm", PATIENCE, **cupy_environment)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1] == f"PASS {name}", result.explain()


def test_cupy_over_the_network(server: PoolServer, cupy_environment: dict[str, str]) -> None:
    command = [sys.executable, str(SCRIPT), "elementwise", "pinned_memory", "memory_pool"]
    result = server.run(command, "zmq", PATIENCE, **cupy_environment)
    assert result.returncode == 0, result.explain()
