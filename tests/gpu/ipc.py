"""Memory and events of several processes on one GPU, and between two, held against the driver's.

    python tests/gpu/ipc.py --out DIR [--only PROGRAM ...] [--ways shm tcp]

CUDA's IPC in C, and PyTorch's queues of CUDA tensors, must print what they print natively. With two
GPUs copies between them have a figure each way (`_gb_s`, in ipc.json). The exit code is 1 if any
row failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

import two_cards  # noqa: E402
from ipc_programs import PROGRAMS  # noqa: E402

from harness import PoolServer  # noqa: E402
from toolchain import Toolchain  # noqa: E402

DRIVER_PROGRAMS = ("driver_ipc", "driver_pools")
NAMES = (*DRIVER_PROGRAMS, *PROGRAMS)


def command(given: argparse.Namespace, name: str) -> list[str]:
    if name in DRIVER_PROGRAMS:
        return [str(Toolchain(given.out / "programs").driver_program(name))]
    return [given.python, str(HERE / "ipc_programs.py"), name]


def main() -> int:
    parser = argparse.ArgumentParser(description="memory and events of several processes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--ways", nargs="+", choices=("shm", "tcp", "zmq"), default=["shm", "tcp"])
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", default="cuda", help="of the server (soft: to try this)")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one program")
    parser.add_argument("--confinement", default="best", help="of the server's workers")
    given = parser.parse_args()
    count = two_cards.cards() if given.driver == "cuda" else 2
    if count < 2:
        given.only = [name for name in given.only if not name.endswith("_two")]
    given.out.mkdir(parents=True, exist_ok=True)
    devices = {"soft-gpus": "2"} if given.driver == "soft" else {}
    server = PoolServer(given.driver, confinement=given.confinement, **devices)
    try:
        server.start()
        rows = two_cards.run_all(given, server, command, "ipc.json")
    finally:
        (given.out / "ipc-server.log").write_bytes(server.log.read_bytes())
        server.close()
    for row in rows:
        for where in ("native", "remote"):
            if figures := {k: v for k, v in row.get(where, {}).items() if k.startswith("_")}:
                print(f"{row['program']:13} {row['way']} {where} {figures}")
    failed = sum(not row["ok"] for row in rows)
    print(f"ipc: {len(rows) - failed} passed, {failed} failed")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
