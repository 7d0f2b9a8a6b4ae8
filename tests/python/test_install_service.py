"""``install-service``: the unit that it writes, and what it leaves alone."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpupool_common import service_unit
from gpupool_common.errors import ConfigError
from gpupool_common.service_unit import Service, hidden
from gpupool_manager.cli import PROGRAM as MANAGER
from gpupool_server.cli import PROGRAM as SERVER
from server_harness import ROOT

UNITS = {
    "gpupool-server": ROOT / "server" / "systemd" / "gpupool-server.service",
    "gpupool-manager": ROOT / "pool" / "systemd" / "gpupool-manager.service",
}


@pytest.fixture(autouse=True)
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation below a folder that no unit hides, with both units."""
    home, programs = tmp_path / "home-of-gpupool", tmp_path / "opt" / "bin"
    for folder in (home / "share" / "systemd", programs):
        folder.mkdir(parents=True)
    for name, path in UNITS.items():
        shutil.copy(path, home / "share" / "systemd")
        (programs / name).touch()
    monkeypatch.setenv("GPUPOOL_HOME", str(home))
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return programs


def install(tmp_path: Path, *words: str, manager: bool = False) -> Result:
    program = MANAGER if manager else SERVER
    config = tmp_path / "etc" / "config.toml"
    given = ["--folder", str(tmp_path / "units"), "--config", str(config), *words]
    return CliRunner().invoke(program.parser("install-service"), given)


@pytest.mark.parametrize("manager", [False, True])
def test_a_unit_for_this_installation(tmp_path: Path, python: Path, manager: bool) -> None:
    name = "gpupool-manager" if manager else "gpupool-server"
    done = install(tmp_path, manager=manager)
    assert done.exit_code == 0, done.output
    assert f"systemctl enable --now {name}" in done.stdout
    unit, config = tmp_path / "units" / f"{name}.service", tmp_path / "etc" / "config.toml"
    (line,) = re.findall("^ExecStart=.*", unit.read_text(), re.M)
    assert line.startswith(f"ExecStart={python / name} --config {config}")
    template = UNITS[name].read_text(encoding="utf-8")
    assert unit.read_text() == re.sub("^ExecStart=.*", line, template, flags=re.M)
    assert all(line.startswith("#") for line in config.read_text().splitlines())
    assert unit.stat().st_mode & 0o777 == 0o644


def test_what_is_there_stays(tmp_path: Path) -> None:
    assert install(tmp_path).exit_code == 0
    unit, config = tmp_path / "units" / "gpupool-server.service", tmp_path / "etc" / "config.toml"
    text = unit.read_text()
    config.write_text("max_sessions = 4\n")
    assert install(tmp_path).exit_code == 0  # the same again
    unit.write_text(f"{text}# mine\n")
    done = install(tmp_path)
    assert (done.exit_code, "--force replaces it" in done.stderr) == (2, True)
    assert unit.read_text().endswith("# mine\n")
    assert install(tmp_path, "--force").exit_code == 0
    assert (unit.read_text(), config.read_text()) == (text, "max_sessions = 4\n")


def test_it_is_shown_and_not_written(tmp_path: Path) -> None:
    done = install(tmp_path, "--print")
    assert done.exit_code == 0 and "ExecStart=" in done.stdout
    assert not (tmp_path / "units").exists() and not (tmp_path / "etc").exists()


def test_what_systemd_would_read_otherwise(tmp_path: Path, python: Path) -> None:
    for config in ("relative.toml", "/etc/a b", "/etc/%n", "/etc/a\nUser=root", "/etc/$HOME"):
        with pytest.raises(ConfigError, match="systemd wants an absolute path"):
            Service("gpupool-server", Path(config)).text(Path(config))
    (python / "gpupool-server").unlink()
    done = install(tmp_path)
    assert (done.exit_code, "is not there; install gpupool" in done.stderr) == (1, True)
    done = install(tmp_path, "--now", manager=True)
    assert (done.exit_code, f"--now is for units in {service_unit.UNITS}" in done.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("program", "config"),
    [("/home/me/bin/gpupool-server", "/etc/s"), ("/opt/bin/gpupool-server", "/root/s")],
)
def test_what_the_unit_does_not_see(program: str, config: str) -> None:
    assert "python3 -m venv /opt/gpupool" in (
        hidden(f"ExecStart={program} --config {config}") or ""
    )


def test_what_the_unit_sees() -> None:
    assert hidden("ExecStart=/opt/gpupool/bin/gpupool-server --config /etc/s.toml") is None
