"""The command gpupool-manager where parts of it are missing, and where its token lies."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from server_harness import ROOT

PYTHONPATH = f"{ROOT / 'pool'}:{ROOT / 'server'}"

#: Hides a package from the process, as if it was not installed.
HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
sys.argv = ["gpupool-manager", *{arguments!r}]
from gpupool_manager.start import main
main()
"""


def manager(*arguments: str, hidden: str = "-", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden, arguments=list(arguments))],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hidden", ["fastapi", "sqlalchemy", "uvicorn"])
def test_without_its_extra_it_says_what_to_install(tmp_path: Path, hidden: str) -> None:
    done = manager("--state-dir", str(tmp_path), hidden=hidden)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"the package '{hidden}' is not installed; run: " in done.stderr
    assert "-m pip install 'gpupool[manager]'" in done.stderr


@pytest.mark.parametrize(
    ("hidden", "database", "extra"),
    [
        ("asyncpg", "postgresql://u@127.0.0.1:1/x", "gpupool[manager,postgresql]"),
        ("aiosqlite", "", "gpupool[manager]"),
    ],
)
def test_without_a_database_s_driver_too(
    tmp_path: Path, hidden: str, database: str, extra: str
) -> None:
    given = ["--database", database] if database else []
    state = ["--state-dir", str(tmp_path / "state")]
    done = manager(
        "--listen",
        "http://127.0.0.1:0",
        "--nodes",
        "none",
        *state,
        *given,
        "--log-level",
        "error",
        hidden=hidden,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert f"-m pip install '{extra}'" in done.stderr


def test_without_alembic_a_database_of_another_release_waits(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "pool.db")) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('0')")
        database.commit()
    given = ["--database", f"sqlite:///{tmp_path}/pool.db", "--state-dir", str(tmp_path / "state")]
    given += ["--listen", "http://127.0.0.1:0", "--nodes", "none"]
    done = manager(*given, hidden="alembic")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "the package 'alembic' is not installed; run: " in done.stderr
    told = manager(*given)
    assert (told.returncode, "has the schema '0'" in told.stderr) == (1, True), told.stderr


def test_where_the_admin_token_lies(tmp_path: Path) -> None:
    state = tmp_path / "state"
    done = manager("token", "path", "--state-dir", str(state))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"{state}/admin.token: there is none" in done.stderr
    state.mkdir()
    (state / "admin.token").write_text("gpp_x")
    done = manager("token", "path", "--state-dir", str(state))
    assert (done.returncode, done.stdout) == (0, f"{state}/admin.token\n")
    config = tmp_path / "manager.toml"
    config.write_text(f"state_dir = '{state}'\n")
    assert manager("token", "path", "--config", str(config)).stdout == f"{state}/admin.token\n"
    (tmp_path / "gpupool").symlink_to(state)
    if os.geteuid() != 0:
        usual = manager("token", "path", XDG_STATE_HOME=str(tmp_path)).stdout
        assert usual == f"{tmp_path}/gpupool/admin.token\n"
    assert manager("token", "path", "--state-dir", "here").returncode == 2


def test_no_certificate_yet(tmp_path: Path) -> None:
    """As where it listens on the loopback alone, by default."""
    done = manager("certificate", "fingerprint", "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"there is no certificate {tmp_path}/tls.crt; the manager makes one" in done.stderr
