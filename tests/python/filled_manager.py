"""A manager that has one of everything, for requests of all kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.config import load_settings
from gpupool_manager.service import Manager
from gpupool_manager.state_dir import TOKEN_FILE
from manager_node import FakeNode, join
from manager_rest import bearer
from manager_world import report

T = TypeVar("T")


class FilledManager:
    """A manager in a thread of its own: what asks it may block."""

    node: FakeNode | None = None

    def __init__(self, state: Path, **settings: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        flags: dict[str, object] = {"state_dir": str(state), "listen": "http://127.0.0.1:0"}
        flags |= {"nodes": "tcp://127.0.0.1:*", **settings}
        self._manager = Manager(load_settings(None, flags, {}))
        self._run(self._manager.start())
        self.url = f"{self._manager.url}/v1"
        self.admin = (state / TOKEN_FILE).read_text().strip()
        self.headers = bearer(self.admin)
        #: Something that is there, for each kind of path.
        self.known = {"nodes": "n1", "gpus": "GPU-n1-0", "tenants": "a"}

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)

    def fill(self) -> None:
        """A node, a tenant, its token and its lease."""
        self.node = join(self._manager.url, self.admin, "n1", report("n1"))
        token = {"scope": "tenant", "tenant": "a"}
        with httpx.Client(headers=self.headers, trust_env=False) as client:
            client.post(f"{self.url}/tenants", json={"name": "a"}).raise_for_status()
            made = client.post(f"{self.url}/tokens", json=token).raise_for_status()
            lease = {
                "tenant": "a",
                "memory_bytes": 5 * MIB,
                "share_permille": 50,
                "ttl_seconds": 3600,
            }
            got = client.post(f"{self.url}/leases", json=lease).raise_for_status()
        self.known |= {"tokens": made.json()["id"], "leases": got.json()["id"]}

    def hang_up(self) -> None:
        """End all streams of events, as a manager that stops does."""
        pool = self._manager._pool
        assert pool is not None
        self._loop.call_soon_threadsafe(pool.bus.close)

    def close(self) -> None:
        if self.node is not None:
            self.node.close()
        self._run(self._manager.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module", name="manager")
def filled_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledManager]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    manager = FilledManager(state)
    manager.fill()
    yield manager
    manager.close()
