"""A server that is too busy for a question: programs and commands ask again by themselves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from gpupool_common.ask import ask, ask_info
from gpupool_common.errors import TRY_LATER, RefusedError
from harness import TOKEN, PoolServer
from toolchain import Toolchain

BUSY = b"GPUPOOL/1 refused\ncode: busy\nmessage: the server is busy; try again in a second\n"


class BusyFrontEnd:
    """Refuses so many questions, and passes those behind them on to a server."""

    def __init__(self, server: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._server = server
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.refusals = 0
        #: For each question when it came; how many were passed on.
        self.times: list[float] = []
        self.passed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            if self._socket.poll(50):
                who, *rest = self._socket.recv_multipart()
                self.times.append(time.monotonic())
                self._socket.send_multipart([who, *rest[:-1], self._answer(rest[-1])])

    def _answer(self, question: bytes) -> bytes:
        if self.refusals > 0:
            self.refusals -= 1
            return BUSY
        self.passed += 1
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.connect(self._server)
            dealer.send(question)
            return dealer.recv_multipart()[-1]

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def door(server: PoolServer) -> Iterator[BusyFrontEnd]:
    made = BusyFrontEnd(server.url)
    yield made
    made.close()


def test_a_program_comes_again(
    server: PoolServer, door: BusyFrontEnd, toolchain: Toolchain
) -> None:
    door.refusals = 4
    program = [str(toolchain.runtime_program("vector_add"))]
    result = server.run(program, GPUPOOL_SERVER=door.url)
    assert result.returncode == 0, result.explain()
    assert result.own_lines() == []
    assert (door.refusals, door.passed) == (0, 1)


def test_nvml_comes_again(server: PoolServer, door: BusyFrontEnd) -> None:
    door.refusals = 2
    look = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    result = server.run([sys.executable, "-c", look], "", GPUPOOL_SERVER=door.url)
    if "NVML Shared Library Not Found" in result.stderr:
        pytest.skip("this build has no libnvidia-ml.so.1")
    assert (result.returncode, result.stdout) == (0, "2\n"), result.explain()
    assert door.refusals == 0
    assert door.passed >= 1


def test_a_command_comes_again_ever_more_slowly(door: BusyFrontEnd) -> None:
    door.refusals = 4
    assert len(ask_info(door.url, TOKEN, 30.0)["devices"]) == 2
    assert (door.refusals, door.passed) == (0, 1)
    pauses = [after - before for before, after in zip(door.times, door.times[1:], strict=False)]
    assert pauses[3] > 0.2  # half of eight times the first


def test_busy_until_the_end_is_one_line(door: BusyFrontEnd) -> None:
    door.refusals = 1000
    with pytest.raises(RefusedError, match="the server is busy") as caught:
        ask(door.url, "info", {"token": TOKEN}, 0.5)
    assert (caught.value.code, caught.value.exit_code) == ("busy", TRY_LATER)
    assert len(door.times) > 1
    assert door.passed == 0


def test_a_program_that_is_never_let_in(
    server: PoolServer, door: BusyFrontEnd, toolchain: Toolchain
) -> None:
    door.refusals = 1000
    result = server.run([str(toolchain.runtime_program("vector_add"))], GPUPOOL_SERVER=door.url)
    assert result.returncode == 1, result.explain()
    assert "unavailable" in result.stdout
    (line,) = result.own_lines()
    assert "the server is busy; try again" in line
    assert len(door.times) < 40
