"""One server with two GPUs, held against two GPUs of one's own: needs two GPUs.

    python tests/gpu/two_cards.py --out DIR [--only PROGRAM ...] [--ways shm zmq]

NVML, nvidia-smi, PyTorch and JAX must see both and what lies between them, and print what they
print natively. A program whose framework is not installed is skipped. The exit code is 1 if
any row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from two_cards_programs import PROGRAMS  # noqa: E402
from two_hosts import gpus, plain  # noqa: E402

from harness import PoolServer, Result, run_program  # noqa: E402
from toolchain import Toolchain  # noqa: E402

Row = dict[str, Any]

#: C programs of tests/e2e that need two GPUs: built here, run as they are.
DRIVER_PROGRAMS = ("driver_peers",)
NAMES = (*DRIVER_PROGRAMS, *PROGRAMS)


def command(given: argparse.Namespace, name: str) -> list[str]:
    if name in DRIVER_PROGRAMS:
        return [str(Toolchain(given.out / "programs").driver_program(name))]
    return [given.python, str(HERE / "two_cards_programs.py"), name]


def native_environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    return {**env, "E2E_NATIVE": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def read(result: Result) -> Row:
    """The line that a program ended with; RuntimeError has what it said instead."""
    if result.returncode != 0:
        raise RuntimeError(result.explain()[-900:])
    last = result.stdout.strip().splitlines()[-1]
    found: Row = json.loads(last) if last.startswith("{") else {"said": last}
    return found


def is_missing(result: Result) -> bool:
    """A framework, or nvidia-smi, that this machine has not."""
    return "ModuleNotFoundError" in result.stderr or "'nvidia-smi'" in result.stderr


def compare(
    server: PoolServer, words: list[str], name: str, way: str, local: Row, limit: float
) -> Row:
    row: Row = {"program": name, "way": way, "native": local, "ok": False}
    extra = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        row["remote"] = read(server.run(words, way, limit, **extra))
        row["ok"] = not local or plain(row["remote"]) == plain(local)  # a trial has no native run
        row["why"] = "" if row["ok"] else f"the result differs: {json.dumps(row['remote'])[:600]}"
    except (RuntimeError, ValueError, IndexError) as error:
        row["why"] = str(error)
    return row


def run_all(
    given: argparse.Namespace,
    server: PoolServer,
    command_of: Callable[[argparse.Namespace, str], list[str]] = command,
    record: str = "two_cards.json",
) -> list[Row]:
    """Each program natively and through the server, every way; what came of it is recorded."""
    rows: list[Row] = []
    for name in given.only:
        words = command_of(given, name)
        alone = run_program(words, native_environment(), given.limit)
        if given.driver == "cuda" and (is_missing(alone) or alone.returncode != 0):
            said = (alone.stderr or alone.stdout).strip()
            print(f"{name:13} skipped: fails natively, too: {said[-200:]}")
            continue
        local = read(alone) if given.driver == "cuda" else {}
        for way in given.ways:
            row = compare(server, words, name, way, local, given.limit)
            rows.append(row)
            print(f"{name:13} {way} {'ok' if row['ok'] else 'NOT'} {row['why']}", flush=True)
            (given.out / record).write_text(json.dumps(rows, indent=1))
    return rows


def cards() -> int:
    try:
        return gpus()
    except Exception:  # no driver, no NVML
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="one server with two GPUs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--ways", nargs="+", choices=("shm", "tcp", "zmq"), default=["shm", "tcp"])
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", default="cuda", help="of the server (soft: to try this)")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one program")
    given = parser.parse_args()
    if given.driver == "cuda" and (count := cards()) < 2:
        print(f"two_cards: skipped: two GPUs are needed, this machine has {count}")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    two = {"soft-gpus": "2"} if given.driver == "soft" else {"devices": "0,1"}
    server = PoolServer(given.driver, **two)
    try:
        server.start()
        rows = run_all(given, server)
    finally:
        (given.out / "two-cards-server.log").write_bytes(server.log.read_bytes())
        server.close()
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
