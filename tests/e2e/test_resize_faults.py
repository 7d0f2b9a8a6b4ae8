"""A lease's limits change while servers or the manager die, and twice at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx

from harness import wait_until
from pool_site import Site
from tenants import MIB, end, info, tell

#: Each lease has two GPUs, one of each host.
SPREAD = {"gpus": 2, "hosts": "spread", "share_permille": 100}


@contextmanager
def asked_meanwhile(site: Site, lease: dict[str, Any], **limits: int) -> Iterator[None]:
    """Somebody asks for other limits; the answer may be lost with the manager."""

    def ask() -> None:
        with suppress(httpx.HTTPError):
            site.manager.ask("PATCH", f"/leases/{lease['id']}", limits, site.red)

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    thread.join()


def lease_now(site: Site, lease: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = site.manager.do("GET", f"/leases/{lease['id']}")
    return found


def changes_kept(site: Site) -> int:
    """How many changes the database has."""
    items = site.manager.do("GET", "/audit")["items"]
    return sum(entry["action"] == "lease.resizing" for entry in items)


def limits(site: Site, lease: dict[str, Any]) -> list[int]:
    """What its servers hold it to."""
    name = f"red/{lease['id']}"
    return [int(site.account(node, name)["memory_limit_bytes"]) // MIB for node in ("one", "two")]


def in_use(site: Site) -> int:
    """What the tenant's quota counts."""
    return int(site.manager.do("GET", "/tenants/red/quota")["in_use"]["memory_bytes"]) // MIB


def check_all_have(site: Site, lease: dict[str, Any], size: int) -> None:
    """Manager, servers, quota and program agree, and the program works."""
    wait_until(lambda: lease_now(site, lease)["resize"] is None, "all servers have made it")
    assert [grant["memory_bytes"] // MIB for grant in lease_now(site, lease)["grants"]] == [
        size
    ] * 2
    assert limits(site, lease) == [size] * 2
    assert in_use(site) == 2 * size


def test_whoever_dies_while_a_change_is_under_way(site: Site) -> None:
    lease = site.ask(**SPREAD)
    program = site.tenant(lease)
    two = site.servers["two"]

    two.signal(signal.SIGSTOP)
    with asked_meanwhile(site, lease, memory_bytes=96 * MIB):
        wait_until(lambda: lease_now(site, lease)["resize"] is not None, "it is under way")
        assert in_use(site) == 2 * 96, "what grows is counted at once"
        two.kill()
        two.start()
    check_all_have(site, lease, 96)
    assert info(program)[1] == 96 * MIB

    two.signal(signal.SIGSTOP)
    with asked_meanwhile(site, lease, memory_bytes=32 * MIB):
        # What is shown may still be on its way to the disk, and nobody has been answered.
        wait_until(lambda: changes_kept(site) == 2, "it is under way, and written down")
        assert in_use(site) == 2 * 96, "what shrinks is not free yet"
        site.manager.kill()
    site.manager.start()
    two.signal(signal.SIGCONT)
    check_all_have(site, lease, 32)
    assert info(program)[1] == 32 * MIB
    assert tell(program, "work 2") == "worked 2"
    end(program)


def test_two_changes_at_once_are_both_counted(site: Site) -> None:
    """Of two leases that would both grow one has room in the quota, whichever is first; and of two
    changes of one lease one holds, on all of its servers."""
    site.manager.do("PUT", "/tenants/red/quota", {"memory_bytes": 400 * MIB})
    leases = [site.ask(**SPREAD) for _ in range(2)]
    programs = [site.tenant(lease) for lease in leases]
    with ExitStack() as both:
        for lease in leases:
            both.enter_context(asked_meanwhile(site, lease, memory_bytes=128 * MIB))
    wait_until(lambda: all(lease_now(site, x)["resize"] is None for x in leases), "all is made")
    assert sorted(limits(site, x) for x in leases) == [[64, 64], [128, 128]]
    assert in_use(site) == 2 * (64 + 128)
    grown, other = sorted(leases, key=lambda x: -limits(site, x)[0])
    with ExitStack() as both:
        for size in (48, 80):
            both.enter_context(asked_meanwhile(site, grown, memory_bytes=size * MIB))
    wait_until(lambda: lease_now(site, grown)["resize"] is None, "all is made")
    (size,) = set(limits(site, grown))
    assert size in (48, 80) and in_use(site) == 2 * (64 + size)
    assert limits(site, other) == [64, 64]
    for program in programs:
        assert tell(program, "work 2") == "worked 2"
        end(program)
