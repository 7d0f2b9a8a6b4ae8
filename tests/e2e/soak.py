"""Random operations from many threads for as long as one likes: `make soak`.

Runs programs/driver_random.c over each transport, from one seed after another, until
so many operations have been made (GPUPOOL_TEST_DRIVER=cuda: on the machine's own GPU). Neither
the program nor its worker may grow while it runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from gpupool.admin import Admin
from growth import Watch
from harness import PoolServer
from toolchain import Toolchain


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=float, default=1e6, help="in all, e.g. 1e7")
    parser.add_argument("--each", type=float, default=2e5, help="in one run of the program")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--transport", action="append", choices=["shm", "tcp", "zmq"])
    parser.add_argument("--patience", type=float, default=1800, help="seconds for one run")
    return parser.parse_args()


def processes(server: PoolServer) -> dict[str, int]:
    """The one session's worker and program."""
    sessions = Admin(server.folder / "run").ask({"do": "status"})["sessions"]
    if len(sessions) != 1:
        return {}
    return {"worker": int(sessions[0]["pid"]), "program": int(sessions[0]["client_pid"])}


def soak(wanted: argparse.Namespace, server: PoolServer, binary: Path) -> int:
    transports = wanted.transport or ["shm", "tcp", "zmq"]
    done, run = 0, 0
    while done < wanted.operations:
        seed, transport = wanted.seed + run, transports[run % len(transports)]
        command = [str(binary), str(seed), str(wanted.threads), str(int(wanted.each)), "0"]
        begun = time.monotonic()
        with Watch(lambda: processes(server)) as watch:
            result = server.run(command, transport, timeout=wanted.patience)
        if result.returncode != 0:
            print(f"seed {seed} over {transport}: {result.explain()}")
            return 1
        if growing := watch.grown():
            print(f"seed {seed} over {transport}: these grew by so many bytes: {growing}")
            print(watch.looks)
            return 1
        done, run = done + int(wanted.each), run + 1
        took = time.monotonic() - begun
        rate = wanted.each / took
        print(
            f"seed {seed:4} {transport:4} {done:>12,} operations {rate:>10,.0f} /s  "
            f"at most: {watch.most()}",
            flush=True,
        )
    return 0


def main() -> int:
    wanted = options()
    with tempfile.TemporaryDirectory() as folder:
        binary = Toolchain(Path(folder)).driver_program("driver_random")
        server = PoolServer(**{"soft-gpus": "2"})
        try:
            server.start()
            return soak(wanted, server, binary)
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
