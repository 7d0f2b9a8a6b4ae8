"""Every operation of the spec with handles that are live, dead, of another kind or session, and
with numbers at the edges: the worker answers with a CUDA error or closes the session."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable

import pytest

from harness import PoolServer, wait_until
from peer_client import Worker, worker_of
from raw_client import HEADER, WAITED, handle
from spec_messages import KINDS, WIRE, Choose, Parameter, message
from test_attacks_handles import (
    FUNCTION,
    KERNEL,
    KIND_EXEC,
    KIND_GRAPH,
    KIND_POOL,
    LIBRARY,
    MODULE,
    get_function,
    get_kernel,
    load_library,
    load_module,
    told,
)

MakeServer = Callable[..., PoolServer]

#: They begin or end a session; they block its streams for ever.
OTHERS = {"gp_hello", "gp_goodbye"}
BLOCKING = {
    "gp_host_function",
    "gp_peer_send",
    "gp_peer_recv",
    "cuStreamWaitValue32_v2",
    "cuStreamWaitValue64_v2",
}
#: Messages of each operation; sessions of a mixture, and messages in each.
ROUNDS, MIXTURES, MIXED = 7, 8, 80
EDGES = (
    0,
    1,
    2,
    3,
    16,
    4096,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    1 << 63,
    (1 << 64) - 1,
)
DEAD = 77  # the index of handles that were live once


class Objects:
    """One of each kind, in one session."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        assert load_module(worker) == load_library(worker) == 0
        assert get_function(worker) == get_kernel(worker) == 0
        self.live = {kind: handle(number, 1) for kind, number in KINDS.items()}
        self.live["module"], self.live["library"] = MODULE, LIBRARY
        self.live["stream"] = worker.stream()
        assert worker.result("cuEventCreate", struct.pack("<QI4x", self.live["event"], 0)) == 0
        self._graph()
        for name, kind in (("stream", 0), ("event", 0)):
            dead = handle(KINDS[name], DEAD)
            make = {"stream": "cuStreamCreate", "event": "cuEventCreate"}[name]
            end = {"stream": "cuStreamDestroy_v2", "event": "cuEventDestroy_v2"}[name]
            assert worker.result(make, struct.pack("<QI4x", dead, kind)) == 0
            assert told(worker, end, dead) == 0
        pool = struct.pack("<Qi4x", handle(KIND_POOL, 1), 0)
        assert worker.result("cuDeviceGetDefaultMemPool", pool) == 0
        prop = struct.pack("<IIIi16x", 1, 0, 1, 0)
        body = struct.pack("<QQ", self.live["allocation"], 2 << 20) + prop + bytes(8)
        assert worker.result("cuMemCreate", body) == 0
        self.memory = worker.allocate(1 << 16)
        self.new = 100

    def _graph(self) -> None:
        worker, stream = self.worker, self.live["stream"]
        assert worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", stream, 2)) == 0
        at = worker.allocate(4096)
        assert worker.result("cuMemsetD8Async", struct.pack("<QB7xQQ", at, 1, 16, stream)) == 0
        graph = handle(KIND_GRAPH, 1)
        assert told(worker, "cuStreamEndCapture", stream, graph) == 0
        body = struct.pack("<QQQ", handle(KIND_EXEC, 1), graph, 0)
        assert worker.result("cuGraphInstantiateWithFlags", body) == 0
        reply = worker.call("gp_graph_nodes", struct.pack("<QII", graph, 0, 16))
        (self.live["graph_node"],) = struct.unpack_from("<Q", reply, 24)

    def named(self, kind: str, noise: random.Random) -> int:
        """A handle where one of this kind is wanted."""
        own = self.live[kind]
        wrong = self.live[noise.choice(list(KINDS))]
        if noise.randrange(2):
            return own
        return noise.choice(
            (
                wrong,
                0,
                1,
                handle(KINDS[kind], DEAD),
                own ^ 1 << 32,
                own ^ 1 << 51,
                own | 1 << 50,
                own + 16,
                own | 3,
                noise.getrandbits(64),
                noise.choice((FUNCTION, KERNEL)),
            )
        )

    def choose(self, noise: random.Random) -> Choose:
        def value(param: Parameter, size: int) -> int:
            if param.has("create"):
                self.new += 1
                fresh = handle(KINDS[param.handle or "stream"], self.new)
                return fresh if noise.randrange(40) else self.named(param.handle or "stream", noise)
            if param.handle:
                return self.named(param.handle, noise)
            if size == 8 and noise.randrange(2):
                return self.memory + noise.choice((0, 0, 1, 4096, (1 << 16) - 1, 1 << 16))
            return noise.choice(EDGES[: 6 if noise.randrange(3) else None])

        return value


class Attack:
    """Sessions in which messages are sent, one after the other, and how they end."""

    def __init__(self, server: PoolServer) -> None:
        self.server = server
        self.objects: Objects | None = None
        self.results: Counter[str] = Counter()

    def begin(self) -> Objects:
        if self.objects is None:
            self.objects = Objects(worker_of(self.server))
        return self.objects

    def end(self) -> None:
        """The client hangs up, or the worker has: it ends by itself and not by a signal."""
        if self.objects is None:
            return
        session = self.objects.worker.session["session"]
        self.objects.worker.__exit__(None, None, None)
        self.objects = None
        wait_until(lambda: self._reason(session) != "", "the worker ended")
        assert self._reason(session) == "exit code 0", self.server.log.read_text()[-4000:]

    def _reason(self, session: str) -> str:
        for line in self.server.log.read_text().splitlines():
            if "session ended" in line and session in line and "reason=" in line:
                match = re.search(r"reason='?([^'=]*)'?( \w+=|$)", line)
                return match[1] if match else line
        return ""

    def ask(self, number: int, body: bytes) -> None:
        """Send one message and take its answer, unless there is none any more."""
        worker = self.begin().worker
        sent = worker.message(number, body)
        worker.send([sent])
        sequence = HEADER.unpack_from(sent)[3]
        while True:
            for reply in worker._replies:
                if HEADER.unpack_from(reply)[2] & 1 and HEADER.unpack_from(reply)[3] == sequence:
                    worker._replies.clear()
                    (result,) = struct.unpack_from("<i", reply, HEADER.size)
                    assert 0 <= result <= 999, result
                    self.results["ok" if result == 0 else "error"] += 1
                    return
            if worker.down.poll(100):
                worker._take(worker.down.recv())
            elif self._reason(worker.session["session"]):
                self.results["closed"] += 1
                self.end()
                return


@pytest.mark.parametrize("part", range(4))
def test_every_operation(make_server: MakeServer, part: int) -> None:
    attack = Attack(make_server())
    noise = random.Random(part)
    for function in WIRE[part::4]:
        if function.name in OTHERS | BLOCKING or function.mode == "notify":
            continue
        before = attack.results.total()
        for _ in range(ROUNDS):
            objects = attack.begin()
            attack.ask(function.id, message(function, objects.choose(noise), noise))
        assert attack.results.total() == before + ROUNDS
        attack.end()
    assert attack.results["ok"] and attack.results["error"]


@pytest.mark.parametrize("part", range(4))
def test_operations_behind_one_another(make_server: MakeServer, part: int) -> None:
    """Also those that block a stream. The client hangs up whatever has become of it."""
    attack = Attack(make_server())
    noise = random.Random(100 + part)
    chosen = [f for f in WIRE if f.name not in OTHERS and f.mode != "notify"]
    for _ in range(MIXTURES):
        objects = attack.begin()
        choose = objects.choose(noise)
        functions = noise.choices(chosen, k=MIXED)
        objects.worker.send(
            objects.worker.message(f.id, message(f, choose, noise), noise.choice((0, WAITED)))
            for f in functions
        )
        objects.worker.answers(1.0)
        attack.end()
