"""The process that talks to untrusted clients: one ROUTER socket, and nothing worth taking.

It passes messages between the socket and its owner (relay.py). It knows no token and
holds no state that cannot be lost: if it dies, another takes its place, and connections
wait in the listening socket, which is the owner's, meanwhile.

No ZMTP heartbeats: with those, a finite receive mark and connections that break off, libzmq
4.3.5 ends its process. TCP's keep-alive finds hosts that have vanished.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
from dataclasses import asdict, dataclass

import zmq

from gpupool_common import interrupt, protocol
from gpupool_common.closed_memory import close_memory
from gpupool_common.relay_limits import Budgets, Connections
from gpupool_common.relay_wire import Kind, RecordError, Unpacker, pack

#: Messages taken from the socket before the owner is heard again.
BURST = 64

#: Of connections that could not be made one in so many milliseconds is told.
REFUSED_MS = 5000

#: How long what was said last may take when the owner has gone.
LAST_WORDS_MS = 500

#: Refusals a second to one address that is over its limits, and at once: more are not worth
#: the work.
ANSWER_RATE, ANSWER_BURST = 50.0, 200.0

#: Frames of a message that the owner is given: it takes one, or two.
MOST_FRAMES = 4

#: Descriptors beside those of connections.
OTHER_FILES = 96

_ZAP = "inproc://zeromq.zap.01"
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


@dataclass(frozen=True)
class Config:
    """What the owner wants of the socket."""

    listen: str
    max_message: int
    receive_mark: int
    #: The secret half of the key, in hexadecimal; empty: in clear.
    secret: str = ""
    #: Whether connections are named by their keys (and only those that have one get in).
    name_keys: bool = False
    #: Connections in all, and of one address.
    connections: int = 1024
    connections_of_one: int = 512
    #: Messages a second of one address, and at once; 0: without limit.
    rate: float = 0
    burst: float = 0
    #: Wrong tokens a second of one address, and at once.
    wrong_rate: float = 1
    wrong_burst: float = 60
    #: Bytes that the process may have: libzmq keeps a message until its last frame has come,
    #: which a client need never send. Without any left that connection ends, or the process
    #: does, and another takes its place.
    memory: int = 512 << 20
    #: Whether a message beyond these is answered in the front end's language.
    answers: bool = False

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Config:
        return cls(**json.loads(data))


class OwnerGone(Exception):
    """The owner has ended, and so does this process."""


class RelayProcess:
    """The socket, its monitor, and the owner at the other end of ``owner``."""

    def __init__(self, owner: socket.socket, listener: int) -> None:
        self._owner = owner
        self._listener = listener
        self._unpacker = Unpacker()
        self._context = zmq.Context()

    def run(self) -> None:
        """Serve until the owner has gone, and send what it has said last."""
        try:
            self._serve()
        finally:
            self._context.destroy(linger=LAST_WORDS_MS)

    def _serve(self) -> None:
        config = self._hear_config()
        self._configure(config)
        poller = zmq.Poller()
        for who in (self._owner, self._router, self._monitor):
            poller.register(who, zmq.POLLIN)
        if self._zap is not None:
            poller.register(self._zap, zmq.POLLIN)
        self._say(pack(Kind.READY))
        while True:
            ready = dict(poller.poll())
            if self._owner.fileno() in ready:
                self._hear_owner()
            if self._monitor in ready:
                self._hear_monitor()
            if self._zap is not None and self._zap in ready:
                self._admit(self._zap)
            if self._router in ready:
                self._hear_strangers()

    # The socket --------------------------------------------------------------------------

    def _configure(self, config: Config) -> None:
        self._config = config
        _limit_memory(config.memory)
        self._rate = Budgets(config.rate, config.burst) if config.rate else None
        self._wrong = Budgets(config.wrong_rate, config.wrong_burst)
        self._answers = Budgets(ANSWER_RATE, ANSWER_BURST)
        #: Connections that have shown a right token, oldest first; of no more than there may be.
        self._known: dict[bytes, None] = {}
        most = _limit_files(config.connections)
        self._connections = Connections(most, min(config.connections_of_one, most))
        self._context.set(zmq.MAX_SOCKETS, 64)
        self._zap = self._open_zap() if config.name_keys else None
        self._router = self._context.socket(zmq.ROUTER)
        self._set_options(config)
        self._monitor = self._open_monitor()
        self._router.bind(config.listen)

    def _set_options(self, config: Config) -> None:
        for option, value in (
            (zmq.USE_FD, self._listener),
            (zmq.MAXMSGSIZE, config.max_message),
            (zmq.SNDHWM, 16),  # who does not read its answers loses them, alone
            (zmq.RCVHWM, config.receive_mark),
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.IPV6, int("[" in config.listen)),  # else 127.0.0.1 is ::ffff:127.0.0.1
            (zmq.HANDSHAKE_IVL, 5000),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 20),
            (zmq.TCP_KEEPALIVE_INTVL, 10),
            (zmq.TCP_KEEPALIVE_CNT, 4),
            (zmq.TCP_MAXRT, 60_000),
        ):
            self._router.setsockopt(option, value)
        if config.secret:
            self._router.setsockopt(zmq.CURVE_SERVER, 1)
            self._router.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(config.secret))
        if config.name_keys:
            self._router.setsockopt(zmq.ZAP_DOMAIN, b"gpupool")

    def _open_monitor(self) -> zmq.Socket[bytes]:
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | _FAILED
        self._router.monitor("inproc://monitor", events)
        monitor = self._context.socket(zmq.PAIR)
        monitor.connect("inproc://monitor")
        return monitor

    def _open_zap(self) -> zmq.Socket[bytes]:
        zap = self._context.socket(zmq.REP)
        zap.bind(_ZAP)
        return zap

    def _admit(self, zap: zmq.Socket[bytes]) -> None:
        """ZeroMQ asks who may connect (RFC 27): any key, and it becomes the user's name."""
        frames = zap.recv_multipart()
        number = frames[1] if len(frames) > 1 else b""
        good = len(frames) == 7 and frames[5] == b"CURVE" and len(frames[6]) == 32
        user = frames[6].hex().encode() if good else b""
        verdict = [b"200", b"OK"] if good else [b"400", b"CURVE only"]
        zap.send_multipart([b"1.0", number, *verdict, user, b""])

    # The owner ---------------------------------------------------------------------------

    def _say(self, record: bytes) -> None:
        """Waits while the owner is busy, and so lets clients wait."""
        try:
            self._owner.sendall(record)
        except OSError:
            raise OwnerGone from None

    def _hear(self) -> list[tuple[Kind, list[bytes]]]:
        data = self._owner.recv(1 << 16)
        if not data:
            raise OwnerGone
        return self._unpacker.feed(data)

    def _hear_config(self) -> Config:
        while True:
            for kind, parts in self._hear():
                if kind is Kind.CONFIG and len(parts) == 1:
                    return Config.decode(parts[0])

    def _hear_owner(self) -> None:
        for kind, parts in self._hear():
            if kind is Kind.SEND and len(parts) >= 2:
                self._send(parts)
            elif kind is Kind.WRONG and len(parts) == 2:
                self._wrong.spend(parts[0])
                self._known.pop(parts[1], None)
            elif kind is Kind.KNOWN and len(parts) == 1:
                self._know(parts[0])

    def _know(self, connection: bytes) -> None:
        self._known.pop(connection, None)
        self._known[connection] = None
        if len(self._known) > self._config.connections:
            del self._known[next(iter(self._known))]  # it has gone, or is treated as others are

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._router.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            pass  # it does not read what it is sent
        except zmq.ZMQError:
            self._known.pop(frames[0], None)
            self._say(pack(Kind.GONE, frames[0]))

    # Clients -----------------------------------------------------------------------------

    def _hear_strangers(self) -> None:
        for _ in range(BURST):
            try:
                frames = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            connection, address, user = frames[0].bytes, b"", b""
            if len(frames) > 1:
                address = _property(frames[-1], "Peer-Address")
                user = _property(frames[-1], "User-Id")
            words = self._words(frames[1:])
            if address and not self._may_ask(address, connection):
                self._refuse(connection, address, words)
            else:
                self._say(pack(Kind.MESSAGE, connection, address, user, *words))

    def _words(self, frames: list[zmq.Frame]) -> list[bytes]:
        """What was said. Of more than one message may have the owner learns the frames alone.

        libzmq limits each frame, and no record could hold any number of them.
        """
        said = frames[:MOST_FRAMES]
        if sum(len(frame) for frame in said) > self._config.max_message:
            return [b""] * len(said)
        return [frame.bytes for frame in said]

    def _may_ask(self, address: bytes, connection: bytes) -> bool:
        if connection not in self._known and not self._wrong.left(address):
            return False
        return self._rate is None or self._rate.spend(address)

    def _refuse(self, connection: bytes, address: bytes, words: list[bytes]) -> None:
        """Unread: whoever tries tokens learns nothing, and costs next to nothing."""
        if not self._config.answers or not self._answers.spend(address):
            return
        text = "too much is asked from this client's address; try again in a second"
        delimiter = [b""] if len(words) == 2 and words[0] == b"" else []
        self._send([connection, *delimiter, protocol.refusal("busy", text)])

    def _hear_monitor(self) -> None:
        for _ in range(BURST):
            try:
                frames = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            event = int.from_bytes(frames[0][:2], sys.byteorder)
            value = int.from_bytes(frames[0][2:6], sys.byteorder)
            if event == zmq.EVENT_ACCEPTED:
                self._opened(value)
            elif event == _FAILED:
                self._failed(value)
            else:
                self._connections.closed(value)

    def _opened(self, fd: int) -> None:
        crowded = self._connections.opened(fd)
        if crowded is not None:
            self._tell_refused(crowded, "too many connections are open; the oldest is closed")

    def _failed(self, value: int) -> None:
        self._tell_refused("", _handshake_failure(value))

    def _tell_refused(self, address: str, reason: str) -> None:
        if self._tell.spend(b""):
            self._say(pack(Kind.REFUSED, address.encode(), reason.encode()))

    _tell = Budgets(1000 / REFUSED_MS, 1)


def _limit_files(connections: int) -> int:
    """How many connections there may be; the kernel sees to it.

    Those that have broken off with messages unread are still libzmq's until they are read.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = connections + OTHER_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(16, files - OTHER_FILES)


def _limit_memory(most: int) -> None:
    """What is written to, not addresses that are only reserved."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))


def _property(frame: zmq.Frame, name: str) -> bytes:
    try:
        return str(frame.get(name)).encode()
    except (zmq.ZMQError, UnicodeError):
        return b""  # there is none at ipc://, nor without a key


def _handshake_failure(value: int) -> str:
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return (
            "it does not encrypt; the client's address needs ?key=, see gpupool-server --show-key"
        )
    if value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "the key in the client's address is not this server's"
    return "it is not a client of gpupool"


def main() -> None:
    """The program: two descriptors, the owner's and the listening one's."""
    for number in interrupt.ENDING:  # the owner says when to end
        signal.signal(number, signal.SIG_IGN)
    close_memory()
    owner, listener = (int(text) for text in sys.argv[1:3])
    with socket.socket(fileno=owner) as connection:
        try:
            RelayProcess(connection, listener).run()
        except (OwnerGone, ConnectionError):
            pass
        except (RecordError, zmq.ZMQError, MemoryError) as error:
            why = error if str(error) else type(error).__name__
            sys.exit(f"gpupool-server: the process at the front end: {why}")


if __name__ == "__main__":
    main()
