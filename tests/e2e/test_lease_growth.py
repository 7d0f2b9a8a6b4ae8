"""Leases of a pool that get another GPU while their job runs: its next round uses both.

The test stands in for torchrun: when the number of nodes changes, that ends the ranks and starts
them again, with the environment that it was started with itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from harness import Talk, wait_until
from pool_site import Site, node_of
from tenants import MIB, end, info, tell

RANKS = ("0", "1")


def grow(site: Site, lease: dict[str, Any], gpus: int) -> httpx.Response:
    return site.manager.ask_again("PATCH", f"/leases/{lease['id']}", {"gpus": gpus}, site.red)


def gpus_in_use(site: Site) -> int:
    """What the tenant's quota counts."""
    return int(site.manager.do("GET", "/tenants/red/quota")["in_use"]["gpus"])


def rank(site: Site, env: dict[str, str], number: str, meeting: Path, mode: str) -> Talk:
    """One of two of a round, on the GPU of its number."""
    program = str(site.toolchain.driver_program("nccl_ranks"))
    return site.talk([program, number, str(meeting), mode], {**env, "E2E_DEVICE": number})


def test_the_next_round_of_a_job_uses_the_gpu_that_came(site: Site, tmp_path: Path) -> None:
    lease = site.ask()
    env = site.environment(lease)  # what the launcher was started with; it stays as it is
    one = site.run(lease, "nccl_one")
    assert one.stdout == "PASS nccl_one\n", one.explain()
    first = site.tenant(lease)
    alone = rank(site, env, "1", tmp_path / "alone", "warm").finish()
    assert alone.returncode != 0, "there is no second GPU yet"

    answer = grow(site, lease, 2)
    assert answer.status_code == 200, answer.text
    grants = answer.json()["grants"]
    assert [(each["ordinal"], each["node"]) for each in grants] == [
        (0, node_of(lease)),
        (1, node_of(lease)),
    ]
    assert grants[0]["gpu"] == lease["grants"][0]["gpu"] != grants[1]["gpu"]
    assert tell(first, "work 2") == "worked 2", "who was there goes on"
    end(first)

    ranks = [rank(site, env, each, tmp_path / "two", "warm") for each in RANKS]
    for each in ranks:
        result = each.finish()
        assert result.stdout == "PASS nccl_ranks\n", result.explain()
    assert gpus_in_use(site) == 2


def test_what_is_added_is_given_back(site: Site) -> None:
    """All of the host is the lease's then, for whoever else asks; and nobody's afterwards."""
    whole = {"memory_bytes": None, "share_permille": 1000}
    lease = site.ask(**whole)
    other = site.ask(**whole, gpus=2, hosts="same")
    assert node_of(other) != node_of(lease)
    assert grow(site, lease, 2).status_code == 200
    more = grow(site, lease, 3)
    assert (more.status_code, more.json()["type"].rpartition(":")[2]) == (409, "full"), more.text
    little = {"memory_bytes": MIB, "share_permille": 1}
    full = site.manager.ask_again("POST", "/leases", little, site.red)
    assert full.status_code == 409, full.text
    program = site.tenant(lease)
    assert info(program)[1] == 1 << 30
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    program.close()
    again = site.ask(**whole, gpus=2, hosts="same")
    result = site.run(again, "driver_limits", "1024")
    assert result.stdout == "PASS driver_limits\n", result.explain()


def test_a_server_that_is_away_adds_none(site: Site) -> None:
    """Nothing is promised where nobody answers; and it can be asked again."""
    lease = site.ask()
    node = node_of(lease)
    site.servers[node].kill()
    wait_until(lambda: site.manager.node(node)["state"] == "lost", "it was lost")
    refused = grow(site, lease, 2)
    assert (refused.status_code, "has 0 others" in refused.text) == (409, True), refused.text
    site.servers[node].start()
    site.manager.wait_for(node)
    answer = grow(site, lease, 2)
    assert (answer.status_code, len(answer.json()["grants"])) == (200, 2), answer.text
    assert gpus_in_use(site) == 2
