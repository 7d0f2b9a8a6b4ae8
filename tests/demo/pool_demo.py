"""The second half of ``make demo``: a manager, three hosts, two tenants, all on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from console_demo import show_console
from showing import fail, run, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from ready_process import Daemon, start_ready  # noqa: E402

GPUPOOL = [sys.executable, "-m", "gpupool"]
RIGHT = "1048576 of 1048576 results are right"
PATIENCE = 120.0


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in socks]


class Demo:
    """A pool in a folder, with its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Daemon] = []
        rest, nodes, *self.fronts = free_ports(5)
        self.url, self.nodes = f"http://127.0.0.1:{rest}", f"tcp://127.0.0.1:{nodes}"

    def start(self, title: str, module: str, *flags: str) -> None:
        """A daemon, until it says that it is ready."""
        print(f"\n{title}\n  $ {module.replace('_', '-')} {' '.join(flags)}", flush=True)
        log = self.folder / f"log-{len(self.processes)}"
        try:
            process, address = start_ready([sys.executable, "-m", module, *flags], log, PATIENCE)
        except AssertionError as error:
            fail(str(error))
        self.processes.append(process)
        print(f"    ready at {address.partition('?')[0]}")

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # Who asks ------------------------------------------------------------------------------

    def environment(self, who: str) -> dict[str, str]:
        """Of the operator or a tenant: everything else is as it was."""
        token = (self.folder / f"{who}.token").read_text().strip()
        rest = {k: v for k, v in os.environ.items() if k not in ("GPUPOOL_SERVER", "COLUMNS")}
        return {**rest, "GPUPOOL_POOL": self.url, "GPUPOOL_POOL_TOKEN": token}

    def show(self, who: str, title: str, *args: str) -> subprocess.CompletedProcess[str]:
        return show(title, [*GPUPOOL, *args], self.environment(who), f"{who}$ gpupool")

    def must(self, who: str, title: str, *args: str) -> str:
        done = self.show(who, title, *args)
        if done.returncode != 0:
            fail(f"gpupool {args[0]} failed with the exit code {done.returncode}")
        return done.stdout

    def ask(self, who: str, *args: str) -> str:
        """Without showing it."""
        done = run([*GPUPOOL, *args], self.environment(who))
        if done.returncode != 0:
            fail(f"gpupool {' '.join(args)}: {done.stdout}")
        return done.stdout

    def wait_for_hosts(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(json.loads(self.ask("operator", "node", "list", "--json"))) < count:
            if time.monotonic() > deadline:
                fail(f"not all of {count} hosts have joined within {PATIENCE:g} s")
            time.sleep(0.2)


@contextlib.contextmanager
def _demo() -> Iterator[Demo]:
    folder = Path(tempfile.mkdtemp(prefix="gpd-", dir="/tmp"))  # short: Unix sockets
    demo = Demo(folder)
    try:
        yield demo
    finally:
        demo.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run_pool(program: Path, picture: Path, stay: bool) -> None:
    """Everything about the pool; ``program`` uses two GPUs. ``stay``: until somebody has looked."""
    with _demo() as demo:
        _start_manager(demo)
        _join_hosts(demo)
        _make_tenants(demo)
        _use(demo, program)
        show_console(demo.url, demo.folder / "operator.token", picture, stay)


def _start_manager(demo: Demo) -> None:
    state = demo.folder / "state"
    demo.start(
        "A pool: its manager, with its database (SQLite, in a fresh folder)",
        "gpupool_manager",
        *("--listen", demo.url, "--nodes", demo.nodes, "--state-dir", str(state)),
    )
    shutil.copy(state / "admin.token", demo.folder / "operator.token")


def _join_hosts(demo: Demo) -> None:
    for name, port in zip(("berlin", "paris", "oslo"), demo.fronts, strict=True):
        token = demo.folder / f"{name}.join"
        args = ("node", "join", "--name", name, "--out", str(token))
        demo.must("operator", f"A token with which '{name}' joins", *args)
        demo.start(
            f"The host '{name}', with two soft GPUs",
            "gpupool_server",
            *("--listen", f"tcp://127.0.0.1:{port}", "--curve", "--pool", demo.nodes),
            *("--advertise", f"tcp://127.0.0.1:{port}"),  # all on this machine
            *("--join-token", str(token), "--node-name", name),
            *("--driver", "soft", "--soft-gpus", "2", "--on-stop", "end"),
            *("--data-listen", "tcp://127.0.0.1:*", "--run-dir", str(demo.folder / name)),
            *("--state-dir", str(demo.folder / f"{name}-state")),
        )
    demo.wait_for_hosts(3)
    demo.must("operator", "All three have joined", "node", "list")


def _make_tenants(demo: Demo) -> None:
    for name, gpus, memory in (("red", "3", "2GiB"), ("blue", "2", "1GiB")):
        quota = ("--gpus", gpus, "--memory", memory)
        out = str(demo.folder / f"{name}.token")
        args = ("tenant", "create", name, *quota, "--token-out", out)
        demo.must("operator", f"A tenant '{name}' with a quota", *args)


def _use(demo: Demo, program: Path) -> None:
    blue = ("--gpus", "2", "--same-host", "--memory", "512MiB", "--share", "30%")
    demo.must("blue", "Blue takes a part of two GPUs of one host", "lease", "create", *blue)
    half = ("--memory", "512MiB", "--share", "50%")
    command = ("run", "--gpus", "2", "--spread", *half, "--", str(program))
    title = "Red runs a program on halves of two GPUs, each in another host, as devices 0 and 1"
    if RIGHT not in demo.must("red", title, *command):
        fail("the program did not compute the right results over two hosts")
    demo.must("red", "Its lease has ended with it", "lease", "list", "--all")
    over = demo.show(
        "red", "Red asks for more than its quota", "run", "--gpus", "4", *half, "--", "true"
    )
    numbers = ("over the quota", "4 ", "quota 3")
    if over.returncode != 77 or not all(text in over.stdout for text in numbers):
        fail("a request over the quota was not refused with the numbers")
    pool = demo.must("operator", "The pool, with what Blue has of it", "inspect")
    if "1/6 (17%) GiB" not in pool:
        fail("the pool is not as it must be: 2 GPUs with 512 MiB each are Blue's, of 6 with 1 GiB")
