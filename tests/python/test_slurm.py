"""Prolog, task prolog and epilog with Slurm's variables, against a manager's process."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool_common.errors import ConfigError
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_slurm.cli import app
from gpupool_slurm.job import Job, JobError, request
from gpupool_slurm.settings import Settings, load_settings
from pool_process import STEADY, Manager

pytestmark = pytest.mark.timeout(300)

GIB = 1024 * MIB
BOTH = "gres:gpupool:1,gres:gpupool_memory:2G,gres:gpupool_share:50"


@pytest.fixture(scope="module")
def manager() -> Iterator[Manager]:
    folder = Path(tempfile.mkdtemp(prefix="gps-", dir="/tmp"))
    process = Manager(folder, *STEADY)
    process.start()
    process.report("n1")
    process.do("POST", "/tenants", {"name": "physics", "quota": {"gpus": 2}})
    yield process
    process.close()
    shutil.rmtree(folder, ignore_errors=True)


class Slurm:
    """A node of Slurm's: what its daemon runs, with what it sets."""

    def __init__(self, manager: Manager, folder: Path) -> None:
        self.manager, self.folder = manager, folder
        self.run_dir = folder / "run"
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(manager.admin)
        self.gres = folder / "gres"
        scontrol = folder / "scontrol"
        scontrol.write_text(
            "#!/bin/sh\n[ \"$1 $2 $3\" = 'show job -o' ] || exit 1\n"
            f'echo "JobId=$4 UserId=u(1) TresPerNode=$(cat {self.gres}) Comment=TresPerNode=x"\n'
        )
        scontrol.chmod(0o755)
        self.config = folder / "slurm.toml"
        self.config.write_text(
            f'pool = "{manager.url}"\ntoken_file = "{token}"\nrun_dir = "{self.run_dir}"\n'
            f'scontrol = "{scontrol}"\n[tenants]\nphys = "physics"\n'
        )

    def job(self, number: int = 7, account: str = "phys", **more: str) -> dict[str, str]:
        return {
            "SLURM_JOB_ID": str(number),
            "SLURM_JOB_UID": str(os.getuid()),
            "SLURM_JOB_ACCOUNT": account,
            "SLURMD_NODENAME": "c1",
            "SLURM_CLUSTER_NAME": "hpc",
            "SLURM_JOB_RESTART_COUNT": "0",
            **more,
        }

    def run(self, command: str, env: dict[str, str], code: int = 0) -> str:
        """What a script of Slurm's prints."""
        where = ["--run-dir", str(self.run_dir)] if command == "task-prolog" else []
        where = where or ["--config", str(self.config)]
        done = CliRunner().invoke(app, [command, *where], env=env)
        assert done.exit_code == code, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.output

    def prolog(self, gres: str, **job: Any) -> dict[str, str]:
        self.gres.write_text(gres)
        env = self.job(**job)
        self.run("prolog", env)
        return env

    def leases(self) -> list[dict[str, Any]]:
        return self.manager.leases("active", "queued")


@pytest.fixture
def slurm(manager: Manager, tmp_path: Path) -> Iterator[Slurm]:
    yield Slurm(manager, tmp_path)
    for lease in manager.leases("active", "queued"):
        manager.do("POST", f"/leases/{lease['id']}/release")


def test_a_job_has_its_lease_from_prolog_to_epilog(slurm: Slurm, tmp_path: Path) -> None:
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    job = slurm.prolog(BOTH, SLURM_JOB_UID=str(owner))
    (lease,) = slurm.leases()
    assert lease["tenant"] == "physics" and lease["label"] == "slurm hpc job 7 on c1"
    assert lease["request"]["memory_bytes"] == 2 * GIB
    assert lease["request"]["share_permille"] == 500
    home = tmp_path / "home"
    library = home / "lib" / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    mine = {**job, "GPUPOOL_HOME": str(home), "LD_LIBRARY_PATH": "/opt/lib", "GPUPOOL_TOKEN": "x"}
    said = dict(
        line.removeprefix("export ").split("=", 1)
        for line in slurm.run("task-prolog", mine).splitlines()
        if line.startswith("export ")
    )
    assert said["GPUPOOL_SERVER"] == "tcp://n1:7700"
    assert said["LD_LIBRARY_PATH"] == f"{library.parent}:/opt/lib"
    assert "unset GPUPOOL_TOKEN" in slurm.run("task-prolog", mine).splitlines()
    token = Path(said["GPUPOOL_TOKEN_FILE"])
    assert token.read_text().startswith("gpl_") and token.stat().st_mode & 0o777 == 0o400
    assert token.stat().st_uid == owner
    # A prolog that runs a second time takes nothing more.
    slurm.run("prolog", job)
    assert [each["id"] for each in slurm.leases()] == [lease["id"]]
    before = token.read_text()
    assert slurm.run("renew", {}) == ""
    assert token.read_text() != before
    slurm.run("epilog", job)
    slurm.run("epilog", job)
    assert slurm.leases() == [] and list(slurm.run_dir.iterdir()) == []
    assert slurm.run("task-prolog", mine) == ""


def test_what_is_wrong_with_a_job_is_told_to_its_tasks(slurm: Slurm) -> None:
    for number, (gres, account, why) in enumerate(
        (
            ("gres:gpupool:3", "phys", "over the quota: tenant 'physics': virtual GPUs: 3 asked"),
            ("gres/gpupool:1,gres/gpupool_share:50", "phys", "gpupool_share needs"),
            ("gres:gpupool:1", "chem", "the account 'chem' has no tenant"),
            ("gres:gpupool:1,gres:gpupool_memory:1T", "phys", "the largest of the pool has"),
        )
    ):
        job = slurm.prolog(gres, number=number, account=account)  # it does not fail: that drains
        said = slurm.run("task-prolog", job, code=1)
        assert said.startswith("print gpupool: ") and said.count("\n") == 1
        assert why in said
        slurm.run("epilog", job)
    assert slurm.leases() == [] and list(slurm.run_dir.iterdir()) == []


def test_a_job_without_our_resources_costs_nothing(slurm: Slurm) -> None:
    for gres in ("", "(null)", "gres:gpu:a100:2", "gres/nic"):
        job = slurm.prolog(gres)
        assert slurm.run("task-prolog", job) == ""
    assert slurm.leases() == [] and not slurm.run_dir.exists()


def test_a_full_pool_is_told_and_nothing_stays_queued(slurm: Slurm) -> None:
    slurm.config.write_text("wait_seconds = 1\n" + slurm.config.read_text())
    slurm.prolog("gres:gpupool:2", number=1)
    slurm.manager.do("PUT", "/tenants/physics/quota", {})
    job = slurm.prolog("gres:gpupool:1", number=2)
    assert "no GPU" in (said := slurm.run("task-prolog", job, code=1)) or "no room" in said
    assert len(slurm.leases()) == 1
    slurm.manager.do("PUT", "/tenants/physics/quota", {"gpus": 2})


def test_a_manager_that_is_away_fails_the_prolog_and_not_the_epilog(slurm: Slurm) -> None:
    job = slurm.prolog(BOTH)
    text = slurm.config.read_text()
    slurm.config.write_text(text.replace(slurm.manager.url, "http://127.0.0.1:1"))
    slurm.gres.write_text(BOTH)
    assert "127.0.0.1:1" in slurm.run("prolog", slurm.job(number=8), code=75)
    slurm.run("epilog", job)
    assert len(slurm.leases()) == 1
    slurm.config.write_text(text)
    slurm.run("renew", {})  # what the epilog could not give back
    assert slurm.leases() == [] and not (slurm.run_dir / "7").exists()


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_ID": "../x", "SLURM_JOB_UID": "1", "SLURMD_NODENAME": "c1"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "-1", "SLURMD_NODENAME": "c1"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1", "SLURMD_NODENAME": "a b"},
    ],
)
def test_without_slurms_variables_it_is_no_prolog(env: dict[str, str]) -> None:
    with pytest.raises(JobError, match="Slurm's prolog"):
        Job.of(env)


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gres:gpupool", (1, None, 1000)),
        ("gres:gpupool:2", (2, None, 1000)),
        ("gres/gpupool:2,gres/gpupool_memory:512M", (2, 512 * MIB, 1000)),
        ("gres:gpu:1,gres:gpupool:1,gres:gpupool_memory:8G,gres:gpupool_share:1", (1, 8 * GIB, 10)),
    ],
)
def test_resources_are_a_request(gres: str, found: tuple[int, int | None, int]) -> None:
    asked = request(gres)
    assert asked is not None
    assert (asked["gpus"], asked["memory_bytes"], asked["share_permille"]) == found


@pytest.mark.parametrize(
    ("gres", "why"),
    [
        ("gres:gpupool:65", "at most 64"),
        ("gres:gpupool:9999999999999999999P", "at most 64"),
        ("gres:gpupool:a100:1", "has no types"),
        ("gres:gpupool_memory:8G", "needs gpupool:1"),
        ("gres:gpupool:1,gres:gpupool_memory:1K", "at least 1M"),
        ("gres:gpupool:1,gres:gpupool_memory:8G,gres:gpupool_share:101", "1 to 100"),
        ("gres:gpupool:1,gres:gpupool_memory:8G,gres:gpupool_share:0", "1 to 100"),
    ],
)
def test_resources_that_cannot_be_are_refused(gres: str, why: str) -> None:
    with pytest.raises(JobError) as refused:
        request(gres)
    assert why in str(refused.value)


def test_a_number_that_an_older_job_had_gets_a_lease_of_its_own(slurm: Slurm) -> None:
    for _ in range(2):  # as after Slurm has lost its state
        job = slurm.prolog(BOTH, number=99)
        assert len(slurm.leases()) == 1
        slurm.run("epilog", job)
    assert slurm.leases() == []


def test_the_page_has_every_setting_and_its_example_is_good(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.M)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(
        Settings.model_fields
    )
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "slurm.toml").write_text(example)
    found = load_settings(tmp_path / "slurm.toml")
    assert (found.tenant_of("physics"), found.tenant_of("else")) == ("physics", "else")
    for gres in re.findall(r"--gres=(\S+)", page):
        assert request(",".join(f"gres:{part}" for part in gres.split(","))) is not None


def test_settings_name_what_is_wrong(slurm: Slurm) -> None:
    text = slurm.config.read_text()
    for more, key in (("wait_seconds = -1", "wait_seconds"), ("gpus = 1", "gpus")):
        slurm.config.write_text(f"{more}\n{text}")
        with pytest.raises(ConfigError, match=key):
            load_settings(slurm.config)
    (slurm.folder / "token").chmod(0o644)
    slurm.config.write_text(text)
    slurm.gres.write_text(BOTH)
    assert "chmod 600" in slurm.run("prolog", slurm.job(), code=2)  # the node's fault
    assert slurm.leases() == []
