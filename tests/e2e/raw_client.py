"""A client of a worker that says what it likes: over ZeroMQ, without our library.

proto/wire-format.md has the messages, proto/transport/zmq_link.h and batch.h what carries
them.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import subprocess
import sys
import tomllib
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from gpupool_common import paths

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import ids, spec_load  # noqa: E402
from harness import PATIENCE, TOKEN, PoolServer  # noqa: E402

WINDOW_BASE = 1 << 45  # where the devices' addresses are to begin
WAITED = 2  # flag: the sender waits for the reply
BATCH = 0x62617431
DOOR_MAGIC = b"gpupool-door/1".ljust(16, b"\0")
GREETING = struct.Struct("<16sII16s")
HEADER = struct.Struct("<IHHQ")
SPEC = ROOT / "proto" / "spec"

KIND_CONTEXT = 1
KIND_STREAM = 5
KIND_EVENT = 6
KIND_GRAPH = 7
KIND_GRAPH_NODE = 9


def _numbers() -> dict[str, int]:
    numbers: dict[str, int] = {}
    for part in spec_load.files(SPEC):
        for name, entry in tomllib.loads(part.read_text(encoding="utf-8")).items():
            if isinstance(entry, dict) and "id" in entry:
                numbers[name] = int(entry["id"])
    return numbers


#: The operations by name.
NUMBERS = _numbers()

#: What a client says of its operations: numbers and signatures.
OPERATIONS = [f.id << 16 | ids.short(f) for f in spec_load.load(SPEC).wire]


def greeting_of(
    secret: bytes,
    wire: int,
    operations: Sequence[int],
    oldest: int | None = None,
    more: bytes = b"",
) -> bytes:
    """The body of a gp_hello: the protocols and operations of a client that may be another."""
    program = b"raw\0"
    listed = struct.pack(f"<{len(operations)}I", *operations)
    oldest = wire if oldest is None else oldest
    fixed = struct.pack(
        "<IIIIQII", wire, oldest, os.getpid(), 0, WINDOW_BASE, len(operations), len(more)
    )
    fixed += struct.pack("<IIII", len(secret), len(program), len(listed), len(more))
    tails = (secret, program, listed, more)
    return fixed + b"".join(tail + bytes(-len(tail) % 8) for tail in tails)


def handle(kind: int, index: int, generation: int = 0) -> int:
    """A handle as a client would choose it."""
    return kind << 44 | generation << 32 | index << 4


def worker_version(home: paths.Home) -> str:
    """The protocol of the installed worker."""
    said = subprocess.run(
        [str(home.part(paths.WORKER)), "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    return said[said.index("wire") + 1]


def query_of(url: str) -> dict[str, str]:
    """What is behind the ? of an address."""
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))


def key_in(channel: zmq.Socket[bytes], url: str) -> str:
    """Make a socket encrypt if the address has a key; the address without it."""
    endpoint = url.partition("?")[0]
    key = query_of(url).get("key")
    if key:
        public, secret = zmq.curve_keypair()
        channel.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(key))
        channel.setsockopt(zmq.CURVE_PUBLICKEY, public)
        channel.setsockopt(zmq.CURVE_SECRETKEY, secret)
    return endpoint


def ask_for_session(server: PoolServer, token: str = TOKEN, **request: str) -> dict[str, str]:
    """The front end's answer: its fields, and its first word's as 'word'."""
    fields = {"token": token, "wire": worker_version(server.home), "pid": str(os.getpid())}
    fields |= {"program": "raw", "host": "here", "boot-id": "x", **request}
    question = "\n".join(["GPUPOOL/1 hello", *(f"{k}: {v}" for k, v in fields.items()), ""])
    context = zmq.Context()
    asker = context.socket(zmq.DEALER)
    try:
        asker.connect(key_in(asker, server.address))
        asker.send(question.encode())
        assert asker.poll(int(PATIENCE * 1000)), "the front end gave no answer"
        first, *lines = asker.recv_multipart()[-1].decode().splitlines()
    finally:
        context.destroy(linger=0)
    answer = dict(line.split(": ", 1) for line in lines)
    answer["word"] = first.split()[1]
    return answer


def proof(word: bytes, what: str, nonce: bytes, ports: bytes = b"") -> bytes:
    """What only who knows the word of a door can say."""
    text = f"gpupool door {what}".encode().ljust(24, b"\0") + nonce + ports
    return hmac.digest(word, text, "sha256")


class Knocked:
    """A connection to a worker's door that has shown the word, and what it opened."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("?")[0].removeprefix("tcp://").rpartition(":")
        self.host = host.replace("*", "127.0.0.1")
        word, nonce = bytes.fromhex(query_of(url)["door"]), os.urandom(16)
        self._socket = socket.create_connection((self.host, int(port)), PATIENCE)
        self._socket.sendall(DOOR_MAGIC + nonce + proof(word, "knock", nonce))
        answer = b""
        while len(answer) < 64:
            more = self._socket.recv(64 - len(answer))
            if not more:
                raise ConnectionError("the door stays shut")
            answer += more
        assert answer[:16] == DOOR_MAGIC
        assert answer[32:] == proof(word, "answer", nonce, answer[16:20])
        self.ports = struct.unpack(">HH", answer[16:20])
        self.nonce = proof(word, "greeting", nonce)[:16]

    def close(self) -> None:
        """Give up what it opened, if nobody is in."""
        self._socket.close()


class RawClient:
    """Two sockets to one worker."""

    def __init__(self, session: dict[str, str]) -> None:
        self.session = session
        self._door = Knocked(session["zmq"])
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.up = self._context.socket(zmq.PAIR)
        self.down = self._context.socket(zmq.PAIR)
        for channel, port in zip((self.up, self.down), self._door.ports, strict=True):
            key_in(channel, session["zmq"])
            channel.sndtimeo = int(PATIENCE * 1000)  # a worker that reads no more is a failure
            channel.connect(f"tcp://{self._door.host}:{port}")
        self._sequence = 0
        self._replies: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)
        self._door.close()

    def greet(self, patience: float = PATIENCE) -> bool:
        """Whether the worker takes us for its peer."""
        nonce = self._door.nonce
        for channel, is_down in ((self.up, 0), (self.down, 1)):
            channel.send(GREETING.pack(b"gpupool/1", 0, is_down, nonce))
        for channel, is_down in ((self.up, 0), (self.down, 1)):
            if not channel.poll(int(patience * 1000)):
                return False
            answer = GREETING.unpack(channel.recv())
            assert answer == (b"gpupool/1".ljust(16, b"\0"), 1, is_down, nonce)
        return True

    def message(self, op: int, body: bytes = b"", flags: int = WAITED) -> bytes:
        """A well-formed message with any operation and body."""
        body += bytes(-len(body) % 8)
        self._sequence += 1
        return HEADER.pack(HEADER.size + len(body), op, flags, self._sequence) + body

    def send(self, messages: Iterable[bytes]) -> None:
        """Messages, whatever they are, in a well-formed batch."""
        entries = [struct.pack("<II", len(m), BATCH) + m + bytes(-len(m) % 8) for m in messages]
        self.up.send(b"".join(entries))

    def call(self, name: str, body: bytes = b"") -> bytes:
        """Ask and wait for the answer: its body behind the header."""
        message = self.message(NUMBERS[name], body)
        self.send([message])
        return self.reply_to(message)

    def reply_to(self, message: bytes) -> bytes:
        """The answer to a message that was sent: its body behind the header."""
        _, op, _, wanted = HEADER.unpack_from(message)
        while True:
            for reply in self._replies:  # those of others may come first
                _, _, flags, sequence = HEADER.unpack_from(reply)
                if flags & 1 and sequence == wanted:
                    self._replies.remove(reply)
                    return reply[HEADER.size :]
            assert self.down.poll(int(PATIENCE * 1000)), f"no answer to operation {op}"
            self._take(self.down.recv())

    def result(self, name: str, body: bytes = b"") -> int:
        """The CUresult of a call."""
        return int(struct.unpack_from("<i", self.call(name, body))[0])

    def answers(self, patience: float) -> bool:
        """Whether anything at all comes."""
        return bool(self.down.poll(int(patience * 1000)))

    def _take(self, batch: bytes) -> None:
        at = 0
        while at < len(batch):
            size, kind = struct.unpack_from("<II", batch, at)
            assert kind == BATCH
            self._replies.append(batch[at + 8 : at + 8 + size])
            at += 8 + size + -size % 8

    def hello(self, secret: str | None = None) -> bytes:
        """The first message, with the session's secret or another."""
        key = bytes.fromhex(self.session["secret"] if secret is None else secret)
        return self.greeting_body(key)

    def greeting_body(self, secret: bytes) -> bytes:
        return greeting_of(secret, int(self.session["wire"]), OPERATIONS)


def with_context(client: RawClient) -> None:
    """Greet, and make device 0's primary context current, as our library does."""
    assert client.result("gp_hello", client.hello()) == 0
    context = handle(KIND_CONTEXT, 1)
    assert client.result("gp_primary_retain", struct.pack("<QiI", context, 0, 0)) == 0
    assert client.result("gp_context_set", struct.pack("<Q", context)) == 0


def connected(server: PoolServer, **request: Any) -> RawClient:
    """A raw client of a new session, which has not said hello."""
    answer = ask_for_session(server, **request)
    assert answer["word"] == "ok", answer
    answer["wire"] = worker_version(server.home)
    client = RawClient(answer)
    assert client.greet(), "the worker did not answer the greeting"
    return client
