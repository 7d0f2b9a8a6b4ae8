"""Leases that their servers confirm, and servers that stop, hang or cannot start sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpupool_common.node_protocol import (
    Again,
    Applied,
    Apply,
    Beat,
    Heartbeat,
    Leave,
    Told,
    encode,
)
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager import views
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.problems import Problem
from link_host import WANT, Host, NodeConnection, applied, no, report_of
from server_harness import eventually


@pytest_asyncio.fixture
async def hasty(folder: Path) -> AsyncIterator[Host]:
    made = Host(folder / "manager", confirm_seconds=1.0)
    await made.start()
    await made.tenant()
    yield made
    await made.stop()


async def pair(host: Host, *names: str) -> dict[str, NodeConnection]:
    peers = {}
    for name in names:
        _, secret = await host.token(node=name)
        peers[name] = NodeConnection(host)
        applied(await peers[name].join(secret, name))
    return peers


async def obey(peer: NodeConnection, told: Apply) -> None:
    await peer.socket.send(encode(Applied(generation=told.generation)))


async def test_a_lease_is_shown_once_its_server_has_it(host: Host) -> None:
    await host.tenant()
    peers = await pair(host, "a")
    lease = await host.lease()
    waiting = asyncio.create_task(host.pool.confirmed(lease.id))
    told = applied(await peers["a"].told())
    shown = views.lease_with_token(host.pool, lease)
    assert (shown.state, shown.servers, shown.token) == ("queued", [], None)
    assert "not confirmed" in shown.reason
    # Older orders, and those of another manager, confirm nothing.
    for generation in ("x-99", "", told.generation.rpartition("-")[0] + "-0"):
        await peers["a"].socket.send(encode(Applied(generation=generation)))
    assert isinstance(await peers["a"].ask(Beat(number=2, heartbeat=Heartbeat())), Told)
    assert not waiting.done()
    await obey(peers["a"], told)
    await waiting
    shown = views.lease_with_token(host.pool, lease)
    assert shown.state == "active" and shown.token is not None
    peers["a"].close()


async def test_who_asks_is_answered_while_a_server_takes_its_time(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a long confirm_seconds clients gave up before the manager said anything."""
    monkeypatch.setattr("gpupool_manager.pool.ANSWER_SECONDS", 0.1)
    await host.tenant()
    peers = await pair(host, "a")
    lease = await host.lease()
    async with asyncio.timeout(60):  # of 600 that a server may take here
        await host.pool.confirmed(lease.id)
    shown = views.lease_with_token(host.pool, lease)
    assert (shown.state, "not confirmed" in shown.reason) == ("queued", True)
    peers["a"].close()


async def test_what_a_server_does_not_confirm_goes_elsewhere(hasty: Host) -> None:
    """A server that stopped without a word got leases for 40 s, and programs failed there."""
    peers = await pair(hasty, "a", "b")
    lease = await hasty.lease()
    first = lease.grants[0].node
    other = "b" if first == "a" else "a"
    waiting = asyncio.create_task(hasty.pool.confirmed(lease.id))
    while not (told := applied(await peers[other].told())).grants:
        pass
    await obey(peers[other], told)
    await waiting
    assert [grant.node for grant in lease.grants] == [other] and lease.state == "active"
    node = hasty.node(first)
    assert node is not None and node.lost and "does not confirm" in node.trouble
    slots = hasty.pool.ledger.index.slots
    assert [slots[f"GPU-{name}-0"].used_bytes for name in (first, other)] == [0, 64 * MIB]
    # It was only slow: its next word brings it back.
    await peers[first].socket.send(encode(Again(number=3, report=report_of(first))))
    await eventually(lambda: not node.lost and node.trouble == "")
    for peer in peers.values():
        peer.close()


async def test_without_another_server_it_waits_or_ends(hasty: Host) -> None:
    peers = await pair(hasty, "a")
    lease = await hasty.lease()
    await hasty.pool.confirmed(lease.id)
    assert lease.state == "lost" and "'a' did not confirm it" in lease.reason
    assert not hasty.pool.ledger.leases and lease.grants == []
    await peers["a"].socket.send(encode(Again(number=3, report=report_of("a"))))
    node = hasty.node("a")
    await eventually(lambda: node is not None and not node.lost)
    ask = LeaseRequest("red", PlacementRequest.parse(WANT), wait=600.0)
    pool = hasty.pool
    queued = await pool.commands.do(lambda transaction: pool.leases.admit(transaction, ask))
    await pool.confirmed(queued.id)
    assert queued.state == "queued" and pool.ledger.queue.position(queued) == 1
    peers["a"].close()


async def test_a_server_that_stops_says_so(host: Host) -> None:
    await host.tenant()
    peers = await pair(host, "a", "b")
    told = await peers["a"].ask(Leave(number=5))
    while isinstance(told, Told) and told.number != 5:
        told = await peers["a"].hear()
    node = host.node("a")
    assert node is not None and node.lost and node.trouble == "its server was stopped"
    assert (await host.lease()).grants[0].node == "b"
    no(await peers["a"].ask(Beat(number=6, heartbeat=Heartbeat())), "unknown-node")
    for peer in peers.values():
        peer.close()


async def test_a_node_whose_sessions_do_not_start_is_put_aside(host: Host) -> None:
    await host.tenant()
    peers = await pair(host, "a")
    node = host.node("a")
    assert node is not None

    async def say(trouble: str) -> None:
        await peers["a"].socket.send(encode(Beat(number=7, heartbeat=Heartbeat(trouble=trouble))))
        while (await peers["a"].told()).number != 7:
            pass

    await say("sessions do not start: no driver")
    assert (views.state_of(node), node.trouble) == ("aside", "sessions do not start: no driver")
    with pytest.raises(Problem) as full:
        await host.lease()
    assert full.value.code == "full"
    await say("")  # its own attempts succeed
    assert views.state_of(node) == "ready"
    await host.end(await host.lease())
    # An operator knows better, until the server says something else.
    await say("sessions do not start: no driver")
    pool = host.pool
    await pool.commands.do(lambda transaction: pool.fleet.change(transaction, "a", "open", None))
    await say("sessions do not start: no driver")
    assert views.state_of(node) == "ready"
    await say("sessions do not start: no memory")
    assert views.state_of(node) == "aside"
    peers["a"].close()
