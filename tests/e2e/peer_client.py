"""Two workers of one client, told by hand to exchange bytes (proto/wire-format.md, "Peers")."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import struct
import time
from typing import Any

from gpupool.admin import Admin
from harness import PATIENCE, PEER_KEY, PoolServer
from raw_client import (
    KIND_CONTEXT,
    NUMBERS,
    WAITED,
    RawClient,
    ask_for_session,
    handle,
    worker_version,
)

CHUNK = 1 << 20
KIND_STREAM = 5
KIND_EVENT = 6
PAIR = b"p" * 16  # a secret of two workers
LEGACY = 1  # the default stream's id
INVALID_VALUE, UNAVAILABLE, NOT_READY, NOT_PERMITTED = 1, 46, 600, 800


class Worker(RawClient):
    """One worker with device 0's context current; keeps the errors that come by themselves."""

    def __init__(self, session: dict[str, str]) -> None:
        super().__init__(session)
        self.errors: list[tuple[str, int]] = []
        self.told_of_errors = 0  # in so many messages
        self.host_calls: list[int] = []
        self._credit = [0, 0]
        self._streams = 1
        self._events = 0

    def begin(self) -> Worker:
        """Greet, make the context, and make it current."""
        assert self.greet(), "the worker did not answer the greeting"
        assert self.result("gp_hello", self.hello()) == 0
        context = handle(KIND_CONTEXT, 1)
        assert self.result("gp_primary_retain", struct.pack("<QiI", context, 0, 0)) == 0
        assert self.result("gp_context_set", struct.pack("<Q", context)) == 0
        return self

    def _take(self, batch: bytes) -> None:
        names = {number: name for name, number in NUMBERS.items()}
        self._credit[0] += len(batch)
        self._credit[1] += 1
        self.down.send(struct.pack("<QQ", *self._credit))
        super()._take(batch)
        for message in list(self._replies):
            op = struct.unpack_from("<H", message, 4)[0]
            if op == NUMBERS["gp_async_error"]:
                of, result, _, count = struct.unpack_from("<IiII", message, 16)
                self.errors += [(names.get(of, "several"), result)] * count
                self.told_of_errors += 1
            elif op == NUMBERS["gp_host_call"]:
                self.host_calls.append(struct.unpack_from("<Q", message, 16)[0])
            else:
                continue
            self._replies.remove(message)

    def tell(self, name: str, body: bytes = b"") -> None:
        """What nobody waits for."""
        self.send([self.message(NUMBERS[name], body, flags=0)])

    def stream(self) -> int:
        """A new stream that the default one does not order."""
        self._streams += 1
        made = handle(KIND_STREAM, self._streams)
        self.tell("cuStreamCreate", struct.pack("<QI4x", made, 1))
        return made

    def allocate(self, size: int) -> int:
        reply = self.call("cuMemAlloc_v2", struct.pack("<Q", size))
        result, address = struct.unpack_from("<i4xQ", reply)
        assert result == 0
        return int(address)

    def write(self, address: int, data: bytes, stream: int = LEGACY) -> None:
        for at in range(0, len(data), CHUNK):
            piece = data[at : at + CHUNK]
            head = struct.pack("<QQII", address + at, stream, len(piece), len(piece))
            self.tell("gp_htod", head + piece + bytes(-len(piece) % 8))

    def read(self, address: int, size: int, stream: int = LEGACY) -> bytes:
        out = b""
        for at in range(0, size, CHUNK):
            length = min(CHUNK, size - at)
            reply = self.call("gp_dtoh", struct.pack("<QQI4x", address + at, stream, length))
            result, _, got = struct.unpack_from("<iII", reply)
            assert (result, got) == (0, length)
            out += reply[16 : 16 + got]
        return out

    def synchronize(self, stream: int = LEGACY) -> int:
        return self.result("cuStreamSynchronize", struct.pack("<Q", stream))

    def busy(self, stream: int) -> bool:
        return self.result("cuStreamQuery", struct.pack("<Q", stream)) == NOT_READY

    def halt(self, stream: int, cookie: int) -> None:
        """The stream stands, once it comes here, until `let_go`."""
        self.tell("gp_host_function", struct.pack("<QQI4x", stream, cookie, 0))

    def let_go(self, cookie: int) -> None:
        until = time.monotonic() + PATIENCE
        while cookie not in self.host_calls:
            assert time.monotonic() < until, "the stream never came to the host function"
            self.busy(LEGACY)
        self.tell("gp_host_done", struct.pack("<Q", cookie))

    def peer_send(
        self, stream: int, tag: int, address: int = 0, size: int = 0, peer: int = 0
    ) -> None:
        body = struct.pack("<QI4xQQQ", stream, peer, tag, address, size)
        self.tell("gp_peer_send", body)

    def peer_recv(
        self, stream: int, tag: int, address: int = 0, size: int = 0, peer: int = 0
    ) -> None:
        body = struct.pack("<QI4xQQQ", stream, peer, tag, address, size)
        self.tell("gp_peer_recv", body)

    def listen(self, secret: bytes, peer: int = 0) -> tuple[int, str]:
        reply = self.call("gp_peer_listen", struct.pack("<II", peer, 16) + secret)
        result, length = struct.unpack_from("<i4xI", reply)
        return int(result), reply[16 : 16 + max(length - 1, 0)].decode()

    def start_connect(self, secret: bytes, url: str, peer: int = 0) -> bytes:
        """Without waiting for its answer, which `reply_to` gives."""
        text = url.encode() + b"\0"
        body = struct.pack("<III4x", peer, 16, len(text)) + secret + text
        message = self.message(NUMBERS["gp_peer_connect"], body, flags=WAITED)
        self.send([message])
        return message

    def connect(self, secret: bytes, url: str, peer: int = 0) -> int:
        reply = self.reply_to(self.start_connect(secret, url, peer))
        return int(struct.unpack_from("<i", reply)[0])

    def wait_for_error(self) -> tuple[str, int]:
        """The next error that came by itself."""
        until = time.monotonic() + PATIENCE
        while not self.errors:
            assert time.monotonic() < until, "no error came"
            self.busy(LEGACY)
        return self.errors.pop(0)


def worker_of(server: PoolServer, **request: Any) -> Worker:
    answer = ask_for_session(server, **request)
    assert answer["word"] == "ok", answer
    answer["wire"] = worker_version(server.home)
    return Worker(answer).begin()


def sealed(
    url: str, secret: bytes = PAIR, key: bytes | None = None, at: float | None = None
) -> str:
    """As a worker seals its address, with the key of the test's servers or another."""
    key = bytes.fromhex(PEER_KEY.read_text()) if key is None else key
    moment = f"{int(time.time() if at is None else at):016x}"
    text = b"gpupool peer address".ljust(24, b"\0") + secret + moment.encode() + url.encode()
    return f"{url}#{moment}.{hmac.new(key, text, hashlib.sha256).hexdigest()}"


def join(a: Worker, b: Worker, peer_a: int = 0, peer_b: int = 0) -> None:
    """`a` listens, `b` connects."""
    secret = os.urandom(16)
    result, url = a.listen(secret, peer_a)
    assert result == 0
    assert b.connect(secret, url, peer_b) == 0


def sessions_like(server: PoolServer, worker: Worker) -> list[Any]:
    """What the server says of a worker's session: nothing when that has ended."""
    status = Admin(server.folder / "run").ask({"do": "status"})
    return [s for s in status["sessions"] if s["session"] == worker.session["session"]]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def assert_works(a: Worker, b: Worker, tag: int, peers: tuple[int, int] = (0, 0)) -> None:
    source, target = a.allocate(64), b.allocate(64)
    a.write(source, noise(64))
    a.peer_send(LEGACY, tag, source, 64, peers[0])
    b.peer_recv(LEGACY, tag, target, 64, peers[1])
    assert b.read(target, 64) == noise(64)
    assert a.synchronize() == 0
    assert a.errors == b.errors == []
