"""A gpupool-manager as a process, with nodes that are only reports, and the command ``gpupool``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpupool_common.quantities import MEBIBYTE as MIB
from harness import PATIENCE
from manager_node import FakeNode, FakeServer, join
from manager_process import ManagerProcess
from manager_world import gpu, report
from server_harness import ROOT
from warm_start import Popen, run

PYTHONPATH = f"{ROOT / 'pool'}:{ROOT / 'server'}"


def environment(**more: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GPUPOOL_")}
    return {**env, "PYTHONPATH": PYTHONPATH, "COLUMNS": "80", **more}


#: Of a manager whose nodes are never lost, however slow the machine is.
STEADY = ("--lost-after-seconds", "3600", "--confirm-seconds", "60")


class Manager(ManagerProcess):
    """A manager with nodes that are only reports."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        super().__init__(folder, *flags, env=env)
        self.nodes: list[FakeNode | FakeServer] = []

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        super().close()

    def node(
        self, name: str, gpus: int = 2, memory_bytes: int = 10_000 * MIB, curve: bool = False
    ) -> FakeServer:
        """A node with GPUs, and a front end that knows one answer."""
        server = FakeServer(curve)
        what = report(name, [gpu(name, index, memory_bytes) for index in range(gpus)])
        what.address, what.front_end_key = server.url, server.key
        self.nodes += [server, join(self.url, self.admin, name, what)]
        return server

    def report(self, name: str) -> None:
        """A node of two GPUs that has joined, and nobody listens where it says to be."""
        self.nodes.append(join(self.url, self.admin, name, report(name)))

    def leases(self, *states: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.do(
            "GET", "/leases?" + "&".join(f"state={state}" for state in states)
        )["items"]
        return found


def gpupool(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """One command, as a user runs it."""
    return run([sys.executable, "-m", "gpupool", *args], PATIENCE, environment(**env))


def start_gpupool(*args: str, **env: str) -> subprocess.Popen[str]:
    """One command that goes on for a while."""
    return Popen(
        [sys.executable, "-m", "gpupool", *args],
        env=environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
