"""A pool for the tests: a manager's process, servers that have joined it, and its REST API."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from harness import PATIENCE, PoolServer, free_port, wait_until


class PoolManager:
    """One gpupool-manager with its state in a folder; it can be killed and started again."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpm-", dir="/tmp"))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.nodes = f"tcp://127.0.0.1:{free_port()}"
        self.settings = {"heartbeat-seconds": "0.5", "lost-after-seconds": "3", **settings}
        self.log = self.folder / "manager.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready, theirs = os.pipe()
        command = [sys.executable, "-m", "gpupool_manager", "--listen", self.url]
        command += ["--nodes", self.nodes, "--state-dir", str(self.folder / "state")]
        command += ["--ready-fd", str(theirs)]
        for key, value in self.settings.items():
            command += [f"--{key}", value]
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
            )
        os.close(theirs)
        try:
            readable, _, _ = select.select([ready], [], [], PATIENCE)
            said = os.read(ready, 512) if readable else b""
        finally:
            os.close(ready)
        if not said:
            self.kill()
            raise AssertionError(f"gpupool-manager did not start:\n{self.log.read_text()}")

    def kill(self, how: signal.Signals = signal.SIGKILL, wait: bool = True) -> None:
        """Send a signal, by default one that ends it."""
        if self._process is not None:
            self._process.send_signal(how)
            if wait:
                self._process.wait(PATIENCE)
                self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # The REST API -------------------------------------------------------------------------

    @property
    def admin(self) -> str:
        return (self.folder / "state" / "admin.token").read_text().strip()

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
        )

    def do(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> Any:
        """The answer to what must succeed."""
        answer = self.ask(method, path, body, token, **headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def tenant(self, name: str, **quota: Any) -> str:
        """A new tenant; its token."""
        self.do("POST", "/tenants", {"name": name, "quota": quota})
        made = self.do("POST", "/tokens", {"scope": "tenant", "tenant": name})
        return str(made["secret"])

    def lease(self, token: str | None = None, **body: Any) -> dict[str, Any]:
        asked: dict[str, Any] = self.do("POST", "/leases", body, token)
        return asked

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.do("GET", f"/nodes/{name}")
        return found

    def join_token(self, name: str) -> Path:
        """A file with a token with which a server joins as this node."""
        path = self.folder / f"join-{len(list(self.folder.glob('join-*')))}"
        path.touch(mode=0o600)
        path.write_text(self.do("POST", "/tokens", {"scope": "node", "node": name})["secret"])
        return path

    def server(self, name: str, token: Path | None = None, **settings: str) -> PoolServer:
        """A server that will join as this node; not yet started."""
        server = PoolServer(
            **{
                "soft-gpus": "2",
                "pool": self.nodes,
                "join-token": str(token or self.join_token(name)),
                "node-name": name,
                **settings,
            }
        )
        server.settings.setdefault("advertise", server.url)  # all are on this machine
        return server

    def wait_for(self, *names: str) -> None:
        """Until these nodes are there."""

        def ready() -> bool:
            nodes = self.do("GET", "/nodes?state=ready")["items"]
            return set(names) <= {node["name"] for node in nodes}

        wait_until(ready, f"the nodes {', '.join(names)} were ready")
