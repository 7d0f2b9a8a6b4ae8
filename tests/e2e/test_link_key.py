"""The manager's own key rolls while two nodes serve, of which one is away when it is retired."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from harness import PoolServer, wait_until
from pool_site import Site, node_of
from tenants import MIB, end, info


@pytest.fixture
def site(own: Site) -> Site:
    """What rolls its keys is no pool for others."""
    return own


def link(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = site.manager.do("GET", "/keys/link")
    return found


def state(site: Site, name: str) -> str:
    return str(site.manager.node(name)["state"])


def kill_manager(site: Site) -> None:
    """It has no time to write anything down, and the next one is there at once."""
    site.manager.kill()
    site.manager.start()


def wait_for_next(site: Site, *without: str) -> None:
    wait_until(lambda: link(site)["without"] == list(without), f"all but {without} have the key")


def said(server: PoolServer) -> str:
    return " ".join(server.log.read_text().split())


def test_a_roll_with_one_node_away(site: Site) -> None:
    manager, lease = site.manager, site.ask()
    stays = site.tenant(lease)
    one, two = sorted(site.servers, key=lambda name: name != node_of(lease))
    here, away = site.servers[one], site.servers[two]
    before = manager.join_token("three")
    away.kill(signal.SIGTERM)
    wait_until(lambda: state(site, two) == "lost", "the manager knows that it is away")

    # Announced: the link has the old key, whoever is killed, and an old join token is good.
    rolled = manager.do("POST", "/keys/link/roll")
    wait_for_next(site, two)
    kill_manager(site)
    assert link(site)["upcoming"] == rolled["upcoming"]
    manager.wait_for(one)
    here.kill()
    here.start()
    manager.wait_for(one)
    wait_for_next(site, two)
    three = site.manager.server("three", before)
    site.servers["three"] = three
    three.start()
    manager.wait_for("three")
    wait_for_next(site, two)
    between = manager.join_token("four")

    # Retired: not by accident while one would be left behind.
    refused = manager.ask("POST", "/keys/link/retire", {})
    assert refused.status_code == 409 and f"such as {two}" in refused.json()["detail"]
    retired = manager.do("POST", "/keys/link/retire", {"force": True})
    kill_manager(site)
    assert link(site) == retired
    assert (retired["current"], retired["upcoming"]) == (rolled["upcoming"], None)
    manager.wait_for(one, "three")
    assert rolled["current"] not in (manager.state / "curve.key").read_text()
    info(stays)  # a program that has run all the time has noticed nothing
    end(stays)

    # Who was away is told why it is out and the one way back in, and goes it.
    away.start()
    wait_until(lambda: "does not have the key by which this node knows it" in said(away), "it says")
    assert f"give it a new token: gpupool node join --name {two}" in said(away)
    assert state(site, two) == "lost"
    away.kill(signal.SIGTERM)
    away.settings["join-token"] = str(manager.join_token(two))
    away.start()
    manager.wait_for(one, two, "three")

    # A token of the overlap is good, one from before it is not.
    four = site.servers["four"] = manager.server("four", between)
    four.start()
    manager.wait_for("four")
    late = site.servers["five"] = manager.server("five", _for(before, site, "five"))
    late.start()
    wait_until(lambda: "does not have the key by which this node knows it" in said(late), "it says")
    lease = site.ask(memory_bytes=32 * MIB)
    assert info(site.tenant(lease))[1] == 32 * MIB


def _for(before: Path, site: Site, name: str) -> Path:
    """A token for this node as it was made before the roll: it names the old key alone."""
    path = site.manager.join_token(name)
    secret = path.read_text().partition(".")[0]
    path.write_text(f"{secret}.{before.read_text().strip().rpartition('.')[2]}")
    return path
