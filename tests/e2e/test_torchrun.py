"""torchrun itself on a lease that grows and shrinks under it, as docs/jobs.md shows it.

PyTorch is no dependency of the tests: GPUPOOL_TORCHRUN names a torchrun, of a build for the CPU
(`pip install torch==2.13.0` in an environment of its own), and without it this is skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from harness import PATIENCE, wait_until
from pool_site import Site, running_host
from ports import free_port
from toolchain import Toolchain

TORCHRUN = os.environ.get("GPUPOOL_TORCHRUN", "")
RANK = Path(__file__).parent / "programs/elastic_rank.py"

pytestmark = pytest.mark.skipif(
    not TORCHRUN, reason="GPUPOOL_TORCHRUN names no torchrun: PyTorch is not fetched for tests"
)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def pool(home: paths.Home, toolchain: Toolchain) -> Iterator[Site]:
    with running_host(home, toolchain, "--reclaim-seconds", "30") as site:
        yield site


class Job:
    """An elastic job: its agents, and what its rounds have written."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._site = site
        self.folder = folder
        self._port = free_port()
        self._agents: list[subprocess.Popen[str]] = []

    def agent(self, device: int, *options: str) -> subprocess.Popen[str]:
        """``gpupool run OPTIONS -- torchrun ...`` with one rank, on a device of the lease."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "PYTHON"))}
        env |= {
            "GPUPOOL_HOME": str(self._site.home.root),
            "GPUPOOL_POOL": self._site.manager.url,
            "GPUPOOL_POOL_TOKEN": self._site.red,
            "CUDA_VISIBLE_DEVICES": str(device),
            "ELASTIC_FOLDER": str(self.folder),
            "OMP_NUM_THREADS": "1",
            # else the agent that stays tells who comes later no address (PyTorch 2.13)
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        torchrun = [TORCHRUN, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self._port}"]
        run = [sys.executable, "-P", "-m", "gpupool", "run", *options, "--", *torchrun, str(RANK)]
        with (self.folder / f"agent-{len(self._agents)}").open("w") as log:
            agent = subprocess.Popen(
                run, env=env, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=self.folder
            )
        self._agents.append(agent)
        return agent

    def rounds(self) -> list[str]:
        path = self.folder / "rounds"
        return path.read_text().splitlines() if path.exists() else []

    def step(self) -> int:
        path = self.folder / "step"
        return int(path.read_text()) if path.exists() else 0

    def said(self, agent: int) -> str:
        return (self.folder / f"agent-{agent}").read_text()

    def close(self) -> None:
        for agent in self._agents:
            agent.terminate()
            agent.wait(PATIENCE)


@pytest.fixture
def job(pool: Site, tmp_path: Path) -> Iterator[Job]:
    found = Job(pool, tmp_path)
    yield found
    found.close()


def lease_of(site: Site) -> dict[str, Any]:
    (lease,) = site.manager.do("GET", "/leases?state=active")["items"]
    return dict(lease)


def resize(site: Site, gpus: int) -> None:
    path = f"/leases/{lease_of(site)['id']}"
    answer = site.manager.ask_again("PATCH", path, {"gpus": gpus}, site.red)
    assert answer.is_success, answer.text


def test_a_job_grows_and_shrinks_with_its_lease(pool: Site, job: Job) -> None:
    first = job.agent(0, "--gpus", "1")
    wait_until(lambda: job.rounds() == ["1 ranks, rank 0 on device 0, from step 0"], "it began")

    resize(pool, 2)
    second = job.agent(1, "--lease", lease_of(pool)["id"], "--warn-signal", "TERM")
    wait_until(lambda: len(job.rounds()) == 3, "both are in a round")
    assert {line[: len("2 ranks")] for line in job.rounds()[1:]} == {"2 ranks"}
    assert {line.partition(", from")[0][-1] for line in job.rounds()[1:]} == {"0", "1"}

    before = job.step()
    resize(pool, 1)
    wait_until(lambda: second.poll() is not None, "the second agent was told, and has ended")
    wait_until(lambda: len(job.rounds()) == 4, "the first goes on alone")
    assert job.rounds()[3].startswith("1 ranks, rank 0 on device 0, from step ")
    assert int(job.rounds()[3].rpartition(" ")[2]) >= before, "behind the last checkpoint"
    wait_until(lambda: len(lease_of(pool)["grants"]) == 1, "the GPU has gone back")

    (job.folder / "stop").touch()
    assert first.wait(PATIENCE) == 0, job.said(0)
