"""What a step of a user's program costs natively and through the pool, on a real GPU.

    python tests/gpu/steps.py --out DIR [--only PROGRAM ...] [--ways native shm zmq] [--turns N]

The ways take turns, so that a machine whose speed drifts slows all of them. Each row says the
median step of each way and its ratio to native (above 1: faster than local), and the round trips
of a step. DIR/steps.json has everything. The exit code is 1 if a result differs from the native
one or a program fails; times are figures to read, not conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from harness import PoolServer, run_program  # noqa: E402

#: Of step_programs.py, with the steps of the shorter and of the longer run.
PROGRAMS = {
    "resident": (20, 60),
    "resident_read": (20, 60),
    "pageable": (20, 60),
    "pinned": (20, 60),
    "llama": (16, 48),
    "resident_parts": (20, 60),
    "pageable_parts": (20, 60),
    "pinned_parts": (20, 60),
}
DEFAULT = ("resident", "resident_read", "pageable", "pinned", "llama")
LIMIT = 240.0

Report = dict[str, Any]


def once(server: PoolServer, python: str, way: str, name: str, steps: int) -> Report:
    """One run: what the program reported, and `trips`, its round trips in all."""
    command = [python, str(HERE / "step_programs.py"), name, "--steps", str(steps)]
    if way == "native":
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        result = run_program(command, env, LIMIT)
    else:
        result = server.run(command, way, LIMIT)
    if result.returncode != 0:
        raise RuntimeError(f"{name} {way}: {result.explain()[-1500:]}")
    report: Report = json.loads(result.stdout.strip().splitlines()[-1])
    return {**report, "trips": int(result.stats.get("round_trips", 0))}


def measure(server: PoolServer, python: str, ways: list[str], name: str, turns: int) -> Report:
    few, many = PROGRAMS[name]
    runs: dict[str, list[Report]] = {way: [] for way in ways}
    trips: dict[str, float] = {}
    for turn in range(turns):
        for way in ways:
            if turn == 0 and way != "native":
                trips[way] = -once(server, python, way, name, few)["trips"]
            runs[way].append(once(server, python, way, name, many))
    for way in trips:
        trips[way] = round((trips[way] + runs[way][0]["trips"]) / (many - few), 2)
    step = {way: statistics.median(run["step"] for run in runs[way]) for way in ways}
    same = all(run["losses"] == runs[ways[0]][0]["losses"] for way in ways for run in runs[way])
    return {"name": name, "step_ms": step, "trips": trips, "same": same, "runs": runs}


def show(row: Report) -> str:
    step = row["step_ms"]
    cells = []
    for way, value in step.items():
        cell = f"{way} {value:.2f} ms"
        if way != "native" and "native" in step:
            cell += f" ({step['native'] / value:.2f}, {row['trips'][way]:g} trips)"
        cells.append(cell)
    return f"{row['name']:14} {'  '.join(cells)}{'' if row['same'] else '  RESULTS DIFFER'}"


def parts(row: Report) -> list[str]:
    names = [key for key in next(iter(row["runs"].values()))[0] if "." in key]
    lines = []
    for name in names:
        values = [
            f"{way} {statistics.median(run[name] for run in runs):8.2f}"
            for way, runs in row["runs"].items()
        ]
        lines.append(f"    {name:16} {'  '.join(values)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(DEFAULT))
    parser.add_argument("--ways", nargs="+", choices=("native", "shm", "tcp", "zmq"), default=None)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    given = parser.parse_args()
    ways = given.ways or ["native", "shm", "tcp", "zmq"]
    given.out.mkdir(parents=True, exist_ok=True)
    server = PoolServer(driver="cuda", **{"max-sessions": "16"})
    rows: list[Report] = []
    failed = False
    try:
        server.start()
        for name in given.only:
            began = time.monotonic()
            try:
                row = measure(server, given.python, ways, name, given.turns)
            except (RuntimeError, ValueError) as error:
                print(f"{name}: {error}", flush=True)
                failed = True
                continue
            rows.append(row)
            failed = failed or not row["same"]
            print(show(row), f"[{time.monotonic() - began:.0f} s]", flush=True)
            print("\n".join(parts(row)), end="\n" if parts(row) else "", flush=True)
            (given.out / "steps.json").write_text(json.dumps(rows, indent=1))
    finally:
        (given.out / "steps-server.log").write_text(
            server.log.read_text(errors="replace") if server.log.exists() else ""
        )
        server.close()
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
