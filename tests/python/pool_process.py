"""A gpupool-manager as a process, with nodes that are only reports, and the command ``gpupool``."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from gpupool_common.quantities import MEBIBYTE as MIB
from manager_node import FakeNode, FakeServer, join
from manager_world import gpu, report
from server_harness import ROOT

PATIENCE = 60.0
PYTHONPATH = f"{ROOT / 'pool'}:{ROOT / 'server'}"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GPUPOOL_")}
    return {**env, "PYTHONPATH": PYTHONPATH, "COLUMNS": "80", **more}


class Manager:
    """One manager with its state in a folder; it can be stopped and started again."""

    def __init__(self, folder: Path, *flags: str, scheme: str = "http") -> None:
        self.folder = folder
        self.url = f"{scheme}://127.0.0.1:{free_port()}"
        self.join_url = f"tcp://127.0.0.1:{free_port()}"
        self.flags = flags
        self.log = folder / "manager.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.verify: str | bool = True
        self.nodes: list[FakeNode | FakeServer] = []

    def start(self) -> Manager:
        ready, theirs = os.pipe()
        command = [sys.executable, "-m", "gpupool_manager", "--listen", self.url]
        command += ["--nodes", self.join_url, "--state-dir", str(self.folder / "state")]
        command += ["--lost-after-seconds", "3600", "--ready-fd", str(theirs), *self.flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
            )
        os.close(theirs)
        readable, _, _ = select.select([ready], [], [], PATIENCE)
        said = os.read(ready, 512) if readable else b""
        os.close(ready)
        assert said, self.log.read_text()
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.kill()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE)
            self.process = None

    @property
    def admin(self) -> str:
        return (self.folder / "state" / "admin.token").read_text().strip()

    def do(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        answer = httpx.request(
            method,
            f"{self.url}/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {token or self.admin}"},
            timeout=PATIENCE,
            trust_env=False,
        )
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def node(
        self, name: str, gpus: int = 2, memory_bytes: int = 10_000 * MIB, curve: bool = False
    ) -> FakeServer:
        """A node with GPUs, and a front end that knows one answer."""
        server = FakeServer(curve)
        what = report(name, [gpu(name, index, memory_bytes) for index in range(gpus)])
        what.address, what.front_end_key = server.url, server.key
        self.nodes += [server, join(self.url, self.admin, name, what)]
        return server

    def tenant(self, name: str, **quota: Any) -> str:
        """A new tenant; its token."""
        self.do("POST", "/tenants", {"name": name, "quota": quota})
        return str(self.do("POST", "/tokens", {"scope": "tenant", "tenant": name})["secret"])

    def leases(self, *states: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.do(
            "GET", "/leases?" + "&".join(f"state={state}" for state in states)
        )["items"]
        return found


def gpupool(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """One command, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "gpupool", *args],
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def start_gpupool(*args: str, **env: str) -> subprocess.Popen[str]:
    """One command that goes on for a while."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpupool", *args],
        env=environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
