"""Our libcupti.so: what a profiler as PyTorch's gets of kernels, copies and calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PoolServer, run_program
from toolchain import Toolchain


@pytest.mark.parametrize("library", ["libcupti.so.12", "libcupti.so.13"])
def test_a_profile(toolchain: Toolchain, server: PoolServer, transport: str, library: str) -> None:
    binary = toolchain.driver_program("driver_cupti")
    result = server.run([str(binary), library], transport)
    assert result.returncode == 0, result.explain()


def test_callbacks_of_calls(toolchain: Toolchain, server: PoolServer, transport: str) -> None:
    """Also that what they call themselves changes nothing of the call that they are told of."""
    binary = toolchain.driver_program("driver_cupti_calls")
    result = server.run([str(binary), "libcupti.so.13"], transport)
    assert result.returncode == 0, result.explain()


def test_beside_a_timeline(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    """One does not end the other's records."""
    binary = toolchain.driver_program("driver_cupti")
    path = tmp_path / "timeline.json"
    result = server.run([str(binary), "libcupti.so.13"], GPUPOOL_TIMELINE=str(path))
    assert result.returncode == 0, result.explain()
    launched = result.stats["calls"]["cuLaunchKernel"]["count"]
    assert path.read_text(encoding="utf-8").count('"cat":"kernel"') == launched


def test_the_launcher_preloads_it(toolchain: Toolchain, home: paths.Home) -> None:
    """Also where the program names a library of its own: that name is taken."""
    binary = toolchain.driver_program("driver_cupti")
    base = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", "--"]
    result = run_program([*base, str(binary), "libcupti.so.12"])
    assert result.returncode == 0, result.explain()
    maps = run_program([*base, "cat", "/proc/self/maps"])
    for name in paths.CUPTI:
        assert str(home.part(name)) in maps.stdout


@pytest.mark.parametrize("library", paths.CUPTI)
def test_names_have_the_version_that_programs_ask_for(home: paths.Home, library: str) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(home.part(library))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = re.findall(r" T (\w+)@@(\S+)", listing)
    assert len(names) > 200
    assert {version for _, version in names} == {Path(library).name}
