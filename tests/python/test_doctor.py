"""``gpupool-server doctor``: what it looks at, what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool_common.findings import Finding
from gpupool_server import doctor
from gpupool_server.cgroups import Cgroups
from gpupool_server.config import load_settings
from gpupool_server.jail_status import LAYERS
from warm_start import run

ALL_ON = dict.fromkeys(LAYERS, "on")
GOOD = Finding("driver", True, "/lib/libcuda.so.1")


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpupool_server", "doctor", "--driver", "soft", *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return run(command, 60, env)


def test_all_that_is_needed_is_there() -> None:
    layers = {**ALL_ON, "user-namespace": "off: the server is root"}
    assert doctor.healthy([GOOD], layers)
    assert not doctor.healthy([GOOD], {**ALL_ON, "seccomp": "off: no"})
    assert not doctor.healthy([GOOD, Finding("listen", False, "no")], ALL_ON)


def test_text_has_80_columns_and_says_what_is_missing() -> None:
    layers = {**ALL_ON, "cgroup": "off: " + "the host delegates no control group " * 5}
    text = doctor.as_text([GOOD], layers)
    assert max(map(len, text.splitlines())) <= 80
    assert "  cgroup           OFF  the host delegates no control group" in text
    assert "  seccomp          on" in text.splitlines()


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        assert not doctor.check_listen(url).good
    assert doctor.check_listen(url).good


def test_a_run_directory_that_cannot_be(tmp_path: Path) -> None:
    assert doctor.check_run_dir(tmp_path / "a" / "b").good
    (tmp_path / "file").write_text("")
    assert not doctor.check_run_dir(tmp_path / "file").good
    assert not doctor.check_run_dir(tmp_path / "file" / "below").good


def test_the_command_says_every_layer_and_its_exit_code_agrees(tmp_path: Path) -> None:
    done = report("--json", "--listen", f"ipc://{tmp_path}/front")
    told = json.loads(done.stdout)
    assert set(told["layers"]) == set(LAYERS)
    assert [check["name"] for check in told["checks"]][:2] == ["driver", "GPUs"]
    assert done.returncode == (0 if told["healthy"] else 1), done.stderr
    assert all(layer["on"] or layer["reason"] for layer in told["layers"].values())


def test_the_shape_of_its_json() -> None:
    """Programs rely on it: exactly these keys, of these kinds."""
    layers = {**ALL_ON, "net": "off: no", "user-namespace": "off: the server is root"}
    told = json.loads(doctor.as_json([GOOD, Finding("listen", False, "taken")], layers))
    assert told == {
        "healthy": False,
        "checks": [
            {"name": "driver", "good": True, "text": "/lib/libcuda.so.1"},
            {"name": "listen", "good": False, "text": "taken"},
        ],
        "layers": {
            **{name: {"on": True, "reason": ""} for name in LAYERS},
            "net": {"on": False, "reason": "no"},
            "user-namespace": {"on": False, "reason": "the server is root"},
        },
    }
    assert list(told["layers"]) == list(LAYERS)


def test_without_a_jail_it_says_so() -> None:
    done = report("--confinement", "off")
    assert done.returncode == 1
    assert "OFF  --confinement=off" in done.stdout


def test_bad_settings() -> None:
    done = report("--listen", "nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith("gpupool-server: ")


def test_it_takes_nothing_from_a_server_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of workers that are about to come stay, and its own have names of their own."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "gpupool-made").mkdir()
    made: list[str] = []

    def make(self: Cgroups, session: str, host_memory: int) -> tuple[Path | None, str]:
        del self, host_memory
        made.append(session)
        return None, "not in this test"

    monkeypatch.setattr(Cgroups, "make", make)
    given = {"driver": "soft", "cgroup": str(tmp_path), "listen": f"ipc://{tmp_path}/front"}
    doctor.examine(load_settings(None, given))
    assert (tmp_path / "gpupool-made").is_dir()
    assert set(made) == {f"probe-{os.getpid()}"}
