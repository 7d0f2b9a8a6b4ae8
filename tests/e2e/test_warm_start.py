"""Daemons that are forked for tests behave as started ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE, PoolServer
from ready_process import start_ready
from warm_start import Popen, is_warm, run

PYTHONPATH = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
COMMAND = [sys.executable, "-m", "gpupool"]
SERVER = [sys.executable, "-m", "gpupool_server"]


def test_how_it_ends_is_told() -> None:
    server = PoolServer()
    server.start()
    process = server._process
    assert isinstance(process, Popen) and process.is_forked
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


#: A program of `gpupool run`, and what it finds: whether it leads its session or its group as well.
LOOKS = (
    "cat; pwd; echo $ANSWER $0; ls /proc/$$/fd;"
    # By itself: while it starts another program, a shell may block signals.
    'while read -r name value; do case $name in SigBlk:|SigIgn:) echo "$value";; esac; done'
    " < /proc/$$/status;"
    "read -r _ _ _ _ group session _ < /proc/$PPID/stat;"
    "[ $group = $PPID ]; echo $?; [ $session = $PPID ]; echo $?; echo no >&2; kill -15 $$"
)


@pytest.mark.parametrize("how", [{}, {"start_new_session": True}, {"process_group": 0}])
def test_a_forked_command_is_as_a_started_one(tmp_path: Path, how: dict[str, Any]) -> None:
    """So is the server that it starts."""
    command = [*COMMAND, "run", "--local", "--soft", "--", "sh", "-c", LOOKS, "it's"]
    env = {**os.environ, **PYTHONPATH, "ANSWER": "42"}
    how |= dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    ended = []
    starts: tuple[type[subprocess.Popen[str]], ...] = (Popen, subprocess.Popen)
    for start in starts:
        process = start(command, env=env, cwd=tmp_path, text=True, **how)
        assert getattr(process, "is_forked", False) is (start is Popen)
        ended.append((*process.communicate("asked\n", timeout=PATIENCE), process.returncode))
    assert ended[0] == ended[1]
    said, errors, code = ended[0]
    assert said.startswith(f"asked\n{tmp_path}\n42 it's\n") and (errors, code) == ("no\n", 143)


def test_who_runs_a_command_does_not_wait_for_ever() -> None:
    env = {**os.environ, **PYTHONPATH}
    done = run([*COMMAND, "lib-path", "--no-such-option"], PATIENCE, env)
    assert done.returncode == 2 and "--no-such-option" in done.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        run([*COMMAND, "run", "--local", "--soft", "--", "sleep", "60"], 0.1, env)


def test_what_an_interpreter_reads_at_its_start_makes_a_new_one() -> None:
    env = {**os.environ, **PYTHONPATH}
    assert is_warm(SERVER, env) and is_warm(SERVER, {**env, "GPUPOOL_LOG": "debug"})
    assert not is_warm(SERVER, {**env, "LD_LIBRARY_PATH": "/elsewhere"})
    assert not is_warm(SERVER, {**env, "PYTHONPATH": "/elsewhere"})
    assert not is_warm(["/another/python", *SERVER[1:]], env)
    assert not is_warm([sys.executable, "-m", "another"], env)
