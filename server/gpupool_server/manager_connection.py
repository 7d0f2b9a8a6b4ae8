"""The link to the pool's manager: joins, reports, heartbeats, and joins again, for ever.

The server serves with or without it. A message that is not answered, a manager that does
not know us, a new connection: whatever happens, the next step is a join.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from gpupool_common import hosts, logs
from gpupool_common.ask import split_tcp
from gpupool_common.errors import ConfigError, GpupoolError, ProtocolError
from gpupool_common.link_proof import is_proof, new_challenge
from gpupool_common.node_protocol import (
    MAX_BYTES,
    Again,
    Applied,
    Apply,
    Beat,
    Join,
    Leave,
    Message,
    Refused,
    Rekey,
    Report,
    RollKey,
    Told,
    decode_from_manager,
    encode,
)
from gpupool_server.config import Settings
from gpupool_server.manager_keys import ManagerKeys
from gpupool_server.node_keys import NodeKeys
from gpupool_server.pool_member import PoolMember

#: How long an answer may take before the connection is given up.
ANSWER_SECONDS = 5.0
#: The same, and the most between two words, where there are several managers.
SEVERAL_ANSWER_SECONDS, SEVERAL_BEAT_SECONDS = 2.0, 2.0
#: How long a server that stops waits until it is known.
LEAVE_SECONDS = 2.0

#: How long to wait before the next try, and at most where the manager does not want us: it
#: is doubled each time. A manager that is away is looked for by ZeroMQ, every 2 s.
FIRST_RETRY, LAST_RETRY = 0.2, 10.0

#: Sessions that begin and end together are told together.
GATHER_SECONDS = 0.02

_LOST = zmq.EVENT_DISCONNECTED
_KEY_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def find_address(settings: Settings, url: str) -> str:
    """Where the pool's clients reach the front end that listens at ``url``.

    It goes to clients on any host, so it is never one that each takes for itself, unless
    the operator said so: ConfigError.
    """
    if settings.advertise is not None:
        return settings.advertise
    host, port = split_tcp(url)
    if host not in ("*", "0.0.0.0", "::"):
        found: str | None = None if hosts.resolves_to_loopback(host) else host
    else:
        manager, _, _ = (settings.pool or "tcp://localhost:1").partition(",")
        found = hosts.outward(*split_tcp(manager))
    if found is None:
        raise ConfigError(
            f"the pool's clients on other hosts cannot reach {url}, and this host has no other"
            " address that could be told them: set --listen or --advertise to one; for a pool of"
            f" this machine alone: --advertise tcp://127.0.0.1:{port}"
        )
    return f"tcp://[{found}]:{port}" if ":" in found else f"tcp://{found}:{port}"


@dataclass(frozen=True)
class Heard:
    """An answer that was obeyed already."""

    next_heartbeat: float
    wants_report: bool
    #: Whether this node is to replace its key.
    wants_key: bool = False


class _Away(Exception):
    """The manager cannot be spoken to now; the text says why."""


class _Unwanted(_Away):
    """It is there, and will say the same again until somebody changes something."""


class _OtherKey(_Unwanted):
    """The manager knows this node by another key than the one in use."""


#: Refusals that are not about us, and one that may be about our key.
_KINDS = {"unavailable": _Away, "failed": _Away, "forbidden": _OtherKey}


class ManagerConnection:
    """One server's end of the link."""

    def __init__(
        self,
        url: str,
        manager_keys: ManagerKeys,
        keys: NodeKeys,
        member: PoolMember,
        make_report: Callable[[], Report],
    ) -> None:
        self._urls = url.split(",")
        #: The manager that is spoken to, or tried.
        self._url = self._urls[0]
        #: Of several managers another one may lead: silence is noticed sooner.
        self._answer = ANSWER_SECONDS if len(self._urls) == 1 else SEVERAL_ANSWER_SECONDS
        self._manager_keys = manager_keys
        #: What the manager must prove something by before anything of it is taken; None: nothing.
        self._unproven: Join | None = None
        self._keys = keys
        self._member = member
        self._make_report = make_report
        self._log = logs.get("pool")
        self._context = zmq.asyncio.Context()
        self._running: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Heard]] = {}
        self._sent: dict[int, float] = {}
        self._trouble = ""
        self._best_trip = float("inf")
        self.joined = asyncio.Event()
        self._dealer: zmq.asyncio.Socket | None = None
        self._leaving = False

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="pool link")

    def wake(self) -> None:
        """Something has changed that the manager should hear of now."""
        self._wake.set()

    async def leave(self) -> None:
        """Say that nothing new is to come here: the server stops."""
        self._leaving = True  # no other word comes after this one
        if self._dealer is None or not self.joined.is_set():
            return
        with contextlib.suppress(_Away, zmq.ZMQError, asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._ask(self._dealer, Leave(number=self._next()))

    async def close(self) -> None:
        """Close the connection."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _run(self) -> None:
        delay = FIRST_RETRY
        while True:
            try:
                await self._serve()
            except _Away as away:
                self._say_trouble(str(away))
                unwanted = isinstance(away, _Unwanted)
                self._url = self._urls[(self._urls.index(self._url) + 1) % len(self._urls)]
                delay = min(2 * delay, LAST_RETRY) if unwanted else FIRST_RETRY
            except Exception:
                self._log.exception("the connection to the pool failed; connecting again")
                delay = LAST_RETRY
            self.joined.clear()
            await asyncio.sleep(delay)

    def _say_trouble(self, text: str) -> None:
        """Once for each kind: a manager may be away for days."""
        if text != self._trouble:
            self._log.warning(
                "not joined to the pool; sessions continue", reason=text, manager=self._url
            )
        self._trouble = text

    # One connection ----------------------------------------------------------------------

    async def _serve(self) -> None:
        """Use one socket until it is of no more use: _Away."""
        dealer = self._context.socket(zmq.DEALER)
        monitor = None
        parts: list[asyncio.Task[None]] = []
        try:
            self._configure(dealer)
            monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _LOST | _KEY_FAILED)
            dealer.connect(self._url)
            parts.append(asyncio.create_task(self._read(dealer)))
            await self._until_connected(monitor)
            parts.append(asyncio.create_task(self._watch(monitor)))
            parts.append(asyncio.create_task(self._talk(dealer)))
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            self._dealer = None
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            for waiting in self._waiting.values():
                waiting.cancel()
            self._waiting.clear()
            self._sent.clear()
            if monitor is not None:
                dealer.disable_monitor()
            dealer.close(linger=0)

    def _configure(self, dealer: zmq.asyncio.Socket) -> None:
        for option, value in (
            (zmq.MAXMSGSIZE, MAX_BYTES),
            (zmq.SNDHWM, 64),
            (zmq.RCVHWM, 64),
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),
            (zmq.IPV6, int("[" in self._url)),
            (zmq.RECONNECT_IVL, 200),
            (zmq.RECONNECT_IVL_MAX, 2000),
            # Not ZMTP's heartbeats (relay_process.py says why); that the manager answers is
            # seen by its answers.
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 20),
            (zmq.TCP_KEEPALIVE_INTVL, 10),
            (zmq.TCP_MAXRT, 60_000),
        ):
            dealer.setsockopt(option, value)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(self._manager_keys.in_use))
        keys = self._keys.in_use
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(keys.public))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.secret))

    async def _until_connected(self, monitor: zmq.asyncio.Socket) -> None:
        try:
            async with asyncio.timeout(self._answer):
                while await self._event(monitor) != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    pass
        except TimeoutError:
            raise _Away("no manager answers there; is its address right, and is it up?") from None

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while await self._event(monitor) != _LOST:
            pass
        raise _Away("the connection broke")

    async def _event(self, monitor: zmq.asyncio.Socket) -> int:
        found = await recv_monitor_message(monitor)
        event = int(found["event"])
        if event & _KEY_FAILED:
            self._manager_keys.refused()
            raise _Unwanted(
                "the manager there does not have the key by which this node knows it; if that was"
                f" rolled while the node was away, give it a new token: {self._way_back}"
            )
        return event

    # What is said ------------------------------------------------------------------------

    async def _talk(self, dealer: zmq.asyncio.Socket) -> None:
        try:
            heard = await self._ask(dealer, self._join())
        except _OtherKey:
            self._keys.refused()
            raise
        self._keys.joined()
        try:
            self._manager_keys.joined()
        except GpupoolError as error:  # both are known still, and the next join tries again
            self._log.error("the manager's key cannot be saved; free space", reason=str(error))
        self._trouble = ""
        self._dealer = dealer
        self._log.info("joined the pool", node=self._member.node, manager=self._url)
        self.joined.set()
        self._wake.set()  # a report says nothing of sessions; the manager may be a new one
        while True:
            if heard.wants_key:
                await self._roll_key(dealer)
            if heard.wants_report:
                again = Again(number=self._next(), report=self._make_report())
                heard = await self._ask(dealer, again)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next(heard)):
                    await self._wake.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            if self._leaving:
                await asyncio.Event().wait()
            beat = self._member.heartbeat(self._manager_keys.newest)
            heard = await self._ask(dealer, Beat(number=self._next(), heartbeat=beat))
            self._member.heard(beat)

    def _until_next(self, heard: Heard) -> float:
        if len(self._urls) == 1:
            return heard.next_heartbeat
        return min(heard.next_heartbeat, SEVERAL_BEAT_SECONDS)

    async def _roll_key(self, dealer: zmq.asyncio.Socket) -> None:
        """Tell the manager our next key, and come back with it: _Away."""
        try:
            key = self._keys.begin()
        except GpupoolError as error:
            self._log.error(
                "the node's next key cannot be saved; its old one stays", reason=str(error)
            )
            return
        await self._ask(dealer, Rekey(number=self._next(), key=key.public))
        self._keys.taken()
        self._log.info("this node has another key", public=key.public)
        raise _Away("the manager knows the node's new key; joining with it")

    def _join(self) -> Join:
        join = Join(
            number=self._next(),
            node=self._member.node,
            token=self._manager_keys.token.secret,
            report=self._make_report(),
            challenge=new_challenge() if self._manager_keys.to_prove else "",
        )
        self._unproven = join if join.challenge else None
        return join

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _ask(
        self, dealer: zmq.asyncio.Socket, message: Join | Again | Beat | Rekey | Leave
    ) -> Heard:
        """Send and wait for the answer; _Away if none comes or it is a no."""
        answer: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        self._waiting[message.number] = answer
        self._sent[message.number] = self._member.clock()
        try:
            async with asyncio.timeout(self._answer):
                await self._send(dealer, message)
                return await answer
        except TimeoutError:
            raise _Away(f"the manager did not answer within {self._answer:g} s") from None
        finally:
            self._waiting.pop(message.number, None)
            self._sent.pop(message.number, None)

    async def _send(self, dealer: zmq.asyncio.Socket, message: Message) -> None:
        sending: Awaitable[object] = dealer.send(encode(message))
        await sending

    # What is heard -----------------------------------------------------------------------

    async def _read(self, dealer: zmq.asyncio.Socket) -> None:
        while True:
            frames = await dealer.recv_multipart()
            try:
                if len(frames) != 1:
                    raise ProtocolError(f"a message is one frame, not {len(frames)}")
                message = decode_from_manager(frames[0])
            except ProtocolError as error:
                raise _Unwanted(f"the manager's answer cannot be read: {error}") from None
            if isinstance(message, Refused):
                self._hear_no(message)
            elif self._is_proven(message):
                self._hear(message)
                await self._confirm(dealer, message)

    async def _confirm(self, dealer: zmq.asyncio.Socket, told: Told) -> None:
        """Say which orders hold here now: a client waits for that."""
        for command in told.orders.commands:
            if isinstance(command, Apply):
                await self._send(
                    dealer,
                    Applied(
                        generation=command.generation,
                        keys=self._member.key_ids,
                        manager_key=self._manager_keys.newest,
                        changes=self._member.changes,
                    ),
                )

    def _is_proven(self, told: Told) -> bool:
        """Whether it may be taken: nothing is from who has the manager's old key alone. _Unwanted.

        What is said unasked before the answer is in that, too.
        """
        join = self._unproven
        if join is None or told.number != join.number:
            return join is None
        keys, ours = self._manager_keys, self._keys.in_use
        if not is_proof(told.proof, ours.secret, keys.to_prove, join.challenge):
            keys.refused()
            raise _Unwanted(
                "the manager there does not have the next key that this pool's manager has told"
                " of; if that was restored from an old copy, give this node a new token:"
                f" {self._way_back}"
            )
        self._unproven = None
        return True

    @property
    def _way_back(self) -> str:
        return f"gpupool node join --name {self._member.node}"

    def _hear_no(self, refused: Refused) -> None:
        if refused.code == "unknown-node":
            raise _Away("the manager restarted, or the node was removed")
        answer = self._waiting.get(refused.number)
        if answer is None or answer.done():
            self._log.warning("the manager refused", code=refused.code, reason=refused.message)
            return
        kind = _KINDS.get(refused.code, _Unwanted)
        answer.set_exception(kind(f"the manager refused ({refused.code}): {refused.message}"))

    def _hear(self, told: Told) -> None:
        """Obey at once, in the order in which it came; then let who waits for it go on."""
        now = self._member.clock()
        sent = self._sent.get(told.number)
        if sent is not None:
            self._set_clock(told, sent, now)
        wants_report = self._member.apply(told)
        self._learn_key(told)
        wants_key = self._wants_key(told)
        answer = self._waiting.get(told.number)
        if answer is not None and not answer.done():
            answer.set_result(Heard(told.orders.next_heartbeat, wants_report, wants_key))
        elif wants_report or wants_key:
            self.wake()  # the next heartbeat is answered the same way

    def _learn_key(self, told: Told) -> None:
        for command in told.orders.commands:
            if isinstance(command, Apply):
                try:
                    self._manager_keys.announced(command.manager_key)
                except GpupoolError as error:
                    self._log.error("the manager's next key cannot be saved", reason=str(error))

    def _wants_key(self, told: Told) -> bool:
        """Whether the key in use is to be replaced; an order about another one is an old one."""
        keys = [each.key for each in told.orders.commands if isinstance(each, RollKey)]
        return self._keys.in_use.public in keys

    def _set_clock(self, told: Told, sent: float, now: float) -> None:
        # The shorter the round trip, the less can be wrong about it; and clocks drift.
        trip = now - sent
        if 0 <= trip <= 1.5 * self._best_trip + 0.01:
            self._best_trip = min(trip, self._best_trip)
            self._member.set_clock(told.now - (now + sent) / 2)
