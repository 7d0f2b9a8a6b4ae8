"""A server with soft GPUs for the tests, and programs run through it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from gpupool_common.ask import ask_info
from ports import free_port
from ready_process import Daemon, start_ready
from warm_start import run

TOKEN = "token-of-the-end-to-end-tests"

#: How long anything may take before a test says that it hangs. Not a figure of merit.
PATIENCE = 60.0

#: And how long a whole program, which may do much: less than a test may take.
PROGRAM_PATIENCE = 240.0

OURS = "gpupool: "

#: What the servers of the tests have: soft GPUs, or (cuda) the machine's own, for the tests that
#: are marked real_gpu.
DRIVER = os.environ.get("GPUPOOL_TEST_DRIVER", "soft")


@dataclass(frozen=True)
class Result:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str
    stats: dict[str, Any] = field(default_factory=dict)

    def own_lines(self) -> list[str]:
        """What our library said on stderr."""
        return [line for line in self.stderr.splitlines() if line.startswith(OURS)]

    def explain(self) -> str:
        return f"exit code {self.returncode}\n{self.stdout}\n{self.stderr}"


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"in {patience:g} s it never happened that {what}")
        time.sleep(0.02)


def paths_below(folder: Path) -> list[Path]:
    """All that is there. Path.glob fails where a folder goes while it looks, as of a session."""
    found = [(root, name) for root, *names in os.walk(folder) for each in names for name in each]
    return [Path(root, name) for root, name in found]


def alive(pid: int) -> bool:
    """Whether the process runs (one that has ended but was not reaped yet does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _peer_key() -> Path:
    """The key that all servers of a test run have in common."""
    descriptor, name = tempfile.mkstemp(prefix="gpe-peer-", dir="/tmp")
    with os.fdopen(descriptor, "w") as file:
        file.write(os.urandom(32).hex())
    atexit.register(os.unlink, name)
    return Path(name)


PEER_KEY = _peer_key()


class PoolServer:
    """One gpupool-server in a folder of its own; it can be killed and started again."""

    def __init__(self, driver: str = DRIVER, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpe-", dir="/tmp"))  # short: Unix sockets
        self.url = f"tcp://127.0.0.1:{free_port()}"
        #: Where clients ask: with its key, once it has started, if it encrypts.
        self.address = self.url
        self.settings = {
            "driver": driver,
            "data-listen": "tcp://127.0.0.1:*",
            "on-stop": "leave",
            "peer-key": str(PEER_KEY),
            **settings,
        }
        if driver == "cuda":
            self.settings.pop("soft-gpus", None)
        self.home = paths.find_home()
        #: What it is started with, e.g. to be in a network of its own.
        self.prefix: list[str] = []
        self.python = sys.executable
        self.log = self.folder / "server.log"
        self._process: Daemon | None = None

    def start(self) -> None:
        command = [*self.prefix, self.python, "-m", "gpupool_server", "--listen", self.url]
        command += ["--run-dir", str(self.folder / "run")]
        for key, value in self.settings.items():
            command += [f"--{key}", value] if value else [f"--{key}"]
        # A worker that gives its driver a dead handle ends: a real driver would, too.
        env = {"GPUPOOL_SOFT_DEAD": "abort", **os.environ, "GPUPOOL_SERVER_TOKEN": TOKEN}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._process, self.address = start_ready(command, self.log, PATIENCE, env)

    def kill(self, how: signal.Signals = signal.SIGKILL, wait: bool = True) -> None:
        """Send a signal, by default one that ends it."""
        if self._process is not None:
            self._process.send_signal(how)
            if wait:
                self._process.wait(PATIENCE)
                self._process = None

    @property
    def pid(self) -> int | None:
        """Of the server, while it runs."""
        return self._process.pid if self._process is not None else None

    def signal(self, what: signal.Signals) -> None:
        """One that it survives."""
        if self._process is not None:
            self._process.send_signal(what)

    def close(self) -> None:
        """End it and every worker of it."""
        workers = self.worker_pids()
        self.kill()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def worker_pids(self) -> list[int]:
        """The workers that this server's run folder knows and that are alive."""
        pids = []
        for meta in (self.folder / "run" / "sessions").glob("*/meta.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                pids.append(int(json.loads(meta.read_text())["pid"]))
        return [pid for pid in pids if alive(pid)]

    def sessions(self) -> list[dict[str, Any]]:
        """Its sessions, as `gpupool info` shows them."""
        found: list[dict[str, Any]] = ask_info(self.address, TOKEN, PATIENCE)["sessions"]
        return found

    def environment(self, transport: str, **extra: str) -> dict[str, str]:
        env = client_environment(self.home, self.address, TOKEN, transport)
        env.update(extra)
        return env

    def run(
        self,
        command: list[str],
        transport: str = "shm",
        timeout: float = PROGRAM_PATIENCE,
        **extra: str,
    ) -> Result:
        """Run a program to its end; its statistics come with the result."""
        with tempfile.TemporaryDirectory() as scratch:
            stats = Path(scratch) / "stats.json"
            env = self.environment(transport, GPUPOOL_STATS=str(stats), **extra)
            result = run_program(command, env, timeout)
            if stats.exists() and (text := stats.read_text()):
                return Result(result.returncode, result.stdout, result.stderr, json.loads(text))
            return result


def client_environment(home: paths.Home, url: str, token: str, transport: str) -> dict[str, str]:
    """Our library first, and nothing of the caller's own set-up of gpupool."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    rest = env.get("LD_LIBRARY_PATH", "")
    env["LD_LIBRARY_PATH"] = f"{home.lib_path}:{rest}" if rest else str(home.lib_path)
    env.update(GPUPOOL_SERVER=url, GPUPOOL_TOKEN=token)
    if transport:
        env["GPUPOOL_TRANSPORT"] = transport
    return env


def native_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Of a program that runs with the local driver; E2E_NATIVE says so (programs/driver.h)."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")}
    return {**env, "E2E_NATIVE": "1", **extra}


def device_name() -> str:
    """The machine's own first GPU and its driver; nothing where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""


def find_nccl(python: str) -> str:
    """That of the wheel that this Python's PyTorch has; nothing where there is none."""
    code = (
        "import nvidia.nccl, os; print(os.path.join(nvidia.nccl.__path__[0], 'lib/libnccl.so.2'))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run_program(
    command: list[str],
    env: Mapping[str, str] | None = None,
    timeout: float = PROGRAM_PATIENCE,
) -> Result:
    try:
        done = run(command, timeout, env, text=False)
    except subprocess.TimeoutExpired as error:
        said = b"".join(part for part in (error.stdout, error.stderr) if part)
        text = said.decode(errors="replace")
        return Result(124, "", f"{text}\nit was ended: it ran longer than {timeout:g} s")
    return Result(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


class Talk:
    """A program that is spoken to line by line (programs/hold.cu)."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._unread = b""

    def line(self) -> str:
        """Its next line; an assertion if it says nothing."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            assert readable, f"it said nothing for {PATIENCE:g} s; before: {self._unread!r}"
            more = os.read(self.process.stdout.fileno(), 4096)
            assert more, f"it ended: {self.finish().explain()}"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())

    def finish(self) -> Result:
        """Wait for its end, which must come by itself."""
        try:
            out, err = self.process.communicate(timeout=PROGRAM_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"it hangs:\n{out.decode()}\n{err.decode()}") from None
        said = (self._unread + out).decode(errors="replace")
        return Result(self.process.returncode, said, err.decode(errors="replace"))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def skip_unless_open(pid: int | None) -> None:
    """For tests that look at what one of our processes has open: it shows that to root alone."""
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        pytest.skip("needs root: other processes of this user see nothing of gpupool's")
