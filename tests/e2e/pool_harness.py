"""A pool for the tests: a manager's process, and servers that have joined it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from harness import PoolServer, wait_until
from manager_process import ManagerProcess

#: So that a test need not wait for long until a node is lost.
QUICK = ("--heartbeat-seconds", "0.5", "--lost-after-seconds", "3")


class PoolManager(ManagerProcess):
    """A manager in a folder of its own, whose servers are processes, too."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="gpm-", dir="/tmp")), *QUICK)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)

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
                "pool": self.join_url,
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
