"""Which threads long copies keep busy, at both ends: where a copy is slower than what carries it.

    python tests/gpu/copy_threads.py [--soft] [--ways tcp] [--kinds pinned] [--json FILE]

For each way and direction (bench/copies.c) a line with its rate, and one for each thread of the
program and of its worker that had more than a hundredth of the busiest one's time: how much of the
time it ran, how much it waited for a processor, and for each MiB its microseconds in user and
kernel mode and how often it slept. A thread that runs all the time is what a copy is bound by;
where none does, they wait for each other. The exit code is 1 if a program fails; a figure is for
people to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from harness import PoolServer, device_name  # noqa: E402
from toolchain import Toolchain  # noqa: E402

WAYS = ("tcp", "shm", "zmq")
PATIENCE = 30.0
MIB = 1 << 20
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """Of a thread since it began: seconds, and how often it slept; and its name."""

    name: str
    run: float
    waited: float
    user: float
    system: float
    slept: int

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.name,
            self.run - before.run,
            self.waited - before.waited,
            self.user - before.user,
            self.system - before.system,
            self.slept - before.slept,
        )


@dataclass(frozen=True)
class Thread:
    """What a thread spent while copies were made."""

    process: str
    number: int
    spent: Spent


@dataclass(frozen=True)
class Run:
    """Copies of one kind."""

    way: str
    direction: str
    kind: str
    gb_s: float
    seconds: float
    threads: list[Thread]


def threads_of(pid: int) -> Iterator[tuple[int, Spent]]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            run, waited, _ = (int(word) for word in (task / "schedstat").read_text().split())
            stat = (task / "stat").read_text().rpartition(")")[2].split()
            status = (task / "status").read_text()
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        slept = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        user, system = int(stat[11]) * TICK, int(stat[12]) * TICK
        yield int(task.name), Spent(name, run / 1e9, waited / 1e9, user, system, slept)


def look(processes: dict[str, int]) -> dict[tuple[str, int], Spent]:
    return {
        (name, number): spent
        for name, pid in processes.items()
        for number, spent in threads_of(pid)
    }


class Machine:
    """The program, and where it runs."""

    def __init__(self, soft: bool, mib: int, seconds: float, scratch: Path) -> None:
        source = ROOT / "bench" / "copies.c"
        self.program = Toolchain(scratch / "programs").driver_source("copies", source)
        self.mib, self.seconds = mib, seconds
        self.server = PoolServer("soft" if soft else "cuda")

    def run(self, way: str, direction: str, kind: str) -> Run:
        command = [str(self.program), direction, kind, str(self.mib), str(self.seconds)]
        env = self.server.environment(way)
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as program:
            try:
                assert program.stdout is not None
                program.stdout.readline()
                workers = self.server.worker_pids()
                processes = {"program": program.pid}
                processes |= {f"worker {i}": pid for i, pid in enumerate(workers)}
                begin, before = time.monotonic(), look(processes)
                time.sleep(0.8 * self.seconds)
                seconds, after = time.monotonic() - begin, look(processes)
                said, _ = program.communicate(timeout=PATIENCE)
            finally:
                program.kill()
        if program.returncode != 0:
            raise SystemExit(f"copy_threads: {way} {direction} {kind}: the program failed")
        none = Spent("", 0, 0, 0, 0, 0)
        threads = [Thread(*key, spent.since(before.get(key, none))) for key, spent in after.items()]
        return Run(way, direction, kind, float(said), seconds, threads)


def show(run: Run) -> None:
    print(f"{run.way} {run.direction} {run.kind}: {run.gb_s:.2f} GB/s")
    copied = run.gb_s * 1e9 * run.seconds / MIB
    most = max(thread.spent.run for thread in run.threads)
    for thread in run.threads:
        spent = thread.spent
        if spent.run < most / 100:
            continue
        print(
            f"  {thread.process:9} {spent.name:15} {spent.run / run.seconds:4.0%} runs"
            f" {spent.waited / run.seconds:4.0%} waits"
            f" {1e6 * spent.user / copied:5.0f} + {1e6 * spent.system / copied:3.0f} us"
            f" {spent.slept / copied:5.2f} sleeps",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soft", action="store_true", help="the soft GPU")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["tcp"])
    parser.add_argument("--kinds", nargs="+", choices=("pinned", "pageable"), default=["pinned"])
    parser.add_argument("--mib", type=int, default=256, help="of one copy")
    parser.add_argument("--seconds", type=float, default=3, help="of each kind of copy")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything that was seen")
    given = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(given.soft, given.mib, given.seconds, Path(scratch))
        try:
            machine.server.start()
            device = "soft GPU" if given.soft else device_name()
            print(f"{device}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; for each MiB:")
            for way in given.ways:
                for kind in given.kinds:
                    for direction in ("up", "down"):
                        runs.append(machine.run(way, direction, kind))
                        show(runs[-1])
        finally:
            machine.server.close()
    if given.json:
        given.json.write_text(json.dumps([asdict(run) for run in runs]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
