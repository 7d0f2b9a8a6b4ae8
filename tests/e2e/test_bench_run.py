"""bench/run.py: crowds, idle sessions and a step of many programs, by the soft GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import DRIVER

ROOT = Path(__file__).resolve().parents[2]

WAYS = ["native", "shm", "tcp"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("bench") / "results.json"
    command = [sys.executable, str(ROOT / "bench" / "run.py"), "--sections", "crowd", "idle"]
    command += ["--ways", *WAYS, "--crowds", "1", "4", "--rounds", "1", "--seconds", "0.02"]
    command += ["--out", str(out), *(["--soft"] if DRIVER == "soft" else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line for line in done.stdout.splitlines() if not line.startswith("results:")]
    assert max(map(len, lines)) <= 80
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_a_crowd_says_how_fair_it_was(results: dict[str, Any]) -> None:
    crowd = results["figures"]["crowd"]
    assert not [name for name in crowd if name.startswith("fair_1_")]
    for way in WAYS:
        least, most, jain = (crowd[f"fair_4_{name}"][way][0] for name in ("least", "most", "jain"))
        assert 0 < least <= 1 <= most < 4
        assert 1 / 4 <= jain <= 1
        assert crowd["launches_1_k_per_s"][way][0] > 0 < crowd["launches_4_k_per_s"][way][0]
        assert crowd["launches_4_cpu_us"][way][0] > 0


def test_what_an_idle_session_holds(results: dict[str, Any]) -> None:
    """Of every process of it, a program and a worker; natively there is the program alone."""
    idle = results["figures"]["idle"]
    for way in WAYS:
        assert 0.1 < idle["idle_program_mib"][way][0] < 4096
        assert idle["idle_16_core_percent"][way][0] >= 0
    pooled = WAYS[1:]
    for name in ("idle_worker_mib", "idle_server_mib", "server_core_percent"):
        assert list(idle[name]) == pooled
    assert all(0.1 < idle["idle_worker_mib"][way][0] < 4096 for way in pooled)
    assert ("idle_gpu_mib" in idle) == (DRIVER == "cuda")
