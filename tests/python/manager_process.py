"""A gpupool-manager as operators run it: a process with a state folder and a log."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

from manager_node import FakeNode, join
from manager_world import report

PATIENCE = 60.0


class Process:
    """One gpupool-manager; it ends with :meth:`end`."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log = folder / "manager.log"
        self.flags = flags
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})}
        self.url = ""
        self.nodes: list[FakeNode] = []
        #: What it may have, e.g. descriptors.
        self.limits: dict[int, tuple[int, int]] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *flags: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "gpupool_manager",
            "--listen",
            "http://127.0.0.1:0",
            "--nodes",
            "tcp://127.0.0.1:*",
            "--state-dir",
            str(self.state),
            *self.flags,
            *flags,
        ]

    def start(self, *flags: str) -> str:
        """Its URL, once it is ready."""
        ready, theirs = os.pipe()
        command = [*self.command(*flags), "--ready-fd", str(theirs)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                preexec_fn=self._limit,
            )
        os.close(theirs)
        try:
            readable, _, _ = select.select([ready], [], [], PATIENCE)
            self.url = os.read(ready, 512).decode().strip() if readable else ""
        finally:
            os.close(ready)
        if not self.url:
            self.end(signal.SIGKILL)
            raise AssertionError(f"gpupool-manager did not start:\n{self.log.read_text()}")
        return self.url

    def _limit(self) -> None:
        for kind, both in self.limits.items():
            resource.setrlimit(kind, both)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def fail(self, *flags: str) -> tuple[int, str]:
        """How a start ends that must: exit status and stderr."""
        done = subprocess.run(
            self.command(*flags), env=self.env, capture_output=True, text=True, timeout=PATIENCE
        )
        return done.returncode, done.stderr

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        assert self._process is not None
        self._process.send_signal(how)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._process = None

    def node(self, name: str) -> None:
        """A node of two GPUs that has joined and stays."""
        self.nodes.append(join(self.url, self.admin, name, report(name)))

    @property
    def admin(self) -> str:
        return (self.state / "admin.token").read_text().strip()

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        if self._process is not None:
            self.end(signal.SIGKILL)
