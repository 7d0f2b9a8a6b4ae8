"""NVRTC keeps what it compiles in the driver's compile cache, which here is the client's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import PoolServer, Result

pytestmark = pytest.mark.real_gpu

pytestmark = pytest.mark.real_gpu

SCRIPT = Path(__file__).resolve().parent / "compile_program.py"


def nvrtc_libraries() -> list[Path]:
    """Those of the wheels beside this interpreter that use the cache: from 12.9 on."""
    folders = [Path(p) / "nvidia" for p in sys.path if p and (Path(p) / "nvidia").is_dir()]
    return sorted(lib for f in folders for lib in f.glob("*/lib/libnvrtc.so.1[23]"))


def test_there_is_a_compiler() -> None:
    assert nvrtc_libraries(), "pip install nvidia-cuda-nvrtc==13.0.*"


@pytest.fixture(params=nvrtc_libraries(), ids=lambda lib: str(lib.name))
def nvrtc(request: pytest.FixtureRequest) -> Path:
    library: Path = request.param
    return library


def compile_twice(server: PoolServer, nvrtc: Path, cache: Path, disable: str = "") -> Result:
    command = [sys.executable, str(SCRIPT), str(nvrtc)]
    # NVRTC looks for its built-ins by name alone.
    folders = f"{server.home.lib_path}:{nvrtc.parent}"
    result = server.run(
        command,
        CUDA_CACHE_PATH=str(cache),
        CUDA_CACHE_DISABLE=disable,
        LD_LIBRARY_PATH=folders,
    )
    assert result.returncode == 0 and "FAIL" not in result.stdout, result.explain()
    assert result.stderr == "", result.explain()
    return result


def test_a_source_is_compiled_once_for_all_processes(
    server: PoolServer, nvrtc: Path, tmp_path: Path
) -> None:
    """Without the table every compilation is done again: cuDNN's attention, each token."""
    first = compile_twice(server, nvrtc, tmp_path)
    # The two halves of a compilation, to PTX and to a cubin, are looked up one by one.
    assert first.stats["compile_cache"] == {
        "memory_hits": 2,
        "file_hits": 0,
        "misses": 2,
        "stored": 2,
    }
    later = compile_twice(server, nvrtc, tmp_path)
    assert later.stats["compile_cache"] == {
        "memory_hits": 2,
        "file_hits": 2,
        "misses": 0,
        "stored": 0,
    }
    assert later.stdout == first.stdout
    files = list((tmp_path / "gpupool").iterdir())
    assert len(files) == 2
    assert first.stats["unknown_private_slots"] == []


def test_damaged_files_are_compiled_anew(server: PoolServer, nvrtc: Path, tmp_path: Path) -> None:
    first = compile_twice(server, nvrtc, tmp_path)
    for file in (tmp_path / "gpupool").iterdir():
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    later = compile_twice(server, nvrtc, tmp_path)
    assert later.stats["compile_cache"]["misses"] == 2
    assert later.stdout == first.stdout


def test_the_cache_can_be_switched_off(server: PoolServer, nvrtc: Path, tmp_path: Path) -> None:
    result = compile_twice(server, nvrtc, tmp_path, disable="1")
    assert result.stats["compile_cache"]["misses"] == 4
    assert result.stats["compile_cache"]["stored"] == 0
    assert list(tmp_path.iterdir()) == []
