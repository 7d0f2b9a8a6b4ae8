"""PyTorch's data-parallel training by our libnccl.so.2, held against two GPUs of one's own.

    python tests/gpu/nccl.py --out DIR [--ranks 2] [--only PROGRAM ...] [--ways shm tcp hosts]

Losses must be those of a native run; the bandwidth of an all-reduce of 256 MiB is shown beside the
native one, and must be 0.95 of it over shared memory. `scaling` shows what of a rank's own speed is
left when both train. `--only jax`: one process of JAX with both GPUs. `hosts`: two servers, a GPU
each, as if they were two hosts; the bytes of the collectives must not pass the ranks themselves.
`--ranks 1`: a job of one rank on one GPU, whose NCCL connects to itself. With fewer GPUs, or
without PyTorch (for JAX, that), it says `skipped`. The exit code is 1 if any row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from nccl_programs import ALONE, BYTES, PROGRAMS  # noqa: E402
from two_cards import cards, native_environment  # noqa: E402
from two_hosts import plain  # noqa: E402

from gpupool_common import paths  # noqa: E402
from harness import PoolServer, find_nccl  # noqa: E402
from ports import free_port  # noqa: E402

WAYS = ("shm", "tcp", "hosts")
LEAST = 0.95

Row = dict[str, Any]


def run_ranks(given: argparse.Namespace, name: str, envs: list[dict[str, str]]) -> Row:
    """What rank 0 says; RuntimeError has what the ranks said instead."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [given.python, str(HERE / "nccl_programs.py"), name]
    ranks = []
    for rank, env in enumerate(envs):
        own = {**env, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ranks.append(subprocess.Popen(command, env=own, text=True, **pipes))  # type: ignore[call-overload]
    said = []
    for process in ranks:
        try:
            said.append(process.communicate(timeout=given.limit)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate()[0] + "\nit hangs")
    return read(said, [process.returncode for process in ranks])


def read(said: list[str], codes: list[int]) -> Row:
    lines = [line for line in said[0].splitlines() if line.startswith("{")]
    if any(codes) or not lines:
        raise RuntimeError(" | ".join(text[-700:] for text in said))
    found: Row = json.loads(lines[-1])
    return found


def run_torchrun(given: argparse.Namespace, name: str, env: dict[str, str]) -> Row:
    """Or, where one process has all GPUs, without."""
    if name in ALONE:
        return run(given, [given.python, str(HERE / "nccl_programs.py"), name], env)
    command = [given.python, "-m", "torch.distributed.run", "--nproc-per-node", str(given.ranks)]
    command += ["--master-port", str(free_port()), str(HERE / "nccl_programs.py"), name]
    return run(given, command, env)


def run(given: argparse.Namespace, command: list[str], env: dict[str, str]) -> Row:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=given.limit, check=False
    )
    if done.returncode != 0:
        causes = [line for line in done.stderr.splitlines() if "Error" in line or "gpupool" in line]
        raise RuntimeError("\n".join([*causes[:8], done.stderr[-700:]]))
    return read([done.stdout], [0])


def ours(server: PoolServer, way: str) -> dict[str, str]:
    """PyTorch's own NCCL is found by an RPATH: ours is preloaded."""
    env: dict[str, str] = server.environment(way)
    env["LD_PRELOAD"] = str(paths.find_home().root / "lib" / "libnccl.so.2")
    return {**env, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def remote(given: argparse.Namespace, name: str, way: str, servers: list[PoolServer]) -> Row:
    if way == "hosts":
        stats = [given.out / f"nccl-{name}-{rank}-stats.json" for rank in range(len(servers))]
        envs = [
            {**ours(server, "tcp"), "GPUPOOL_STATS": str(path)}
            for server, path in zip(servers, stats, strict=True)
        ]
        row = run_ranks(given, name, envs)
        row["_client_bytes"] = sum(client_bytes(path) for path in stats)
        return row
    return run_torchrun(given, name, ours(servers[0], way))


def client_bytes(stats: Path) -> int:
    """What a rank has sent to its server and received: none of it is a collective's."""
    counted = json.loads(stats.read_text())
    return int(counted["bytes_sent"]) + int(counted["bytes_received"])


def judge(row: Row) -> str:
    """Why it is not as it should be; empty: it is."""
    here, there = row["native"], row["remote"]
    if plain(here) != plain(there):
        return f"the result differs: {plain(there)} and not {plain(here)}"
    ratio = there["_gb_s"] / here["_gb_s"] if "_gb_s" in here else 1.0
    row["ratio"] = ratio
    if row["way"] == "shm" and ratio < LEAST:
        return f"{there['_gb_s']:.1f} GB/s are {ratio:.3f} of {here['_gb_s']:.1f}"
    if row["program"] == "bandwidth" and there.get("_client_bytes", 0) > BYTES:
        return f"{there['_client_bytes']} bytes passed the clients"
    return ""


def compare(given: argparse.Namespace, way: str, native: dict[str, Row]) -> list[Row]:
    library = find_nccl(given.python)
    own = {"nccl": library} if library else {}
    if way == "hosts":  # without a pool no lease joins the jails of two servers
        settings = [{**own, "devices": n, "confinement": "off"} for n in ("0", "1")]
    else:
        settings = [{**own, "devices": "0,1" if given.ranks > 1 else "0"}]
    servers = [PoolServer("cuda", **each) for each in settings]
    rows = []
    try:
        for server in servers:
            server.start()
        for name, local in native.items():
            if way == "hosts" and name in ALONE:
                continue
            row: Row = {"program": name, "way": way, "native": local}
            try:
                row["remote"] = remote(given, name, way, servers)
                row["why"] = judge(row)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                row["why"] = str(error)
            print(f"{name:10} {way:5} {'NOT ' + row['why'] if row['why'] else 'ok'}", flush=True)
            shown = {k: v for k, v in row.get("remote", {}).items() if k.startswith("_")}
            print(f"           here {shown}, native {local}", flush=True)
            rows.append(row)
    finally:
        for index, server in enumerate(servers):
            (given.out / f"nccl-{way}-{index}.log").write_bytes(server.log.read_bytes())
            server.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=2)
    parser.add_argument("--only", nargs="+", choices=(*PROGRAMS, *ALONE))
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one program")
    given = parser.parse_args()
    given.only = given.only or (list(PROGRAMS) if given.ranks > 1 else ["ddp"])
    given.ways = given.ways or (list(WAYS) if given.ranks > 1 else ["shm", "tcp"])
    if given.ranks == 1 and "hosts" in given.ways:
        parser.error("one rank is on one host")
    if (count := cards()) < given.ranks:
        print(f"nccl: skipped: {given.ranks} GPUs are needed, this machine has {count}")
        return 0
    needed = {name if name in ALONE else "torch" for name in given.only}
    for module in sorted(needed):
        if subprocess.run([given.python, "-c", f"import {module}"], check=False).returncode != 0:
            print(f"nccl: skipped: {given.python} has no {module}")
            return 0
    given.out.mkdir(parents=True, exist_ok=True)
    env = {**native_environment(), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    native = {name: run_torchrun(given, name, env) for name in given.only}
    rows = [row for way in given.ways for row in compare(given, way, native)]
    (given.out / "nccl.json").write_text(json.dumps(rows, indent=1))
    failed = sum(bool(row["why"]) for row in rows)
    print(f"nccl: {'ok' if not failed else f'{failed} rows failed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
