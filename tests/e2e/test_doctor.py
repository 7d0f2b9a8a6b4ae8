"""``gpupool doctor``: the library, this machine, and a session that it measures."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import TOKEN, PoolServer, Result, run_program

GPUPOOL = [sys.executable, "-m", "gpupool"]


def doctor(*words: str, shell: str = "", **env: str) -> Result:
    """As a user whose shell has these limits and variables."""
    kept = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH",)}
    command = ["bash", "-c", f'{shell} exec "$@"', "doctor", *GPUPOOL, "doctor", *words]
    return run_program(command, {**kept, "PYTHONPATH": ":".join(filter(None, sys.path)), **env})


def read(result: Result) -> tuple[dict[str, tuple[bool, str]], dict[str, Any]]:
    """What was found, by name, and all that it said."""
    told: dict[str, Any] = json.loads(result.stdout)
    found = {check["name"]: (check["good"], check["text"]) for check in told["checks"]}
    assert told["healthy"] == all(good for good, _ in found.values())
    assert result.returncode == (0 if told["healthy"] else 1)
    return found, told


def test_a_session_is_measured(server: PoolServer) -> None:
    env = {"GPUPOOL_SERVER": server.address, "GPUPOOL_TOKEN": TOKEN, "GPUPOOL_TRANSPORT": "tcp"}
    found, told = read(doctor("--json", GPUPOOL_GPUS="2", GPUPOOL_MEMORY="64MiB", **env))
    assert told["healthy"], told
    assert set(told) == {"healthy", "checks", "measured"}
    session = told["measured"]["session"]
    assert session["transport"] == "tcp"
    assert len(session["devices"]) == 2
    for device in session["devices"]:
        assert device["memory_bytes"] == 64 << 20
        assert all(value > 0 for key, value in device.items() if key != "name"), device
    assert told["measured"]["connect_seconds"][server.url] > 0
    assert re.search(r"a wait takes \d.* copies .*B/s there and .*B/s back", found["GPU 1"][1])


def test_a_request_that_cannot_be_met(server: PoolServer) -> None:
    env = {"GPUPOOL_TOKEN": TOKEN, "GPUPOOL_GPUS": "60"}
    found, told = read(doctor("--json", "--server", server.address, **env))
    assert not found["request"][0]
    assert "session" not in found and told["measured"] == {}


def test_a_token_that_is_wrong(server: PoolServer) -> None:
    found, _ = read(doctor("--json", "--server", server.address, "--token", "wrong"))
    assert not found["server"][0] and "token" in found["server"][1]


def test_nobody_is_named() -> None:
    """All that is wrong is said at 80 columns, and what to do."""
    result = doctor(shell="ulimit -f 1000 -n 100;", GPUPOOL_SEVER="tcp://gpu-host:7700")
    assert result.returncode == 1
    assert max(map(len, result.stdout.splitlines())) <= 80
    words = " ".join(result.stdout.split())
    assert "variables NOT GPUPOOL_SEVER does nothing: is GPUPOOL_SERVER meant?" in words
    assert "open files NOT at most 100: " in words
    assert "file size NOT at most 1000KiB: " in words
    assert "server NOT no server is named" in words
    assert "driver ok gpupool run loads gpupool's" in words


def test_without_the_launcher() -> None:
    shell = f"export LD_LIBRARY_PATH=$({sys.executable} -m gpupool lib-path);"
    found, _ = read(doctor("--json", shell=shell))
    assert "programs of this shell load gpupool's library, too" in found["without run"][1]


def test_an_installation_without_its_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    found, _ = read(doctor("--json", GPUPOOL_HOME=str(tmp_path_factory.mktemp("home"))))
    assert not found["library"][0] and "reinstall gpupool" in found["library"][1]
    assert "driver" not in found


def test_a_program_that_gpupool_does_not_serve(server: PoolServer, tmp_path: Path) -> None:
    """And one that says more than it was asked."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'gpupool.doctor_probe' in sys.orig_argv:\n"
        "    print('welcome')\n"
        "    os.environ.pop('GPUPOOL_STATS', None)\n"
    )
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    env = {"GPUPOOL_SERVER": server.address, "GPUPOOL_TOKEN": TOKEN, "PYTHONPATH": path}
    found, _ = read(doctor("--json", **env))
    assert found["driver"][0] and found["server"][0]
    good, text = found["session"]
    assert not good and "wrote no statistics" in text
