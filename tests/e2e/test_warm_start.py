"""Daemons that are forked for tests behave as started ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PoolServer
from ready_process import start_ready
from warm_start import Started, is_warm

PYTHONPATH = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
SERVER = [sys.executable, "-m", "gpupool_server"]


def test_how_it_ends_is_told() -> None:
    server = PoolServer()
    server.start()
    process = server._process
    assert isinstance(process, Started)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL == process.poll()
    process.kill()  # of one that is gone: nothing
    server.close()


@pytest.mark.parametrize("cold", [False, True])
def test_a_start_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    if cold:
        monkeypatch.delenv("PYTEST_VERSION")
    env = {**os.environ, **PYTHONPATH}
    assert is_warm(SERVER, env) is not cold
    with pytest.raises(AssertionError, match="--no-such-option"):
        start_ready([*SERVER, "--no-such-option"], tmp_path / "log", 30, env)


def test_what_an_interpreter_reads_at_its_start_makes_a_new_one() -> None:
    env = {**os.environ, **PYTHONPATH}
    assert is_warm(SERVER, env) and is_warm(SERVER, {**env, "GPUPOOL_LOG": "debug"})
    assert not is_warm(SERVER, {**env, "LD_LIBRARY_PATH": "/elsewhere"})
    assert not is_warm(SERVER, {**env, "PYTHONPATH": "/elsewhere"})
    assert not is_warm(["/another/python", *SERVER[1:]], env)
    assert not is_warm([sys.executable, "-m", "another"], env)
