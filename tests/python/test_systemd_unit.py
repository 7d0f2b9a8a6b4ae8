"""The unit that is shipped: systemd understands it, and the guide shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpupool_server.cgroups import CONTROLLERS

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "server" / "systemd" / "gpupool-server.service"
MANAGER = ROOT / "pool" / "systemd" / "gpupool-manager.service"
#: Of systemd 254; older ones say that they ignore it.
NEWER = "DelegateSubgroup"


def test_the_guide_shows_it() -> None:
    guide = (ROOT / "docs" / "server-guide.md").read_text(encoding="utf-8")
    assert f"```ini\n{UNIT.read_text(encoding='utf-8')}```\n" in guide


def test_it_delegates_what_workers_groups_need() -> None:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    (delegated,) = [line.partition("=")[2] for line in lines if line.startswith("Delegate=")]
    assert set(delegated.split()) == set(CONTROLLERS)
    for line in ("DelegateSubgroup=server", "KillMode=process", "LimitCORE=0"):
        assert line in lines


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("source", [UNIT, MANAGER], ids=lambda path: path.stem)
def test_systemd_understands_it(tmp_path: Path, source: Path) -> None:
    unit = tmp_path / source.name
    text = source.read_text(encoding="utf-8")
    unit.write_text(re.sub(r"^ExecStart=.*", "ExecStart=/bin/true", text, flags=re.M))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wrong = [line for line in done.stderr.splitlines() if unit.name in line and NEWER not in line]
    assert done.returncode == 0 and wrong == []
