"""The link to servers: one ROUTER socket, encrypted with CURVE.

Whoever has a CURVE key may connect; who it is follows from its *join*: a node token, the
node's name, and the key that the connection was made with, which the node keeps for good.
Connections that have joined get orders without asking, as soon as those change.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

from gpupool import hosts
from gpupool.ask import split_tcp
from gpupool.errors import GpupoolError, ProtocolError
from gpupool.node_link import (
    MAX_BYTES,
    Again,
    Applied,
    Beat,
    Join,
    Leave,
    Message,
    Orders,
    Refused,
    Told,
    VersionError,
    decode_from_node,
    encode,
)
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem
from gpupool_manager.records import Token
from gpupool_manager.store import StoreError
from gpupool_manager.tokens import refuse
from gpupool_manager.unit import Actor
from gpupool_server import logs
from gpupool_server.keys import Keys

#: Messages worked on at once; what comes beyond that waits in its connection.
MAX_WORKING = 256

_ZAP = "inproc://zeromq.zap.01"


@dataclass(frozen=True, slots=True)
class Peer:
    """A connection that has joined as a node."""

    connection: bytes
    node: str
    token: Token
    key: str


def check_reachable(address: str, origin: str) -> None:
    """Problem if a node of another host tells clients to come to the loopback.

    Each of them would find itself there, or another server of its own.
    """
    try:
        host, _ = split_tcp(address)
    except ValueError:
        return  # a local socket, or nothing that the report may have
    if hosts.is_loopback(host) and not (hosts.is_loopback(origin) or hosts.is_own(origin)):
        raise Problem(
            422, "unreachable",
            f"the node tells clients to come to {address}, and it is on another host ({origin}):"
            " set its --advertise to an address of that host",
        )  # fmt: skip


def _origin(frame: zmq.Frame) -> str:
    """The address that a message came from."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return "127.0.0.1"  # not from a network


class Link:
    """The manager's end."""

    def __init__(self, pool: Pool, keys: Keys, listen: str) -> None:
        self._pool = pool
        self._keys = keys
        self._listen = listen
        self._log = logs.get("link")
        self._context = zmq.asyncio.Context()
        self._peers: dict[bytes, Peer] = {}
        self._at: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_WORKING)
        self.url = ""

    @property
    def key(self) -> str:
        """The public key that servers must know, in hexadecimal."""
        return self._keys.public

    def open(self) -> None:
        """Listen; GpupoolError if that cannot be."""
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(_ZAP)
            self._socket = self._context.socket(zmq.ROUTER)
            self._configure()
            self._socket.bind(self._listen)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise GpupoolError(
                f"cannot listen for servers at {self._listen}: {error.strerror};"
                " choose another address: --nodes"
            ) from None
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        for work in (self._admit(), self._read()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._pool.link_is_open(self._push_all)

    def _configure(self) -> None:
        socket = self._socket
        for option, value in (
            (zmq.MAXMSGSIZE, MAX_BYTES),
            (zmq.SNDHWM, 16),  # a node that does not read loses orders, and is told them again
            (zmq.RCVHWM, 64),
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.IPV6, int("[" in self._listen)),
            (zmq.HEARTBEAT_IVL, 5000),  # ms; frees the connections of hosts that vanished
            (zmq.HEARTBEAT_TIMEOUT, 15000),
            (zmq.HANDSHAKE_IVL, 5000),
            (zmq.CURVE_SERVER, 1),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self._keys.secret))
        socket.setsockopt(zmq.ZAP_DOMAIN, b"gpupool")

    async def close(self) -> None:
        """Hang up; servers go on and connect again to the next manager."""
        self._pool.on_orders = None
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=200)

    async def _admit(self) -> None:
        """ZeroMQ asks who may connect (RFC 27): any key, and it becomes the user's name."""
        while True:
            frames = await self._zap.recv_multipart()
            number = frames[1] if len(frames) > 1 else b""
            good = len(frames) == 7 and frames[5] == b"CURVE" and len(frames[6]) == 32
            user = frames[6].hex().encode() if good else b""
            verdict = [b"200", b"OK"] if good else [b"400", b"CURVE only"]
            await self._zap.send_multipart([b"1.0", number, *verdict, user, b""])

    # What nodes say ----------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            await self._room.acquire()
            frames = await self._socket.recv_multipart(copy=False)
            task = asyncio.create_task(self._serve(frames))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _serve(self, frames: list[zmq.Frame]) -> None:
        connection = bytes(frames[0].bytes)
        peer = self._peers.get(connection)
        number = 0
        try:
            if len(frames) != 2:
                raise ProtocolError(f"a message is one frame, not {len(frames) - 1}")
            key = str(frames[1].get("User-Id"))
            message = decode_from_node(frames[1].bytes)
            number = message.number
            if isinstance(message, Applied):
                if peer is not None:
                    self._pool.applied(peer.node, message.generation)
            elif isinstance(message, Join):
                await self._join(connection, key, message, _origin(frames[1]))
            elif peer is None:
                self._say(connection, Refused(number=number, code="unknown-node", message="join"))
            elif isinstance(message, Again):
                await self._report(peer, message, _origin(frames[1]))
            elif isinstance(message, Leave):
                await self._leave(peer, message)
            else:
                await self._heartbeat(peer, message)
        except ProtocolError as error:
            code = "version" if isinstance(error, VersionError) else "bad-request"
            self._refuse(connection, number, code, str(error))
        except Problem as problem:
            self._refuse(connection, number, problem.code, problem.detail)
        except StoreError as error:
            self._refuse(connection, number, "unavailable", str(error))
        except Exception:
            self._log.exception("a server's message could not be taken")
            self._refuse(connection, number, "failed", "the manager failed; its log says why")

    async def _join(self, connection: bytes, key: str, join: Join, origin: str) -> None:
        token = self._token_of(join, key)
        check_reachable(join.report.address, origin)
        await self._take_report(token, join.node, join, key)
        peer = Peer(connection, join.node, token, key)
        old = self._at.get(join.node)
        if old is not None:
            self._peers.pop(old.connection, None)
        self._peers[connection] = self._at[join.node] = peer
        self._log.info("a server joined", node=join.node, address=join.report.address)
        node = self._pool.fleet.find(join.node)
        self._tell(peer, join.number, signing_key=self._pool.signer.key_of(node))

    def _token_of(self, join: Join, key: str) -> Token:
        """Its token, if it may join with it; Problem if not.

        A token that has expired since lets those in that joined with it and have their key.
        """
        ledger = self._pool.ledger
        token = ledger.tokens.of_secret(join.token)
        if token is None or token.scope != "node":
            raise refuse("the token is no node's of this pool")
        node = ledger.nodes.get(join.node)
        gone = ledger.admissions.get(join.node)
        if token.revoked is not None and gone is not None and gone.removed is not None:
            raise refuse(
                f"the node '{join.node}' was removed from the pool; an operator lets it in again"
                f" with: gpupool node join --name {join.node}"
            )
        known = node is not None and node.key == key and node.token == token.id
        if token.revoked is not None or not known:
            token = ledger.tokens.check(join.token, self._pool.clock())
        return token

    async def _report(self, peer: Peer, message: Again, origin: str) -> None:
        self._check(peer)
        check_reachable(message.report.address, origin)
        await self._take_report(peer.token, peer.node, message, peer.key)
        self._tell(peer, message.number)

    async def _take_report(self, token: Token, node: str, message: Join | Again, key: str) -> None:
        pool, report = self._pool, message.report
        await pool.desk.do(
            lambda unit: pool.fleet.report(unit, token, node, report, key), _actor(token)
        )

    async def _heartbeat(self, peer: Peer, message: Beat) -> None:
        self._check(peer)
        beat = message.heartbeat
        orders = await self._pool.heartbeat(
            peer.token, peer.node, beat, _actor(peer.token), peer.key
        )
        self._tell(peer, message.number, orders=orders)

    async def _leave(self, peer: Peer, message: Leave) -> None:
        self._check(peer)
        pool = self._pool
        await pool.desk.do(
            lambda unit: pool.fleet.leave(unit, peer.token, peer.node, peer.key),
            _actor(peer.token),
        )
        self._log.info("a server stops", node=peer.node)
        self._tell(peer, message.number, orders=Orders(next_heartbeat=3600.0))
        self._forget(peer)

    def _check(self, peer: Peer) -> None:
        """Problem if what it joined with was revoked since."""
        token = self._pool.ledger.tokens.by_id.get(peer.token.id)
        if token is None or token.revoked is not None:
            self._forget(peer)
            raise refuse("the token was revoked")

    # What they are told --------------------------------------------------------------------

    def _push_all(self, nodes: set[str]) -> None:
        for node in nodes:
            peer = self._at.get(node)
            if peer is None:
                continue
            known = self._pool.ledger.nodes.get(node)
            if known is None or known.key != peer.key:
                self._forget(peer)  # it was removed, and may be another one's by now
                gone = Refused(code="unknown-node", message="the node was removed")
                self._say(peer.connection, gone)
                continue
            try:
                self._tell(peer, 0)
            except Exception:  # who changed something is not to suffer from it
                self._log.exception("a server could not be told its orders", node=node)

    def _tell(
        self,
        peer: Peer,
        number: int,
        orders: Orders | None = None,
        signing_key: bytes | None = None,
    ) -> None:
        now = self._pool.clock()
        if orders is None:
            orders = self._pool.fleet.orders(peer.node, "", now)
        told = Told(number=number, now=now, orders=orders, signing_key=signing_key)
        if not self._say(peer.connection, told):
            self._forget(peer)

    def _refuse(self, connection: bytes, number: int, code: str, message: str) -> None:
        peer = self._peers.get(connection)
        node = {} if peer is None else {"node": peer.node}
        self._log.warning("refused", code=code, reason=message, **node)
        self._say(connection, Refused(number=number, code=code, message=message[:1024]))

    def _say(self, connection: bytes, message: Message) -> bool:
        """Whether the connection is still there; what it has no room for it is told later."""
        sent: Any = self._socket.send_multipart([connection, encode(message)], flags=zmq.NOBLOCK)
        error = sent.exception() if sent.done() else None
        return not (isinstance(error, zmq.ZMQError) and error.errno == zmq.EHOSTUNREACH)

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.connection, None)
        if self._at.get(peer.node) is peer:
            del self._at[peer.node]


def _actor(token: Token) -> Actor:
    return Actor(token.id, secrets.token_hex(8))
