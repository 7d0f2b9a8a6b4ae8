"""Ranks of a collective in the jails of one lease: they share its /dev/shm and no other's.

What a libnccl and real GPUs make of it is seen by tests/gpu/jail_two.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PATIENCE, PoolServer
from ranks import Ranks, fake_nccl
from test_jail import confinement
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make every layer")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpe-", dir="/tmp") as made:
        yield Path(made)


REDUCED = "ok by version 1"
BY_SOCKETS = "ok by version 22809"
ANOTHERS = "failed the other rank's memory is another user's"


@pytest.mark.parametrize(
    ("users", "reduced", "soft"),
    [("lease", REDUCED, False), ("worker", ANOTHERS, False), ("worker", BY_SOCKETS, True)],
)
def test_two_workers_of_a_lease_reduce(
    folder: Path, monkeypatch: pytest.MonkeyPatch, users: str, reduced: str, soft: bool
) -> None:
    """NCCL shares memory as files that one user may open; the soft one needs sockets alone."""
    library = paths.find_home().part(paths.SOFT_NCCL) if soft else fake_nccl(folder)
    ranks = Ranks(folder, library)
    monkeypatch.setenv("GPUPOOL_HOME", str(ranks.home))
    settings = {"soft-gpus": "2", "data-listen": "none", "worker": str(ranks.worker)}
    server = PoolServer(**settings, **{"jail-users": users})
    try:
        server.start()
        ranks.arm()
        found = ranks.run(server, ("0", "1"))
        assert found == {
            (rank, step): what
            for rank in (0, 1)
            for step, what in (
                ("driver", "ok"),
                # a soft GPU's own names reach no other jail; a client's go by the server
                ("peer-copy", "failed the other's memory cannot be opened: CUDA error 205"),
                ("all-reduce", reduced),
            )
        }
        log = server.log.read_text()
        assert "root" in log[log.index("workers are confined") :] and "was refused" not in log
    finally:
        server.close()


def test_the_script_for_real_gpus_on_soft_ones() -> None:
    script = Path(__file__).parents[1] / "gpu" / "jail_two.py"
    done = subprocess.run(
        [sys.executable, str(script), "--driver", "soft"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "jail_two: ok"
    assert f"required user of lease, both GPUs   rank 1 all-reduce: {REDUCED}" in lines
    assert f"shown    user of worker, its own GPU rank 0 all-reduce: {ANOTHERS}" in lines


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_alone_connects_to_itself(
    make_server: MakeServer,
    toolchain: Toolchain,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
) -> None:
    """NCCL does, and a worker with one GPU and no other host may not connect by itself; what the
    operator has chosen for other hosts is not in its network."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=ib0")
    monkeypatch.setenv("NCCL_SOCKET_FAMILY", "AF_INET6")
    server = make_server()
    layers = confinement(server)
    assert (layers["net"], layers["seccomp"]) == ("on", "on")
    result = server.run([str(toolchain.driver_program("nccl_one"))], transport)
    assert (result.returncode, result.stdout) == (0, "PASS nccl_one\n"), result.explain()
    assert "was refused" not in server.log.read_text()


def test_ranks_with_a_gpu_each_meet_on_their_loopback(
    make_server: MakeServer, toolchain: Toolchain, tmp_path: Path
) -> None:
    server = make_server(**{"soft-gpus": "2"})
    program = str(toolchain.driver_program("nccl_ranks"))
    envs = [server.environment("shm", GPUPOOL_DEVICES=device) for device in "01"]
    ranks = [
        subprocess.Popen(
            [program, str(rank), str(tmp_path / "id")], env=env, stdout=subprocess.PIPE, text=True
        )
        for rank, env in enumerate(envs)
    ]
    said = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
    assert said == 2 * ["PASS nccl_ranks\n"]
