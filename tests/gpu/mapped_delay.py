"""How long a word takes that host or kernel writes into mapped memory while the other one polls it.

    python tests/gpu/mapped_delay.py [--rounds 1000] [--soft]

Natively and over each transport (bench/visible.c), within a minute. One way is told by two clocks,
whose distance a native run finds before and behind each other; how far these two are apart, it
cannot be told better. The exit code is 1 if a program fails; a figure is for people to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool_common import paths  # noqa: E402
from harness import PoolServer, device_name, native_environment, run_program  # noqa: E402
from toolchain import Toolchain  # noqa: E402

WAYS = ("native", "shm", "tcp", "zmq")
PATIENCE = 30.0

Figures = dict[str, float]


class Machine:
    """The program, and where it runs."""

    def __init__(self, soft: bool, rounds: int, scratch: Path) -> None:
        source = ROOT / "bench" / "visible.c"
        self.program = Toolchain(scratch / "programs").driver_source("visible", source)
        self.rounds = rounds
        self.server = PoolServer("soft" if soft else "cuda")
        self.here = native_environment({})
        if soft:
            (scratch / "libcuda.so.1").symlink_to(self.server.home.part(paths.SOFT_GPU))
            self.here["LD_LIBRARY_PATH"] = str(scratch)

    def run(self, way: str, *offset: str) -> Figures:
        command = [str(self.program), str(self.rounds), *offset]
        if way == "native":
            result = run_program(command, self.here, PATIENCE)
        else:
            result = self.server.run(command, way, PATIENCE)
        if result.returncode != 0:
            raise SystemExit(f"mapped_delay: {way}: {result.explain()}")
        figures: Figures = json.loads(result.stdout.splitlines()[-1])
        return figures


def show(way: str, figures: Figures) -> None:
    cells = [f"{way:8}"]
    for name in ("there", "back", "both"):
        for what in ("median", "p99"):
            cells.append(f"{figures[f'{name}_{what}_us']:12.1f}")
    print("".join(cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000, help="each 1 ms or more, three times")
    parser.add_argument("--soft", action="store_true", help="the soft GPU")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(given.soft, given.rounds, Path(scratch))
        try:
            machine.server.start()
            device = "soft GPU" if given.soft else device_name()
            print(f"{device}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; microseconds")
            heads = ("there median", "p99", "back median", "p99", "both median", "p99")
            print(" " * 8 + "".join(f"{head:>12}" for head in heads))
            apart: list[float] = []
            for way in given.ways:
                before = 0.0 if given.soft else machine.run("native")["offset_ns"]
                show(way, machine.run(way, str(before)))
                after = 0.0 if given.soft else machine.run("native")["offset_ns"]
                apart.append(abs(after - before) / 1e3)
            print(f"the clocks moved by {max(apart):.1f} us at most while a way ran")
        finally:
            machine.server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
