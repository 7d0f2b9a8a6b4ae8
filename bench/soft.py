"""How fast the soft GPU runs kernels: seconds, and lane-instructions a second, as a table.

    python bench/soft.py BENCH_SOFT [--against BENCH_SOFT] [--threads 1 2] [--rounds 5] [--json]

BENCH_SOFT is the program that a build makes of bench/soft.c (`make bench-soft`). Another build's,
and numbers of threads, take turns with it within each round; a figure is the best of all rounds,
because other programs on the machine only ever add to a time. `--processors` takes the time that
processors spent instead, which a busy machine disturbs least. All must write the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from toolchain import Toolchain  # noqa: E402


@dataclass
class Figure:
    """One kernel, one way."""

    seconds: float
    processors: float
    instructions: int
    digest: str


@dataclass(frozen=True)
class Way:
    """A build's program with so many threads."""

    name: str
    program: Path
    threads: int

    def run(self, ptx: Path, seconds: float) -> dict[str, Figure]:
        environment = os.environ | {"GPUPOOL_SOFT_THREADS": str(self.threads)}
        command = [str(self.program), str(ptx), str(seconds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{self.program}: {done.stderr.strip() or done.returncode}")
        return {name: Figure(**figure) for name, figure in json.loads(done.stdout).items()}


def better(known: Figure, other: Figure) -> Figure:
    return Figure(
        min(known.seconds, other.seconds),
        min(known.processors, other.processors),
        other.instructions,
        known.digest if known.digest == other.digest else "differs from run to run",
    )


def take_turns(
    ways: list[Way], ptx: Path, rounds: int, seconds: float
) -> dict[str, dict[str, Figure]]:
    """kernel -> way -> the best of all rounds."""
    best: dict[str, dict[str, Figure]] = {}
    for _ in range(rounds):
        for way in ways:
            for kernel, figure in way.run(ptx, seconds).items():
                each = best.setdefault(kernel, {})
                each[way.name] = better(each.get(way.name, figure), figure)
    return best


def differing(best: dict[str, dict[str, Figure]]) -> list[str]:
    """Kernels that did not write the same each way."""
    return [name for name, each in best.items() if len({f.digest for f in each.values()}) > 1]


def table(best: dict[str, dict[str, Figure]], ways: list[Way], processors: bool) -> list[str]:
    """Milliseconds, million lane-instructions a second, and how much faster than the first way."""
    head = f"{'kernel':16}" + "".join(f"{w.name + ' ms':>13}{'M/s':>8}" for w in ways)
    lines = [head + "".join(f"{'x':>7}" for _ in ways[1:])]
    for kernel, each in best.items():
        count = each[ways[0].name].instructions
        times = [
            each[way.name].processors if processors else each[way.name].seconds for way in ways
        ]
        cells = "".join(f"{1e3 * t:13.2f}{1e-6 * count / t:8.0f}" for t in times)
        faster = "".join(f"{times[0] / t:7.2f}" for t in times[1:])
        lines.append(f"{kernel:16}{cells}{faster}")
    return lines


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("program", type=Path, help="bench_soft of this build")
    parser.add_argument("--against", type=Path, help="bench_soft of another build")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each kernel of a round")
    parser.add_argument("--processors", action="store_true", help="the time that they spent")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = read_arguments()
    ptx = Toolchain(ROOT / "build" / "bench").ptx_of(HERE / "soft_kernels.cu")
    ways = [Way(f"{n}t", given.program, n) for n in dict.fromkeys(given.threads)]
    if given.against:
        ways.insert(0, Way("other", given.against, 1))
    best = take_turns(ways, ptx, given.rounds, given.seconds)
    if given.json:
        print(json.dumps(best, default=vars, indent=1))
    else:
        print("\n".join(table(best, ways, given.processors)))
    wrong = differing(best)
    for name in wrong:
        print(f"{name}: not the same result each way", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
