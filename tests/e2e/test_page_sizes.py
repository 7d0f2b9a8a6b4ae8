"""Programs on machines with pages of 64 KiB, as many arm64 kernels have, and a GPU host with 4 KiB.

No such machine stands here: a preloaded library makes the pages of the program (tests/e2e/preload).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import PoolServer
from toolchain import Toolchain

SOURCE = Path(__file__).parent / "preload" / "pages_64k.c"

#: What maps memory, or takes it page by page.
PROGRAMS = (
    ("driver_managed_random", "tcp"),
    ("driver_managed_variables", "zmq"),
    ("driver_mapped", "tcp"),
    ("driver_pinned", "zmq"),
)


@pytest.fixture(scope="module")
def large_pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("pages") / "pages_64k.so"
    flags = ["-D_GNU_SOURCE", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(SOURCE), "-ldl", "-o", str(library)], check=True)
    said = subprocess.run(
        ["getconf", "PAGESIZE"], env={"LD_PRELOAD": str(library)}, capture_output=True, check=True
    )
    assert said.stdout == b"65536\n"
    return str(library)


@pytest.mark.parametrize(("name", "transport"), PROGRAMS)
def test_a_program_with_larger_pages_runs(
    name: str, transport: str, large_pages: str, toolchain: Toolchain, server: PoolServer
) -> None:
    program = str(toolchain.driver_program(name))
    result = server.run([program], transport, LD_PRELOAD=large_pages)
    assert result.returncode == 0, result.explain()
    assert result.stdout.endswith(f"PASS {name}\n"), result.explain()
