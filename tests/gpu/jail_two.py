"""Two jailed workers of one lease on two GPUs: they copy from each other's memory, and make an
all-reduce by the real NCCL.

    python tests/gpu/jail_two.py [--nccl LIBRARY] [--seccomp log] [--learn FILE]

A rank of the tests (tests/e2e/ranks) is put in the workers' place. Required is that both steps
succeed where the workers of a lease have one user and see both GPUs; what becomes of them with a
user each, or with only the own GPU's node, is shown. The exit code is 1 if what is required failed.
`--seccomp log` and `--learn` find system calls of NCCL's that the list of workers has not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
for part in ("pool", "server", "tests/e2e", "tests/gpu"):
    sys.path.insert(0, str(ROOT / part))

from two_cards import cards  # noqa: E402

from harness import PoolServer  # noqa: E402
from ranks import STEPS, Ranks, fake_nccl  # noqa: E402

#: What a session of each rank asks for: its own GPU first.
VIEWS = {"both GPUs": ("0,1", "1,0"), "its own GPU": ("0", "1")}
REQUIRED = ("lease", "both GPUs")

#: Seconds for a case that is only shown: one rank may wait for ever for another that failed.
PATIENCE = 30.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2; else that of a wheel of NVIDIA's")
    parser.add_argument("--driver", choices=("cuda", "soft"), default="cuda")
    parser.add_argument("--seccomp", choices=("enforce", "log", "off"), default="enforce")
    parser.add_argument("--learn", type=Path, help="a file for the system calls that are made")
    return parser.parse_args()


def find_nccl() -> Path | None:
    """Of nvidia-nccl-cu12 or -cu13, as torch brings it."""
    for folder in map(Path, sys.path):
        for found in folder.glob("nvidia/nccl/lib/libnccl.so.2"):
            return found
    return None


def attempt(
    given: argparse.Namespace, ranks: Ranks, users: str, view: str
) -> dict[tuple[int, str], str]:
    """What each rank says of each step; the server's log where one does not say it."""
    watch = ranks.home / "watch.toml"
    watch.write_text('[watch]\nmode = "off"\n')  # ranks ask nobody for their memory
    settings = {"data-listen": "none", "worker": str(ranks.worker), "config": str(watch)}
    settings |= {"jail-users": users, "seccomp": given.seccomp}
    settings |= {"soft-gpus": "2"} if given.driver == "soft" else {"devices": "0,1"}
    if given.learn is not None:
        settings["learn-syscalls"] = str(given.learn.resolve())
    server = PoolServer(given.driver, **settings)
    try:
        server.start()
        ranks.arm()
        required = (users, view) == REQUIRED
        found = ranks.run(server, VIEWS[view], *(() if required else (PATIENCE,)))
        log = server.log.read_text()
        if len(found) < 2 * len(STEPS) or given.seccomp != "enforce":
            print("\n".join(line[:300] for line in log.splitlines()[-60:]))
        else:
            print("\n".join(line[:300] for line in log.splitlines() if " said " in line))
        return found
    finally:
        server.close()
        ranks.disarm()


def good(given: argparse.Namespace, step: str, said: str) -> bool:
    return said.startswith("ok") or (
        given.driver == "soft" and step == "peer-copy" and said.endswith("error 205")
    )


def main() -> int:
    given = parse_arguments()
    if given.driver == "cuda" and (count := cards()) < 2:
        print(f"jail_two: skipped: two GPUs are needed, this machine has {count}")
        return 0
    with tempfile.TemporaryDirectory(prefix="gpr-", dir="/tmp") as made:
        folder = Path(made)
        nccl = given.nccl or (fake_nccl(folder) if given.driver == "soft" else find_nccl())
        if nccl is None:
            print("jail_two: no libnccl.so.2: pip install nvidia-nccl-cu12, or --nccl LIBRARY")
            return 1
        ranks = Ranks(folder, nccl)
        os.environ["GPUPOOL_HOME"] = str(ranks.home)
        failed = 0
        for users in ("lease", "worker"):
            for view in VIEWS:
                found = attempt(given, ranks, users, view)
                required = (users, view) == REQUIRED
                for rank in (0, 1):
                    for step in STEPS:
                        said = found.get((rank, step), "nothing")
                        failed += required and not good(given, step, said)
                        word = "required" if required else "shown"
                        print(f"{word:8} user of {users}, {view:11} rank {rank} {step}: {said}")
        print(f"jail_two: {'ok' if not failed else f'{failed} steps failed'}")
        shutil.rmtree(ranks.home, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
