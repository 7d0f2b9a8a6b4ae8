"""The two commands as processes, and a front end that says yes to `gpupool run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from gpupool_common import protocol
from gpupool_common.ask import ask
from gpupool_common.paths import Home
from ready_process import start_ready
from server_harness import ROOT, TOKEN, hello_fields, process_lives
from warm_start import run

PYTHONPATH = f"{ROOT / 'pool'}:{ROOT / 'server'}"


def environment(home: Home, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "GPUPOOL_HOME": str(home.root), **more}


def gpupool(home: Home, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "gpupool", *args], 60, environment(home, **env))


class RunningServer:
    """A gpupool-server process that said it is ready."""

    def __init__(self, folder: Path, home: Home, *flags: str, **env: str) -> None:
        self.run_dir = folder / "run"
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "gpupool_server", "--listen", f"ipc://{folder}/front.sock"]
        command += ["--run-dir", str(self.run_dir), "--driver", "soft", "--log-json", *flags]
        variables = environment(home, **(env or {"GPUPOOL_SERVER_TOKEN": TOKEN}))
        self.process, self.url = start_ready(command, self.log, 60, variables)

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def open_session(self) -> int:
        """A new session's worker's pid."""
        session = ask(self.url, "hello", hello_fields()).fields["session"]
        meta = json.loads((self.run_dir / "sessions" / session / "meta.json").read_text())
        return int(meta["pid"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


StartServer = Callable[..., RunningServer]


@pytest.fixture
def start_server(folder: Path, home: Home) -> Iterator[StartServer]:
    servers: list[RunningServer] = []

    def start(*flags: str, **env: str) -> RunningServer:
        servers.append(RunningServer(folder, home, *flags, **env))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    for meta in (folder / "run" / "sessions").glob("*/meta.json"):
        pid = int(json.loads(meta.read_text())["pid"])
        if process_lives(pid):
            os.kill(pid, signal.SIGKILL)


class Front:
    """What `gpupool run` asks before it starts a program: a front end that says yes."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.url = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.says: dict[str, object] = {}
        self.asked: list[str] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while not self.over.is_set():
            if self.socket.poll(50):
                peer, question = self.socket.recv_multipart()[:2]
                self.asked.append(protocol.decode(question).fields["token"])
                told = {"pages": "1", "json": json.dumps(self.says)}
                self.socket.send_multipart([peer, protocol.encode("ok", told)])
        self.socket.close(0)

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        self.context.term()


@pytest.fixture
def front() -> Iterator[Front]:
    found = Front()
    yield found
    found.close()


def parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
