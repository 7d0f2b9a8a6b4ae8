"""One process with GPUs of two servers, held against two GPUs of its own: needs two GPUs.

    python tests/gpu/two_hosts.py --out DIR [--only PROGRAM ...] [--ways shm zmq]

Each server has one GPU, as if it were a host. Every program must print what it prints natively;
what is copied between the GPUs must pass between the workers and not through the client.
The exit code is 1 if any row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from harness import PoolServer  # noqa: E402

#: Of two_hosts_programs.py.
PROGRAMS = ("devices", "copies", "ordering", "training", "split")

#: Bytes that a program copies between the devices, where that is more than all else it sends.
BETWEEN = {"copies": 9 * (512 << 20)}

Report = dict[str, Any]


def run(python: str, name: str, env: dict[str, str]) -> Report:
    env = {**env, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [python, str(HERE / "two_hosts_programs.py"), name]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stdout[-300:]}{done.stderr[-900:]}")
    report: Report = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def gpus() -> int:
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetCount())


def plain(report: Report) -> Report:
    return {key: value for key, value in report.items() if not key.startswith("_")}


def through(servers: list[PoolServer], way: str, stats: Path) -> dict[str, str]:
    env = servers[0].environment(way, GPUPOOL_STATS=str(stats))
    return {**env, "GPUPOOL_SERVER": ",".join(server.address for server in servers)}


def main() -> int:
    parser = argparse.ArgumentParser(description="one process with GPUs of two servers")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--ways", nargs="+", choices=("shm", "tcp", "zmq"), default=["shm", "tcp"])
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", default="cuda", help="of the servers (soft: to try this)")
    given = parser.parse_args()
    if given.driver == "cuda" and (count := gpus()) < 2:
        print(f"skipped: two GPUs are needed, this machine has {count}")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    native = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    servers = [PoolServer(given.driver, devices=index) for index in ("0", "1")]
    rows: list[Report] = []
    try:
        for server in servers:
            server.start()
        for name in given.only:
            local = run(given.python, name, native)
            print(f"{name:10} native {json.dumps(local)[:60]}", flush=True)
            for way in given.ways:
                rows.append(compare(given, servers, name, way, local))
                (given.out / "two_hosts.json").write_text(json.dumps(rows, indent=1))
    finally:
        for place, server in enumerate(servers):
            (given.out / f"two-hosts-{place}.log").write_bytes(server.log.read_bytes())
            server.close()
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


def compare(
    given: argparse.Namespace, servers: list[PoolServer], name: str, way: str, local: Report
) -> Report:
    stats = given.out / f"two-hosts-{name}-{way}-stats.json"
    stats.unlink(missing_ok=True)
    row: Report = {"program": name, "way": way, "native": local}
    try:
        row["remote"] = run(given.python, name, through(servers, way, stats))
        counted = json.loads(stats.read_text())
        moved = counted["bytes_sent"] + counted["bytes_received"]
        row["client_bytes"] = moved
        same = plain(row["remote"]) == plain(local)
        around = name not in BETWEEN or moved < BETWEEN[name]
        row["ok"] = same and around
        row["why"] = f"{moved >> 20} MiB through the client"
        row["why"] += "" if same else ", and the result differs"
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        row["ok"], row["why"] = False, str(error)[:800]
    speeds = {key: v for key, v in row.get("remote", {}).items() if key.startswith("_")}
    print(f"{name:10} {way} {'ok' if row['ok'] else 'NOT'} {row['why']} {speeds or ''}", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
