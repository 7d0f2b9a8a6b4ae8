"""Three hosts in network namespaces, and everything that can go wrong with them, by a seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from toolchain import Toolchain  # noqa: E402

#: Where the faults come from; every one of these has passed, and any may be tried.
SEEDS = (1,)


def why_not() -> str:
    """Why there can be no network namespaces here; empty: there can."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed (packages util-linux and iproute2)"
    bridge = "ip link add pool type bridge"
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-c", bridge], capture_output=True, text=True, check=False
    )
    return f"network namespaces are not allowed: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are network namespaces")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_fifty_faults(seed: int, tmp_path: Path) -> None:
    kept = os.environ.get("GPUPOOL_E2E_CACHE")
    toolchain = Toolchain(Path(kept) if kept else tmp_path / "programs")
    programs = [toolchain.driver_program(name) for name in ("driver_memory", "driver_streams")]
    command = ["unshare", "--net", sys.executable, str(HERE / "scenario.py"), "--seed", str(seed)]
    command += ["--faults", "50", "--logs", str(tmp_path / "logs"), "--programs"]
    done = subprocess.run(
        [*command, *map(str, programs)], capture_output=True, text=True, timeout=560, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
