"""Both ends of the link: a server that joins a manager, is refused, and goes on without one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from structlog.testing import capture_logs

from gpupool_common.keys import KeyPairs, make_keys
from gpupool_manager.node_server import NodeServer
from gpupool_server import manager_connection
from gpupool_server.join_token import JoinToken
from gpupool_server.manager_connection import ManagerConnection
from gpupool_server.manager_keys import ManagerKeys
from gpupool_server.node_keys import NodeKeys
from gpupool_server.pool_member import PoolMember
from link_end import MakeEnd
from link_host import Host
from server_harness import MakeOffice, accepted, eventually, hello


async def test_a_lease_is_usable_at_once(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    end = await make_end()
    await end.link.joined.wait()
    lease = await host.lease(gpus=2)
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    handler = end.office.handler  # type: ignore[attr-defined]
    assert accepted(await handler.answer(hello(token=token)))["devices"] == "0,1"
    # The session is told without waiting for the next heartbeat, a minute from now.
    await eventually(lambda: len(host.seen("n")) == 1)
    await host.end(lease)
    await eventually(lambda: len(end.office.supervisor) == 0)  # type: ignore[attr-defined]
    await eventually(lambda: not host.seen("n"))


async def test_clocks_need_not_agree(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    host.ahead = 5000.0
    end = await make_end()
    await end.link.joined.wait()
    lease = await host.lease()
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    accepted(await end.office.handler.answer(hello(token=token)))  # type: ignore[attr-defined]


async def test_the_next_manager_is_joined(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    end = await make_end()
    await end.link.joined.wait()
    lease = await host.lease()
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    handler = end.office.handler  # type: ignore[attr-defined]
    accepted(await handler.answer(hello(token=token)))
    signer = host.pool.signer
    with capture_logs() as logs:
        await host.stop()
        await eventually(lambda: any("not joined" in entry["event"] for entry in logs))
        accepted(await handler.answer(hello(token=token)))
        await host.start()
        host.pool.signer = signer  # the state folder keeps its secret
        await eventually(lambda: any("joined the pool" in entry["event"] for entry in logs))
    await eventually(lambda: len(host.seen("n")) == 2)
    assert [each.id for each in host.pool.ledger.leases.values()] == [lease.id]
    accepted(await handler.answer(hello(token=token)))


async def test_a_refused_server_says_why_once(host: Host, make_end: MakeEnd) -> None:
    with capture_logs() as logs:
        await make_end(secret="gpn_" + "x" * 43)
        await eventually(lambda: sum(entry["event"] == "refused" for entry in logs) >= 3)
    said = [entry for entry in logs if "not joined" in entry["event"]]
    assert len(said) == 1 and "bad-token" in said[0]["reason"]


async def test_a_manager_without_the_key_is_not_trusted(
    host: Host, make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_connection, "ANSWER_SECONDS", 1.0)
    right, host.keys = host.keys, make_keys()
    with capture_logs() as logs:
        end = await make_end()
        await eventually(lambda: any("not joined" in entry["event"] for entry in logs))
    host.keys = right
    assert not end.link.joined.is_set()
    assert host.node("n") is None


async def test_a_manager_of_another_version_is_named(
    folder: Path, host: Host, make_end: MakeEnd
) -> None:
    keys = host.keys
    await host.link.close()
    context = zmq.asyncio.Context()
    try:
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.secret))
        router.setsockopt(zmq.LINGER, 0)
        router.bind(host.listen)
        with capture_logs() as logs:
            await make_end()
            connection, _ = await router.recv_multipart()
            await router.send_multipart([connection, b"\x81\xa8protocol\x09"])
            await eventually(lambda: any("not joined" in entry["event"] for entry in logs))
        reasons = [entry["reason"] for entry in logs if "not joined" in entry["event"]]
        assert "protocol 9" in reasons[-1] and "protocol 2" in reasons[-1]
    finally:
        context.destroy(linger=0)
        host.link = NodeServer(host.pool, "tcp://127.0.0.1:*")
        host.link.open()


async def test_a_server_goes_on_without_any_manager(make_office: MakeOffice) -> None:
    office = await make_office(own_token=True)
    member = PoolMember("n", office.run_dir.path, office.gpus, office.supervisor)
    office.handler.join(member)
    token = JoinToken("gpn_" + "x" * 43, make_keys().public)
    link = ManagerConnection(
        "tcp://127.0.0.1:1",
        ManagerKeys(token),
        NodeKeys(KeyPairs(make_keys())),
        member,
        lambda: member.report("tcp://h:1", "", {}),
    )
    link.start()
    accepted(await office.handler.answer(hello()))
    await asyncio.sleep(0)
    await link.close()
    member.close()
