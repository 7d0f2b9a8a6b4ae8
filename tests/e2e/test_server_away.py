"""A server that is away while a session ends or its lease is released, and comes back.

It is killed with its workers left, hangs, or its network is cut. Afterwards server and manager
agree: nothing of the session is left, and what the lease had is given to one other, once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fabric import Fabric, missing
from gpupool_common import paths
from harness import PoolServer, Talk, alive, wait_until
from pool_site import Site
from ports import free_port
from tenants import StartTalk, end, tell
from toolchain import Toolchain

SILENCE = "2"
AWAY, THERE = "one", "two"
OURS, ADDRESS = "10.78.0.1", "10.78.0.2"
#: More than half of a GPU: there is no room for two of these.
MOST = 700
WHOLE = {"memory_bytes": None, "share_permille": 1000}


def no_fabric() -> str:
    """Why no network can be cut here; empty: it can."""
    return missing() if os.geteuid() == 0 else "only root may make interfaces"


class Host:
    """The host that goes away, with a server of one GPU; it can have a network of its own."""

    def __init__(self, site: Site, fabric: Fabric | None) -> None:
        self._site = site
        self._fabric = fabric

    @property
    def server(self) -> PoolServer:
        return self._site.servers[AWAY]

    def goes(self, how: str) -> None:
        if how == "cut":
            if self._fabric is None:
                pytest.skip(no_fabric())
            self._fabric.cut(AWAY)
        else:
            hung = how == "hung"
            self.server.kill(signal.SIGSTOP if hung else signal.SIGKILL, wait=not hung)
        wait_until(lambda: self._site.manager.node(AWAY)["state"] == "lost", "it was lost")

    def comes(self, how: str) -> None:
        if how == "cut":
            assert self._fabric is not None
            self._fabric.mend(AWAY)
        elif how == "hung":
            self.server.signal(signal.SIGCONT)
        else:
            self.server.start()
        self._site.manager.wait_for(AWAY)

    def accounts(self) -> list[dict[str, Any]]:
        """Those that its board has."""
        (gpu,) = self._site.admin(AWAY)["gpus"]
        found: list[dict[str, Any]] = gpu["tenants"]
        return found


@pytest.fixture(scope="module")
def pool(home: paths.Home, toolchain: Toolchain) -> Iterator[tuple[Site, Host]]:
    with ExitStack() as stack:
        site = Site(home, toolchain)
        stack.callback(site.close)
        fabric = None
        settings: dict[str, Any] = {"soft-gpus": "1", "silence-seconds": SILENCE}
        if not no_fabric():
            fabric = Fabric(sys.executable, AWAY)
            stack.callback(fabric.close)
            interface = fabric.attach(f"gpa{os.getpid() % 10**7}")
            os.spawnlp(os.P_WAIT, "ip", "ip", "addr", "add", f"{OURS}/24", "dev", interface)
            fabric.hosts[AWAY].do(f"ip addr add {ADDRESS}/24 dev fabric0")
            site.manager.join_url = f"tcp://{OURS}:{free_port()}"
        site.manager.start()
        site.red = site.manager.tenant("red")
        for name in (AWAY, THERE):
            server = site.servers[name] = site.manager.server(name, **settings)
            server.settings["labels"] = f"host={name}"
            if name == AWAY and fabric is not None:
                server.prefix = fabric.hosts[AWAY].enter
                server.url = server.address = f"tcp://{ADDRESS}:{free_port()}"
                server.settings |= {"advertise": server.url, "data-listen": f"tcp://{ADDRESS}:*"}
            server.start()
        site.manager.wait_for(AWAY, THERE)
        yield site, Host(site, fabric)


@pytest.fixture
def site(pool: tuple[Site, Host], talk: StartTalk) -> Iterator[Site]:
    yield from pool[0].lent(talk)


@pytest.fixture
def host(pool: tuple[Site, Host]) -> Host:
    return pool[1]


def lease_now(site: Site, lease: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = site.manager.do("GET", f"/leases/{lease['id']}", token=site.red)
    return found


def ask(site: Site, **want: Any) -> dict[str, Any]:
    """The whole GPU of the host that goes away, or a place in the queue for it."""
    return site.ask(**WHOLE, labels={"host": AWAY}, wait_seconds=300, **want)


def holder(site: Site, host: Host, lease: dict[str, Any]) -> tuple[Talk, int]:
    """A program with most of the GPU, and its worker."""
    before = set(host.server.worker_pids())
    program = site.tenant(lease)
    (worker,) = set(host.server.worker_pids()) - before
    assert tell(program, f"take {MOST}") == f"took {MOST}"
    return program, worker


EVERY_WAY = pytest.mark.parametrize("how", ["killed", "hung", "cut"])


def check_it_has_one_user(site: Site, host: Host, lease: dict[str, Any]) -> None:
    """All of the GPU is the lease's, for manager and server; and what was before has left it."""
    wait_until(lambda: lease_now(site, lease)["state"] == "active", "the next one got it")
    program, worker = holder(site, host, lease_now(site, lease))
    assert host.server.worker_pids() == [worker]
    assert [account["name"] for account in host.accounts()] == [f"red/{lease['id']}"]
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the session")
    assert [each["id"] for each in live(site)] == [lease["id"]]
    assert tell(program, "work 2") == "worked 2"
    end(program)


def live(site: Site) -> list[dict[str, Any]]:
    answer = site.manager.do("GET", "/leases?state=active&state=queued")
    found: list[dict[str, Any]] = answer["items"]
    return found


@EVERY_WAY
def test_a_session_ends_meanwhile(site: Site, host: Host, how: str) -> None:
    """Its worker ends with it; the server finds out when it is back, and so does the manager."""
    lease = ask(site, until="last-session")
    program, worker = holder(site, host, lease)
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the session")
    waiting = ask(site)
    assert waiting["state"] == "queued"
    host.goes(how)
    program.process.kill()
    wait_until(lambda: not alive(worker), "the worker has ended without its server")
    assert lease_now(site, waiting)["state"] == "queued", "it is not given where nobody answers"
    host.comes(how)
    wait_until(lambda: lease_now(site, lease)["state"] == "released", "its end released the lease")
    check_it_has_one_user(site, host, waiting)


@EVERY_WAY
def test_a_lease_is_released_meanwhile(site: Site, host: Host, how: str) -> None:
    """Its program still has the GPU when the server is back: the next one gets all of it."""
    lease = ask(site)
    program, worker = holder(site, host, lease)
    waiting = ask(site)
    host.goes(how)
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    assert lease_now(site, lease)["state"] == "released"
    assert lease_now(site, waiting)["state"] == "queued", "it is not given where nobody answers"
    if how != "cut":  # who is cut off is silent, and ends for that
        assert alive(worker) and tell(program, "work 1") == "worked 1"
    host.comes(how)
    check_it_has_one_user(site, host, waiting)
    wait_until(lambda: not alive(worker), "nothing of the first is left")
    assert tell(program, "work 1").startswith("gone CUDA_ERROR")
    program.finish()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_it_goes_while_it_is_told_of_the_end(site: Site, host: Host, how: signal.Signals) -> None:
    """The manager takes it for there, and gives what it had to the next at once."""
    lease = ask(site)
    program, worker = holder(site, host, lease)
    waiting = ask(site)
    host.server.kill(how, wait=how == signal.SIGKILL)
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    wait_until(lambda: site.manager.node(AWAY)["state"] == "lost", "it was lost")
    assert alive(worker)
    host.comes("killed" if how == signal.SIGKILL else "hung")
    check_it_has_one_user(site, host, waiting)
    wait_until(lambda: not alive(worker), "nothing of the first is left")
    program.close()


def test_the_next_waits_for_what_has_not_ended_yet(site: Site, host: Host) -> None:
    """A worker that stands still is killed after 5 s; until then its memory is nobody else's."""
    lease = ask(site)
    program, worker = holder(site, host, lease)
    waiting = ask(site)
    os.kill(worker, signal.SIGSTOP)
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    check_it_has_one_user(site, host, waiting)
    program.close()
