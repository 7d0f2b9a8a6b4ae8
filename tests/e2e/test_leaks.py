"""A thousand short sessions leave nothing behind: neither in the server nor beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from harness import PATIENCE, PoolServer, paths_below, skip_unless_open, wait_until
from toolchain import Toolchain

SESSIONS = 1000
#: What the first sessions make the server keep for good: modules, buffers, caches.
WARM_UP = 300
AT_A_TIME = 8

#: The rest run in so many parts: a thread or an arena of malloc's that comes late grows one of
#: them, and what sessions leave behind all.
PARTS = 2
#: Sessions of a part that left one small object each behind would leave more than this.
GROWTH_KIB = 1024
#: What asks files and arbiters has a thread more when one of them is slow, and keeps it.
SPARE_THREADS = 16


class Levels:
    """What the server holds."""

    def __init__(self, server: PoolServer) -> None:
        skip_unless_open(server.pid)
        process = Path(f"/proc/{server.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").open(encoding="ascii"))
        self.memory_kib = int(status["VmRSS"].split()[0])
        self.threads = int(status["Threads"])
        self.descriptors = len(list((process / "fd").iterdir()))
        self.files = sorted(map(str, paths_below(server.folder / "run")))
        self.workers = server.worker_pids()

    @property
    def idle(self) -> bool:
        """No session is left, nor what is kept of one."""
        return not self.workers and not any("/sessions/" in path for path in self.files)

    def settled(self, before: Levels) -> bool:
        return (
            self.files == before.files
            and not self.workers
            and self.descriptors <= before.descriptors
            and self.threads <= before.threads + SPARE_THREADS
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_kib} KiB, {self.threads} threads, {self.descriptors} descriptors, "
            f"{len(self.workers)} workers, files: {' '.join(self.files)}"
        )


def run_sessions(server: PoolServer, binary: Path, count: int) -> None:
    """As many as the server is requested, some at the same time, over all transports."""

    def one(number: int) -> subprocess.CompletedProcess[str]:
        env = server.environment(("shm", "tcp", "zmq")[number % 3])
        return subprocess.run(
            [str(binary)], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for done in pool.map(one, range(count)):
            assert done.returncode == 0, f"{done.stdout}{done.stderr}{server.log.read_text()}"


@pytest.mark.alone  # it keeps every core busy, and looks at what a server holds when it is idle
@pytest.mark.timeout(600)
def test_a_thousand_sessions_leave_nothing(
    toolchain: Toolchain, make_server: Callable[..., PoolServer]
) -> None:
    binary = toolchain.driver_program("driver_short")
    server = make_server(**{"max-sessions": "32"})
    wait_until(lambda: not Levels(server).workers, "the server was idle")
    idle = Levels(server)
    run_sessions(server, binary, WARM_UP)
    wait_until(lambda: Levels(server).idle, "the first sessions ended")
    wait_until(lambda: Levels(server).descriptors <= idle.descriptors + 8, "they were closed")
    warm = Levels(server)
    memory = [warm.memory_kib]
    for _ in range(PARTS):
        run_sessions(server, binary, (SESSIONS - WARM_UP) // PARTS)
        try:
            wait_until(lambda: Levels(server).settled(warm), "all was as before")
        except AssertionError:
            raise AssertionError(f"before: {warm}\nafter: {Levels(server)}") from None
        memory.append(Levels(server).memory_kib)
    growth = min(after - before for before, after in pairwise(memory))
    assert growth < GROWTH_KIB, f"each part of the sessions left {growth} KiB or more: {memory}"
