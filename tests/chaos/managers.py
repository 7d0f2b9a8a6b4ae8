"""Two managers over one PostgreSQL, seen as one: requests go to whichever leads."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from typing import Any

import httpx

from harness import PATIENCE, wait_until
from manager_databases import Postgres
from pool_harness import PoolManager


def leads(manager: PoolManager) -> bool:
    try:
        answer = httpx.get(f"{manager.url}/readyz", timeout=2.0, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


class TwoManagers(PoolManager):
    """The first of the pair, which stands for both."""

    def __init__(self, postgres: Postgres, address: str) -> None:
        super().__init__()
        self.other = PoolManager()
        self.both: tuple[PoolManager, PoolManager] = (self, self.other)
        self._dead: PoolManager | None = None
        database = postgres.url(asyncio.run(postgres.new_database()))
        for number, manager in enumerate(self.both):
            manager.flags += ("--database", database, "--standby", "--reclaim-seconds", "1")
            manager.join_url = f"tcp://{address}:{7781 + number}"

    @property
    def joins(self) -> str:
        """Where servers join, whoever leads."""
        return ",".join(manager.join_url for manager in self.both)

    def begin(self) -> None:
        """Start both, the other with a copy of the first one's state."""
        PoolManager.start(self)
        wait_until(lambda: leads(self), "the first manager leads")
        time.sleep(2.0)  # it notes its keys within a second
        shutil.copytree(self.state, self.other.state)
        self.other.start()

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> httpx.Response:
        """The answer of who leads; the other one's no, or error, if nobody does."""
        try:
            answer = PoolManager.ask(self, method, path, body, token, **headers)
            if answer.status_code != 503:
                return answer
        except httpx.HTTPError as error:
            if not isinstance(error, httpx.ConnectError) and method != "GET" and not headers:
                raise
        token = token or self.admin
        return PoolManager.ask(self.other, method, path, body, token, **headers)

    def strike(self, how: signal.Signals) -> PoolManager:
        """Send the manager that leads a signal, once one does; which one it was."""
        wait_until(lambda: any(map(leads, self.both)), "a manager leads")
        leader = next((each for each in self.both if leads(each)), self)
        PoolManager.kill(leader, how, wait=how != signal.SIGSTOP)
        return leader

    def close(self) -> None:
        PoolManager.close(self.other)
        PoolManager.close(self)


def until_another_leads(managers: TwoManagers, gone: PoolManager) -> float:
    """How many seconds it takes."""
    began = time.monotonic()
    (heir,) = (each for each in managers.both if each is not gone)
    wait_until(lambda: leads(heir), "the other manager leads", PATIENCE)
    return time.monotonic() - began
