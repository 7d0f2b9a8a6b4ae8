"""A gpupool-manager as operators run it: a process with a state folder, a log and its REST API."""

from __future__ import annotations

import os
import resource
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from harness import PATIENCE
from ports import free_port
from ready_process import Daemon, start_ready
from warm_start import run


class ManagerProcess:
    """One gpupool-manager; it can be ended and started again, at the same addresses."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log = folder / "manager.log"
        self.flags = flags
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})}
        #: Where it listens for requests, unless a flag says otherwise, and where nodes join.
        self.listen = f"http://127.0.0.1:{free_port()}"
        self.join_url = f"tcp://127.0.0.1:{free_port()}"
        #: Where its REST API is, once it has started.
        self.url = ""
        #: Whom it is known by, where it listens at https://.
        self.tls: ssl.SSLContext | bool = True
        #: What it may have, e.g. descriptors.
        self.limits: dict[int, tuple[int, int]] = {}
        #: What starts it, if it is not started directly: a program that becomes it.
        self.wrap: tuple[str, ...] = ()
        self._process: Daemon | None = None

    def command(self, *flags: str) -> list[str]:
        command = [sys.executable, "-m", "gpupool_manager", "--listen", self.listen]
        command += ["--nodes", self.join_url, "--state-dir", str(self.state)]
        return [*command, *self.flags, *flags]

    def start(self, *flags: str) -> str:
        """Its URL, once it is ready."""
        self._process, self.url = start_ready(
            [*self.wrap, *self.command(*flags)],
            self.log,
            PATIENCE,
            self.env,
            self._limit if self.limits else None,
        )
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
        done = run(self.command(*flags), PATIENCE, self.env)
        return done.returncode, done.stderr

    def kill(self, how: signal.Signals = signal.SIGKILL, wait: bool = True) -> None:
        """Send a signal, by default one that ends it."""
        if self._process is not None:
            self._process.send_signal(how)
            if wait:
                self._process.wait(PATIENCE)
                self._process = None

    def wake(self) -> None:
        """Let it go on after SIGSTOP, and wait until it has ended."""
        self.kill(signal.SIGCONT)

    def end(self) -> int:
        """Ask it to end, and wait; the exit status."""
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait(PATIENCE)
        self._process = None
        return status

    def close(self) -> None:
        self.kill()

    # The REST API -------------------------------------------------------------------------

    @property
    def admin(self) -> str:
        return (self.state / "admin.token").read_text().strip()

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> httpx.Response:
        return httpx.request(
            method,
            f"{self.url}/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {token or self.admin}", **headers},
            timeout=PATIENCE,
            trust_env=False,
            # To load the system's certificates takes longer than to ask.
            verify=self.tls if self.url.startswith("https:") else False,
        )

    def ask_again(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> httpx.Response:
        """The answer, as a client has it that asks again.

        Where a disk stands still for seconds the manager says so, and that nothing was changed.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.ask(method, path, body, token, **headers)
            away = answer.status_code == 503 and "nothing was changed" in answer.text
            if not away or time.monotonic() > deadline:
                return answer
            time.sleep(0.2)

    def do(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> Any:
        """The answer to what must succeed."""
        answer = self.ask_again(method, path, body, token, **headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def tenant(self, name: str, **quota: Any) -> str:
        """A new tenant; its token."""
        self.do("POST", "/tenants", {"name": name, "quota": quota})
        made = self.do("POST", "/tokens", {"scope": "tenant", "tenant": name})
        return str(made["secret"])
