"""Ctrl-C while a command is still being imported, and output that nobody takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from gpupool_common import collector, interrupt
from server_harness import ROOT


@pytest.mark.parametrize("command", ["gpupool", "gpupool-server", "gpupool-manager"])
def test_no_traceback(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collector, "importing", interrupted)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts[command].partition(":")
    with pytest.raises(SystemExit) as ended:
        getattr(import_module(module), name)()
    assert ended.value.code == 130


def test_only_our_own_output_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that had gone away ended a program without a word."""

    def end() -> None:
        with interrupt.quiet():
            raise BrokenPipeError

    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(BrokenPipeError):
            end()
        os.close(reader)
        with pytest.raises(SystemExit):
            end()


@pytest.mark.parametrize("command", [["lib-path"], ["--help"]])
def test_a_full_disk_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpupool", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.endswith("cannot write: No space left on device\n"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
