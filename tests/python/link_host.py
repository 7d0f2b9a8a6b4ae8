"""A manager with its link, and raw peers that say to it whatever one likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from gpupool_common.keys import Keys, load_keys, make_keys
from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_common.node_protocol import (
    Apply,
    Join,
    Message,
    Refused,
    Report,
    ReportedGpu,
    ReportedSession,
    Told,
    decode_from_manager,
    encode,
)
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.lease_request import LeaseRequest
from gpupool_manager.link_keys import LinkKeys
from gpupool_manager.node_server import NodeServer
from gpupool_manager.placement_request import PlacementRequest
from gpupool_manager.pool import Pool, Rules
from gpupool_manager.records import Lease, Node, Token
from gpupool_manager.store import Store

WANT: dict[str, Any] = {
    "gpus": 1,
    "memory_bytes": 64 * MIB,
    "share_permille": 500,
    "policy": "binpack",
    "hosts": "any",
    "model": None,
    "capability": None,
    "labels": {},
}


def report_of(node: str, gpus: int = 1, **more: Any) -> Report:
    return Report(
        address=f"tcp://{node}:7700",
        server_version="0",
        gpus=[
            ReportedGpu(
                uuid=f"GPU-{node}-{index}",
                index=index,
                model="a GPU",
                compute_capability="9.0",
                memory_bytes=1024 * MIB,
            )
            for index in range(gpus)
        ],
        **more,
    )


class Host:
    """A manager with its link, on a database in a folder."""

    def __init__(self, folder: Path, **rules: Any) -> None:
        self.folder = folder
        self._rules = Rules(
            **{"heartbeat_seconds": 60.0, "lost_after": 600.0, "confirm_seconds": 600.0, **rules}
        )
        folder.mkdir(exist_ok=True)
        self.keys = load_keys(folder)
        self.listen = "tcp://127.0.0.1:*"
        self.ahead = 0.0
        self.pool: Pool
        self.link: NodeServer

    async def start(self) -> None:
        import time

        store = Store(f"sqlite:///{self.folder / 'manager.db'}")
        self.pool = Pool(store, self._rules, clock=lambda: time.time() + self.ahead)
        await self.pool.open()
        self.pool.link_keys = LinkKeys.load(self.folder)
        self.link = NodeServer(self.pool, self.listen)
        self.link.open()
        self.listen = self.link.url  # the next one is at the same place

    async def stop(self) -> None:
        await self.link.close()
        await self.pool.close()

    async def token(self, scope: Any = "node", **more: Any) -> tuple[Token, str]:
        if scope == "node":
            more = {"node": "n", **more}
        return await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.create_token(transaction, scope, **more)
        )

    async def tenant(self, name: str = "red") -> None:
        await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.create(transaction, name, "", {})
        )

    async def lease(self, until: LeaseEnd = LeaseEnd.RELEASED, **want: Any) -> Lease:
        ask = LeaseRequest("red", PlacementRequest.parse({**WANT, **want}), until=until)
        return await self.pool.commands.do(
            lambda transaction: self.pool.leases.admit(transaction, ask)
        )

    async def end(self, lease: Lease) -> None:
        await self.pool.commands.do(
            lambda transaction: self.pool.leases.end(
                transaction, lease, LeaseState.RELEASED, "released"
            )
        )

    def seen(self, node: str) -> list[ReportedSession]:
        """The sessions that its last heartbeat named."""
        found = self.pool.fleet.seen.get(node)
        return found.sessions if found is not None else []

    def node(self, name: str) -> Node | None:
        return self.pool.ledger.nodes.get(name)


class NodeConnection:
    """A raw connection, to say whatever one likes."""

    def __init__(self, host: Host, keys: Keys | None = None, curve: bool = True) -> None:
        self.keys = keys or make_keys()
        self._context = zmq.asyncio.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if curve:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(host.keys.public))
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(self.keys.public))
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self.keys.secret))
        self.socket.connect(host.link.url)

    async def hear(self) -> Told | Refused:
        return decode_from_manager((await self.socket.recv_multipart())[-1])

    async def ask(self, message: Message) -> Told | Refused:
        await self.socket.send(encode(message))
        return await self.hear()

    async def join(self, secret: str, node: str = "n", gpus: int = 1) -> Told | Refused:
        return await self.ask(Join(number=1, node=node, token=secret, report=report_of(node, gpus)))

    async def told(self) -> Told:
        message = await self.hear()
        assert isinstance(message, Told), message
        return message

    def close(self) -> None:
        self._context.destroy(linger=0)


MakePeer = Callable[..., NodeConnection]


@pytest_asyncio.fixture
async def host(folder: Path) -> AsyncIterator[Host]:
    made = Host(folder / "manager")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def make_peer(host: Host) -> Iterator[MakePeer]:
    peers: list[NodeConnection] = []

    def make(**more: Any) -> NodeConnection:
        peers.append(NodeConnection(host, **more))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def applied(told: Told | Refused) -> Apply:
    assert isinstance(told, Told), told
    (command,) = told.orders.commands
    assert isinstance(command, Apply)
    return command


def no(told: Told | Refused, code: str, part: str = "") -> None:
    assert isinstance(told, Refused), told
    assert (told.code, part in told.message) == (code, True), told
