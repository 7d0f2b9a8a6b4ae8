"""A node that is only a report: it joins over the link, as a server does, and serves nothing."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import zmq
from zmq.utils import z85

from gpupool_common import protocol
from gpupool_common.node_protocol import (
    Again,
    Applied,
    Apply,
    Beat,
    GrantChange,
    Heartbeat,
    Join,
    Refused,
    Report,
    SendReport,
    Told,
    decode_from_manager,
    encode,
)
from manager_rest import bearer

INFO = protocol.encode("ok", {"pages": "1", "json": "{}"})
PATIENCE_MS = 30_000
BEAT_MS = 300


class FakeNode:
    """Stays in the pool until :meth:`close`."""

    def __init__(self, url: str, secret: str, name: str, report: Report) -> None:
        #: Whether it makes changes of leases' limits.
        self.obedient = True
        token, _, key = secret.partition(".")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(key))
        public, own = map(z85.decode, zmq.curve_keypair())
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, own)
        self._socket.connect(url)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._join = Join(number=1, node=name, token=token, report=report)
        self._applied = ""
        self._socket.send(encode(self._join))
        assert self._socket.poll(PATIENCE_MS), "the manager does not answer a join"
        answer = decode_from_manager(self._socket.recv())
        assert not isinstance(answer, Refused), answer
        self._obey(answer)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(BEAT_MS):
                beat = Beat(number=2, heartbeat=Heartbeat(applied=self._applied))
                self._socket.send(encode(beat))
                continue
            answer = decode_from_manager(self._socket.recv())
            if isinstance(answer, Told):
                self._obey(answer)
            elif answer.code == "unknown-node":  # another manager
                self._socket.send(encode(self._join))
            elif answer.code == "bad-token":  # it was removed: a server asks ever more rarely
                return

    def _obey(self, told: Told) -> None:
        for command in told.orders.commands:
            if isinstance(command, Apply):
                self._applied = command.generation
                made = [
                    GrantChange(lease=grant.lease, gpu=grant.gpu, number=grant.number)
                    for grant in command.grants
                    if grant.number and self.obedient
                ]
                made += [
                    GrantChange(lease=each.lease, gpu=each.gpu, number=each.number)
                    for each in command.leaving
                    if self.obedient
                ]
                applied = Applied(generation=command.generation, changes=made)
                self._socket.send(encode(applied))
            elif isinstance(command, SendReport):  # it was thought to be lost
                self._socket.send(encode(Again(number=3, report=self._join.report)))

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        self._context.destroy(linger=0)


class FakeServer:
    """A server's front end that has one answer to all that is asked."""

    def __init__(self, curve: bool = False, answer: bytes = INFO) -> None:
        self.answer = answer
        self.asked = 0
        self.key = ""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        if curve:
            public, secret = map(z85.decode, zmq.curve_keypair())
            self.key = public.hex()
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._socket.bind("tcp://127.0.0.1:*")
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(50):
                asker, *_ = self._socket.recv_multipart()
                self.asked += 1
                self._socket.send_multipart([asker, self.answer])

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(10)
            self._context.destroy(linger=0)


def join(url: str, admin: str, name: str, report: Report, **token: Any) -> FakeNode:
    """A node of the manager whose REST API is at ``url``."""
    made = httpx.post(
        f"{url}/v1/tokens",
        json={"scope": "node", "node": name, **token},
        headers=bearer(admin),
        timeout=30,
        trust_env=False,
    )
    assert made.is_success, made.text
    return FakeNode(made.json()["nodes"], made.json()["secret"], name, report)
