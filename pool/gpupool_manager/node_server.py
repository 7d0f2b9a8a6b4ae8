"""The link to servers, encrypted with CURVE; gpupool_server/relay.py has the socket.

Whoever has a CURVE key may connect; who it is follows from its *join*: a node token, the
node's name, and the key that the connection was made with, which the node keeps for good.
Connections that have joined get orders without asking, as soon as those change.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from gpupool_common import hosts, logs
from gpupool_common.ask import split_tcp
from gpupool_common.errors import ProtocolError
from gpupool_common.link_proof import prove
from gpupool_common.node_protocol import (
    MAX_BYTES,
    Again,
    Applied,
    Beat,
    Join,
    Leave,
    Message,
    Orders,
    Refused,
    Rekey,
    Told,
    VersionError,
    decode_from_node,
    encode,
)
from gpupool_common.relay import Relay, open_relay
from gpupool_common.relay_process import Config
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem
from gpupool_manager.records import Token
from gpupool_manager.store import StoreError
from gpupool_manager.tokens import refuse
from gpupool_manager.transaction import Actor

#: Messages worked on at once; what comes beyond that waits in its connection.
MAX_WORKING = 256

#: The origin of what did not come over a network.
LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeConnection:
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
            422,
            "unreachable",
            f"the node advertises {address}, and it is on another host ({origin}):"
            " set its --advertise to an address of that host",
        )


class NodeServer:
    """The manager's end."""

    def __init__(self, pool: Pool, listen: str) -> None:
        self._pool = pool
        self._listen = listen
        self._log = logs.get("link")
        self._joined: dict[bytes, NodeConnection] = {}
        self._by_node: dict[str, NodeConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_WORKING)
        self._relay: Relay | None = None
        self.url = ""

    def open(self) -> None:
        """Listen; GpupoolError if that cannot be."""
        config = Config(
            listen=self._listen,
            max_message=MAX_BYTES,
            receive_mark=64,
            secret=self._pool.link_keys.current.secret,
            name_keys=True,
            connections=16384,
            connections_of_one=4096,
            memory=2 << 30,
        )
        self._relay = open_relay(
            config, self._take, "--nodes", self._gone, self._restarted, self._room
        )
        self.url = self._relay.url
        self._pool.orders_go_by(self._push_all)
        self._pool.link_keys.on_retired = self._take_next_key

    def _take_next_key(self) -> None:
        """Servers are cut off, and join again where the link has the other key."""
        if self._relay is not None:
            self._relay.set_secret(self._pool.link_keys.current.secret)

    async def close(self) -> None:
        """Close all connections; servers continue and connect to the next manager."""
        self._pool.on_orders = None
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._relay is not None:
            await self._relay.close()

    # What nodes say ----------------------------------------------------------------------

    def _take(self, connection: bytes, address: str, key: str, frames: list[bytes]) -> None:
        task = asyncio.create_task(self._serve(connection, address, key, frames))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _gone(self, connection: bytes) -> None:
        """It gets no more orders, and joins when it is back."""
        joined = self._joined.get(connection)
        if joined is not None:
            self._forget(joined)

    def _restarted(self) -> None:
        """All connections are gone, and servers join again."""
        self._joined.clear()
        self._by_node.clear()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _serve(self, connection: bytes, address: str, key: str, frames: list[bytes]) -> None:
        joined = self._joined.get(connection)
        number = 0
        try:
            if len(frames) != 1:
                raise ProtocolError(f"a message is one frame, not {len(frames)}")
            message = decode_from_node(frames[0])
            number = message.number
            if isinstance(message, Applied):
                if joined is not None:
                    actor = _actor(joined.token)
                    await self._pool.applied(joined.node, message.generation, message, actor)
            elif isinstance(message, Join):
                await self._join(connection, key, message, address or LOCAL)
            elif joined is None:
                self._say(connection, Refused(number=number, code="unknown-node", message="join"))
            elif isinstance(message, Again):
                await self._report(joined, message, address or LOCAL)
            elif isinstance(message, Rekey):
                await self._rekey(joined, message)
            elif isinstance(message, Leave):
                await self._leave(joined, message)
            else:
                await self._heartbeat(joined, message)
        except ProtocolError as error:
            code = "version" if isinstance(error, VersionError) else "bad-request"
            self._refuse(connection, number, code, str(error))
        except Problem as problem:
            if joined is None and self._relay is not None:
                self._relay.wrong(address, connection)
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
        joined = NodeConnection(connection, join.node, token, key)
        old = self._by_node.get(join.node)
        if old is not None:
            self._joined.pop(old.connection, None)
        self._joined[connection] = self._by_node[join.node] = joined
        if self._relay is not None:
            self._relay.known(connection)
        self._log.info("a server joined", node=join.node, address=join.report.address)
        self._tell(joined, join.number, proof=self._proof(join.challenge, key))

    def _proof(self, challenge: str, key: str) -> str:
        """What the node with this key asks for: that we have the next key of the link."""
        following = self._pool.link_keys.following
        if not challenge or following is None:
            return ""
        try:
            return prove(following.secret, key, challenge)
        except ValueError:
            raise ProtocolError("the node's key is one that anybody has") from None

    def _token_of(self, join: Join, key: str) -> Token:
        """Its token, if it may join with it; Problem if not.

        A token that has expired since lets those in that joined with it and have their key.
        """
        ledger = self._pool.ledger
        token = ledger.tokens.of_secret(join.token)
        if token is None or token.scope != "node":
            raise refuse("the token is not a node's of this pool")
        node = ledger.nodes.get(join.node)
        gone = ledger.admissions.get(join.node)
        if token.revoked is not None and gone is not None and gone.removed is not None:
            raise refuse(
                f"the node '{join.node}' was removed from the pool; an operator can admit it again"
                f" with: gpupool node join --name {join.node}"
            )
        known = node is not None and node.key == key and node.token == token.id
        if token.revoked is not None or not known:
            token = ledger.tokens.check(join.token, self._pool.clock())
        return token

    async def _report(self, joined: NodeConnection, message: Again, origin: str) -> None:
        self._check(joined)
        check_reachable(message.report.address, origin)
        await self._take_report(joined.token, joined.node, message, joined.key)
        self._tell(joined, message.number)

    async def _take_report(self, token: Token, node: str, message: Join | Again, key: str) -> None:
        pool, report = self._pool, message.report
        await pool.commands.do(
            lambda transaction: pool.fleet.report(transaction, token, node, report, key),
            _actor(token),
        )

    async def _heartbeat(self, joined: NodeConnection, message: Beat) -> None:
        self._check(joined)
        beat = message.heartbeat
        orders = await self._pool.heartbeat(
            joined.token, joined.node, beat, _actor(joined.token), joined.key
        )
        self._tell(joined, message.number, orders=orders)

    async def _leave(self, joined: NodeConnection, message: Leave) -> None:
        self._check(joined)
        pool = self._pool
        await pool.commands.do(
            lambda transaction: pool.fleet.leave(
                transaction, joined.token, joined.node, joined.key
            ),
            _actor(joined.token),
        )
        self._log.info("a server stops", node=joined.node)
        self._tell(joined, message.number, orders=Orders(next_heartbeat=3600.0))
        self._forget(joined)

    async def _rekey(self, joined: NodeConnection, message: Rekey) -> None:
        """Its next connection is made with that key; this one is of no more use."""
        self._check(joined)
        pool = self._pool
        await pool.commands.do(
            lambda transaction: pool.fleet.node_keys.take(
                transaction, joined.node, joined.key, message.key
            ),
            _actor(joined.token),
        )
        self._log.info("a node has another key", node=joined.node)
        self._tell(joined, message.number, orders=Orders(next_heartbeat=3600.0))
        self._forget(joined)

    def _check(self, joined: NodeConnection) -> None:
        """Problem if what it joined with was revoked since."""
        if self._is_revoked(joined):
            self._forget(joined)
            raise refuse("the token was revoked")

    def _is_revoked(self, joined: NodeConnection) -> bool:
        token = self._pool.ledger.tokens.by_id.get(joined.token.id)
        return token is None or token.revoked is not None

    def _cut_off(self, joined: NodeConnection, code: str, why: str) -> None:
        """Unasked, and at once: it is told nothing more, and must join again."""
        self._forget(joined)
        self._say(joined.connection, Refused(code=code, message=why))

    # Their orders --------------------------------------------------------------------------

    def _push_all(self, nodes: set[str]) -> None:
        for node in nodes:
            joined = self._by_node.get(node)
            if joined is None:
                continue
            known = self._pool.ledger.nodes.get(node)
            if known is None or known.key != joined.key:
                # It was removed, and may be another one's by now.
                self._cut_off(joined, "unknown-node", "the node was removed")
                continue
            if self._is_revoked(joined):
                self._cut_off(joined, "bad-token", "the token was revoked")
                continue
            try:
                self._tell(joined, 0)
            except Exception:  # who changed something is not to suffer from it
                self._log.exception("a server's orders could not be sent", node=node)

    def _tell(
        self, joined: NodeConnection, number: int, orders: Orders | None = None, proof: str = ""
    ) -> None:
        now = self._pool.clock()
        if orders is None:
            orders = self._pool.fleet.orders(joined.node, "", now)
        self._say(joined.connection, Told(number=number, now=now, orders=orders, proof=proof))

    def _refuse(self, connection: bytes, number: int, code: str, message: str) -> None:
        joined = self._joined.get(connection)
        node = {} if joined is None else {"node": joined.node}
        self._log.warning("refused", code=code, reason=message, **node)
        self._say(connection, Refused(number=number, code=code, message=message[:1024]))

    def _say(self, connection: bytes, message: Message) -> None:
        """What the connection has no room for is sent later."""
        if self._relay is not None:
            self._relay.send(connection, encode(message))

    def _forget(self, joined: NodeConnection) -> None:
        self._joined.pop(joined.connection, None)
        if self._by_node.get(joined.node) is joined:
            del self._by_node[joined.node]


def _actor(token: Token) -> Actor:
    return Actor(token.id, secrets.token_hex(8))
