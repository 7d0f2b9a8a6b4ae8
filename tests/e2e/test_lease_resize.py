"""Leases of a pool that get other limits while their programs run."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest

from harness import run_program, wait_until
from pool_site import Site, node_of
from tenants import MIB, end, info, tell
from test_nvml import LIBRARY, PROGRAMS

REFUSED = "refused CUDA_ERROR_OUT_OF_MEMORY"


def resize(site: Site, lease: dict[str, Any], **limits: Any) -> httpx.Response:
    return site.manager.ask_again("PATCH", f"/leases/{lease['id']}", limits, site.red)


def made(answer: httpx.Response) -> dict[str, Any]:
    """The lease, whose servers have all made the change before the answer came."""
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["resize"] is None
    return found


def account(site: Site, lease: dict[str, Any]) -> dict[str, Any]:
    return site.account(node_of(lease), f"red/{lease['id']}")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_program_sees_its_limits_change(site: Site, transport: str) -> None:
    lease = site.ask()
    program = site.tenant(lease, transport)
    assert tell(program, "take 60") == "took 60"
    assert tell(program, "take 40") == REFUSED
    made(resize(site, lease, memory_bytes=128 * MIB, share_permille=300, ceiling_permille=600))
    assert info(program)[1] == 128 * MIB
    assert tell(program, "take 40") == "took 40"
    limits = ("memory_limit_bytes", "share_permille", "ceiling_permille")
    assert [account(site, lease)[key] for key in limits] == [128 * MIB, 300, 600]
    less = resize(site, lease, memory_bytes=80 * MIB, share_permille=500)
    assert less.status_code == 409 and less.json()["type"].endswith(":in-use"), less.text
    in_use = account(site, lease)["memory_used_bytes"] // MIB
    assert f"has {in_use}MiB in use, more than 80MiB" in less.json()["detail"]
    assert [account(site, lease)[key] for key in limits] == [128 * MIB, 300, 600]
    assert info(program)[1] == 128 * MIB
    assert tell(program, "give") == "gave"
    made(resize(site, lease, memory_bytes=80 * MIB))
    assert info(program)[1] == 80 * MIB
    assert tell(program, "take 40") == REFUSED
    assert tell(program, "work 4") == "worked 4"
    if (site.home.root / LIBRARY).is_file():
        look = run_program([sys.executable, str(PROGRAMS), "look"], site.environment(lease))
        (device,) = json.loads(look.stdout.splitlines()[-1])["devices"]
        assert device["total"] == 80 * MIB
    end(program)


def test_forced_it_keeps_what_is_held_and_gives_no_more(site: Site) -> None:
    lease = site.ask()
    program = site.tenant(lease)
    assert tell(program, "take 20") == "took 20"
    assert tell(program, "take 30") == "took 30"
    answer = resize(site, lease, memory_bytes=32 * MIB, force=True)
    assert (answer.status_code, answer.json()["resize"]["state"]) == (202, "pending")
    assert "in use, more than 32MiB" in answer.json()["resize"]["reason"]
    assert answer.json()["grants"][0]["memory_bytes"] == 64 * MIB  # nobody else gets it yet
    assert info(program) == (0, 32 * MIB)
    assert tell(program, "take 1") == REFUSED
    assert tell(program, "work 2") == "worked 2"
    assert tell(program, "give") == "gave"
    path = f"/leases/{lease['id']}"
    wait_until(lambda: site.manager.do("GET", path)["resize"] is None, "it fits")
    assert site.manager.do("GET", path)["grants"][0]["memory_bytes"] == 32 * MIB
    assert tell(program, "take 1") == "took 1"
    end(program)


def test_two_hosts_change_together_or_not_at_all(site: Site) -> None:
    lease = site.ask(gpus=2, hosts="spread")
    program = site.tenant(lease)
    made(resize(site, lease, memory_bytes=96 * MIB))
    assert info(program)[1] == 96 * MIB
    assert tell(program, "take 60") == "took 60"  # on the first of its GPUs
    refused = resize(site, lease, memory_bytes=48 * MIB)
    assert refused.status_code == 409, refused.text
    nodes = [server["node"] for server in lease["servers"]]
    name = f"red/{lease['id']}"
    wait_until(
        lambda: all(site.account(n, name)["memory_limit_bytes"] == 96 * MIB for n in nodes),
        "what one had changed was undone",
    )
    assert tell(program, "work 1") == "worked 1"
    end(program)


def test_a_server_that_is_away_changes_it_when_it_is_back(site: Site) -> None:
    lease = site.ask()
    node = node_of(lease)
    program = site.tenant(lease)
    site.servers[node].kill()
    wait_until(lambda: site.manager.node(node)["state"] == "lost", "it was lost")
    answer = resize(site, lease, memory_bytes=96 * MIB)
    assert answer.status_code == 202, answer.text
    assert f"node '{node}': it is lost" in answer.json()["resize"]["reason"]
    assert (info(program)[1], tell(program, "work 1")) == (64 * MIB, "worked 1")
    site.servers[node].start()
    wait_until(lambda: info(program)[1] == 96 * MIB, "the program sees it")
    path = f"/leases/{lease['id']}"
    wait_until(lambda: site.manager.do("GET", path)["resize"] is None, "the manager heard of it")
    end(program)
