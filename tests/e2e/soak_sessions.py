"""Ten thousand short sessions, and what the server's processes hold: `make soak-sessions`.

A client has one session at each server until it ends, so each session is a process of
programs/driver_short.c. What stays are the server, its arbiters and its relays: none of them may
hold more after the last session than after the first thousand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gpupool_server.process_tree import owner_of
from growth import resident
from harness import PoolServer, wait_until
from test_leaks import GROWTH_KIB, Levels, run_sessions
from toolchain import Toolchain

#: The first sessions fill tables and pools for good; later ones come in rounds of so many.
ROUND = 1000


@dataclass(frozen=True)
class Staying:
    """A process of the server that outlives sessions."""

    pid: int
    name: str


def staying(server: PoolServer) -> list[Staying]:
    """The server and all that it has started, while no session runs."""
    assert server.pid is not None
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and owner_of(int(entry.name), [server.pid]) == server.pid:
            found.append(Staying(int(entry.name), name_of(entry)))
    return sorted(found, key=lambda process: process.pid)


def name_of(process: Path) -> str:
    """The program, or the module that Python runs."""
    try:
        words = (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return "ended"
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name


def kibibytes(processes: list[Staying]) -> dict[Staying, int]:
    return {process: resident(process.pid) >> 10 for process in processes}


def show(done: int, held: dict[Staying, int], begun: float) -> None:
    parts = ", ".join(f"{process.name} {kib:,} KiB" for process, kib in held.items())
    print(f"{done:>7,} sessions in {time.monotonic() - begun:,.0f} s: {parts}", flush=True)


def soak(server: PoolServer, binary: Path, sessions: int) -> int:
    """0: as much memory, threads, descriptors and files after all sessions as after a round."""
    begun = time.monotonic()
    run_sessions(server, binary, ROUND)
    wait_until(lambda: Levels(server).idle, "the first round's sessions ended")
    processes, before = staying(server), Levels(server)
    first = kibibytes(processes)
    show(ROUND, first, begun)
    for done in range(2 * ROUND, sessions + 1, ROUND):
        run_sessions(server, binary, ROUND)
        wait_until(lambda: Levels(server).settled(before), "all was as before")
        show(done, kibibytes(processes), begun)
    grown = [kib - first[process] for process, kib in kibibytes(processes).items()]
    more = [process.name for process in staying(server) if process not in processes]
    print(f"so many KiB more than after {ROUND:,}: {grown}; new processes: {more or 'none'}")
    return 1 if more or max(grown) >= GROWTH_KIB else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="in all, in thousands")
    wanted = parser.parse_args()
    if wanted.sessions < 2 * ROUND:
        parser.error(f"fewer than {2 * ROUND} sessions show no growth")
    with tempfile.TemporaryDirectory() as folder:
        binary = Toolchain(Path(folder)).driver_program("driver_short")
        server = PoolServer(**{"soft-gpus": "2", "max-sessions": "32"})
        try:
            server.start()
            return soak(server, binary, wanted.sessions)
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
