"""Ctrl-C while a command is still being imported."""

from __future__ import annotations

import tomllib
from importlib import import_module

import pytest

from gpupool_common import collector
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
