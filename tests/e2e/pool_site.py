"""A pool of two hosts for tests: leases of a tenant, programs on them, and what is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpupool.admin import Admin
from gpupool_common import paths
from gpupool_common.ask import with_key
from harness import PoolServer, Result, Talk, client_environment, run_program, wait_until
from pool_harness import PoolManager
from tenants import MIB, StartTalk
from toolchain import Toolchain


class Site:
    """A pool of two hosts with two GPUs each, and a tenant ``red``."""

    def __init__(self, home: paths.Home, toolchain: Toolchain) -> None:
        self.home = home
        self.toolchain = toolchain
        self.talk: StartTalk
        self.manager = PoolManager()
        self.servers: dict[str, PoolServer] = {}
        self.red = ""

    def start(self) -> None:
        self.manager.start()
        self.red = self.manager.tenant("red")
        for name in ("one", "two"):
            self.add(name)
        self.manager.wait_for("one", "two")

    def add(self, name: str, **settings: Any) -> None:
        self.servers[name] = self.manager.server(name, **settings)
        self.servers[name].start()

    def lent(self, talk: StartTalk) -> Iterator[Site]:
        """For one test, which finds it free."""
        self.talk = talk
        yield self
        self.clear()

    def clear(self) -> None:
        """End every lease, and with it whatever runs on it."""
        for lease in self.manager.do("GET", "/leases?state=active&state=queued")["items"]:
            self.manager.do("POST", f"/leases/{lease['id']}/release")
        wait_until(lambda: not any(self.admin(x)["sessions"] for x in self.servers), "all ended")
        wait_until(lambda: not self.sessions(), "the manager heard of it")

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.manager.close()

    # What a tenant does -----------------------------------------------------------------------

    def ask(self, **want: Any) -> dict[str, Any]:
        return self.manager.lease(
            self.red, **{"memory_bytes": 64 * MIB, "share_permille": 500, **want}
        )

    def environment(self, lease: dict[str, Any], transport: str = "tcp") -> dict[str, str]:
        servers = ",".join(
            with_key(server["address"], server["key"] or "") for server in lease["servers"]
        )
        return client_environment(self.home, servers, lease["token"], transport)

    def run(self, lease: dict[str, Any], name: str, *arguments: str) -> Result:
        program = str(self.toolchain.driver_program(name))
        return run_program([program, *arguments], self.environment(lease))

    def tenant(self, lease: dict[str, Any], transport: str = "tcp") -> Talk:
        """A program that obeys, once it has its session."""
        program = str(self.toolchain.driver_program("driver_tenant"))
        found = self.talk([program], self.environment(lease, transport))
        assert found.line() == "ready"
        return found

    # What an operator sees --------------------------------------------------------------------

    def state(self, lease: dict[str, Any]) -> str:
        return str(self.manager.do("GET", f"/leases/{lease['id']}")["state"])

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.manager.do("GET", "/sessions")["items"]
        return found

    def admin(self, node: str) -> dict[str, Any]:
        return Admin(self.servers[node].folder / "run").ask({"do": "status"})

    def account(self, node: str, name: str) -> dict[str, Any]:
        """A group on the boards of a node; empty if it is on none."""
        accounts = [each for gpu in self.admin(node)["gpus"] for each in gpu["tenants"]]
        return next((each for each in accounts if each["name"] == name), {})


@contextmanager
def running_site(home: paths.Home, toolchain: Toolchain) -> Iterator[Site]:
    found = Site(home, toolchain)
    try:
        found.start()
        yield found
    finally:
        found.close()


@contextmanager
def running_host(home: paths.Home, toolchain: Toolchain, *flags: str) -> Iterator[Site]:
    """The tenant red, one host of two GPUs, and a manager that is started with such flags."""
    found = Site(home, toolchain)
    try:
        found.manager.flags += flags
        found.manager.start()
        found.red = found.manager.tenant("red")
        found.add("one")
        found.manager.wait_for("one")
        yield found
    finally:
        found.close()


def node_of(lease: dict[str, Any]) -> str:
    (server,) = lease["servers"]
    return str(server["node"])


def refused(result: Result, *parts: str) -> None:
    """It failed, with one line of ours that says this."""
    assert result.returncode != 0
    (line,) = result.own_lines()
    assert all(part in line for part in parts), line
