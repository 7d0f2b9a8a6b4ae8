"""What --help says at 80 columns: every option by its whole name, every default, no line cut."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import typer.main

from gpupool.cli import make_app
from gpupool_common.setting_options import setting_help
from gpupool_manager.config import Settings as ManagerSettings
from gpupool_server.cli import TABLES
from gpupool_server.config import Settings as ServerSettings
from server_harness import ROOT

COMMANDS = sorted(
    (name, *((each,) if each else ()))
    for name, command in typer.main.get_command(make_app()).commands.items()  # type: ignore[attr-defined]
    for each in ("", *getattr(command, "commands", ()))
)


def said(module: str, *words: str) -> str:
    path = os.pathsep.join(str(ROOT / each) for each in ("pool", "server", "proto"))
    env = {**os.environ, "COLUMNS": "80", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(text: str) -> None:
    for line in text.splitlines():
        assert len(line) <= 80, line
        assert not line.endswith(("...", "…")) or line.startswith("Usage:"), line


@pytest.mark.parametrize(
    ("module", "settings"),
    [("gpupool_server", ServerSettings), ("gpupool_manager", ManagerSettings)],
)
def test_settings(module: str, settings: type[ServerSettings | ManagerSettings]) -> None:
    text = said(module)
    check(text)
    words = " ".join(text.split()).replace("- ", "-")  # lines end behind hyphens, too
    for key in settings.model_fields:
        if key in TABLES:  # of files only
            continue
        assert re.search(rf"--{key.replace('_', '-')}\b", text), key
        default = re.search(r"\(default: [^)]*\)$", setting_help(settings, key))
        assert default is None or key in ("log_json", "curve", "own_token") or default[0] in words


def test_the_commands_of_a_shell() -> None:
    """In one process: each takes half a second to start."""
    code = (
        "import sys; from typer.testing import CliRunner; from gpupool.cli import make_app\n"
        "app = make_app()\n"
        f"for words in {[(), *COMMANDS]!r}:\n"
        "    done = CliRunner().invoke(app, [*words, '--help'])\n"
        "    assert done.exit_code == 0, words\n"
        "    print(done.stdout)\n"
    )
    env = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(COMMANDS) + 1 > 20
    check(done.stdout)
