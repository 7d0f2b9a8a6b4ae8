"""mpirun itself on a lease of two GPUs, as docs/jobs.md shows it.

No launcher of MPI is a dependency of the tests: GPUPOOL_MPIRUN names one, of MPICH (`pip install
mpich` in an environment of its own, 13 MB) or of Open MPI, and without it this is skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PATIENCE, wait_until
from pool_site import Site, running_host
from toolchain import Toolchain

MPIRUN = os.environ.get("GPUPOOL_MPIRUN", "")

pytestmark = pytest.mark.skipif(
    not MPIRUN, reason="GPUPOOL_MPIRUN names no mpirun: MPI is not fetched for tests"
)

#: What either launcher says to a rank; each takes the GPU of its number.
RANK = 'rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; export CUDA_VISIBLE_DEVICES="$rank"; '


@pytest.fixture
def pool(home: paths.Home, toolchain: Toolchain) -> Iterator[Site]:
    with running_host(home, toolchain) as site:
        yield site


def run(site: Site, script: str) -> subprocess.CompletedProcess[str]:
    """``gpupool run --gpus 2 -- mpirun -n 2`` of a script, with ``$rank``."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "PYTHON"))}
    env |= {
        "GPUPOOL_HOME": str(site.home.root),
        "GPUPOOL_POOL": site.manager.url,
        "GPUPOOL_POOL_TOKEN": site.red,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    command = [sys.executable, "-P", "-m", "gpupool", "run", "--gpus", "2", "--"]
    command += [MPIRUN, "-n", "2", "sh", "-c", RANK + script]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def leases(site: Site) -> int:
    return len(site.manager.do("GET", "/leases?state=active")["items"])


def test_ranks_of_mpirun_have_a_gpu_each_of_one_lease(pool: Site, tmp_path: Path) -> None:
    """Also for collectives by NCCL, which refuses ranks that have the same GPU."""
    program = pool.toolchain.driver_program("nccl_ranks")
    done = run(pool, f'exec {program} "$rank" {tmp_path / "id"}')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == 2 * "PASS nccl_ranks\n", done.stdout + done.stderr
    wait_until(lambda: leases(pool) == 0, "the lease has gone with its job")


def test_a_rank_that_is_killed_ends_the_job_and_its_lease(pool: Site, tmp_path: Path) -> None:
    program = pool.toolchain.driver_program("nccl_ranks")
    dies = f'[ "$rank" = 0 ] || {{ sleep 1; kill -9 $$; }}; exec {program} 0 {tmp_path / "id"} ends'
    done = run(pool, dies)
    assert done.returncode != 0, done.stdout + done.stderr
    wait_until(lambda: leases(pool) == 0, "the lease has gone with its job")
