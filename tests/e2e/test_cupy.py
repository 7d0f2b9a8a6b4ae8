"""CuPy for CUDA 12 and for CUDA 13, unmodified, on the soft GPU."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import PROGRAM_PATIENCE, PoolServer

SCRIPT = Path(__file__).resolve().parent / "cupy_programs.py"


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


@dataclass(frozen=True)
class CuPy:
    """One CuPy: the interpreter that has it, and its environment."""

    version: str
    python: str
    env: dict[str, str]

    def command(self, *names: str) -> list[str]:
        return [self.python, str(SCRIPT), *names]


def find_cupy(version: str) -> tuple[str, str]:
    """(interpreter, PYTHONPATH) for CuPy of CUDA 12 or 13.

    GPUPOOL_CUPY12 and GPUPOOL_CUPY13 name an environment (it has bin/python) or a folder made by
    `pip --target`. Environments are better: CuPy takes NVRTC and its headers from wherever it
    finds any, and beside wheels of both versions it may mix them.
    """
    folder = os.environ.get(f"GPUPOOL_CUPY{version}", "")
    python = Path(folder) / "bin" / "python"
    if folder and python.exists():
        return str(python), ""
    if folder and (Path(folder) / "cupy").is_dir():
        return sys.executable, folder
    if not folder and version == "12" and importlib.util.find_spec("cupy") is not None:
        return sys.executable, ""
    pytest.skip(f"cupy-cuda{version}x is not here: set GPUPOOL_CUPY{version} to its folder")


@pytest.fixture(scope="session", params=["12", "13"], ids=["cuda12", "cuda13"])
def cupy(request: pytest.FixtureRequest, kernel_cache: Path) -> CuPy:
    python, path = find_cupy(request.param)
    env = {
        "CUPY_COMPILE_WITH_PTX": "1",
        "CUPY_CACHE_DIR": str(kernel_cache / request.param),
        "PYTHONPATH": path,
    }
    return CuPy(request.param, python, env)


@pytest.mark.parametrize("name", programs())
def test_cupy(name: str, server: PoolServer, cupy: CuPy) -> None:
    if name in ("sorting", "reductions") and cupy.version == "12":
        pytest.skip("CUB and Thrust take long to load or compile: those of CUDA 13 are enough")
    result = server.run(cupy.command(name), "shm", PROGRAM_PATIENCE, **cupy.env)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1] == f"PASS {name}", result.explain()


def test_machine_code_alone_is_told(server: PoolServer, cupy: CuPy) -> None:
    """What NVRTC makes unless it is told otherwise; not every program looks at the error."""
    env = {**cupy.env, "CUPY_COMPILE_WITH_PTX": "0"}
    result = server.run(cupy.command("elementwise"), "shm", PROGRAM_PATIENCE, **env)
    assert result.returncode != 0, result.explain()
    (line,) = result.own_lines()
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in line, result.explain()


def test_cupy_over_the_network(server: PoolServer, cupy: CuPy) -> None:
    command = cupy.command("elementwise", "pinned_memory", "memory_pool")
    result = server.run(command, "tcp", PROGRAM_PATIENCE, **cupy.env)
    assert result.returncode == 0, result.explain()
