"""The test of the soft NCCL's values with NVIDIA's NCCL on real GPUs: needs two GPUs.

    python tests/gpu/nccl_values.py [--nccl LIBRARY] [--driver soft]

Every collective with every data type and reduction, natively: what the soft NCCL computes is what
NCCL computes. The exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
for part in ("pool", "server", "tests/e2e", "tests/gpu"):
    sys.path.insert(0, str(ROOT / part))

from jail_two import find_nccl  # noqa: E402
from two_cards import cards  # noqa: E402

from gpupool_common import paths  # noqa: E402

FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-DRANKS=2")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2; else that of a wheel of NVIDIA's")
    parser.add_argument("--driver", choices=("cuda", "soft"), default="cuda")
    return parser.parse_args()


def real_driver() -> str:
    """Where the loader finds it: a linker may look elsewhere."""
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "/libcuda.so" in line)


def compile_test(folder: Path, libraries: list[str]) -> Path:
    header = [sys.executable, str(ROOT / "proto/gpgen/find_header.py")]
    cuda = subprocess.run(header, capture_output=True, text=True, check=True).stdout.strip()
    program = folder / "values"
    command = ["cc", *FLAGS, f"-I{ROOT / 'server/softnccl'}", f"-I{cuda}", "-o", str(program)]
    command += [str(ROOT / "tests/c/test_softnccl_values.c"), *libraries, "-lpthread"]
    subprocess.run(command, check=True)
    return program


def main() -> int:
    given = parse_arguments()
    if given.driver == "cuda" and (count := cards()) < 2:
        print(f"nccl_values: skipped: two GPUs are needed, this machine has {count}")
        return 0
    home = paths.find_home()
    nccl = given.nccl or (home.part(paths.SOFT_NCCL) if given.driver == "soft" else find_nccl())
    if nccl is None:
        print("nccl_values: no libnccl.so.2: pip install nvidia-nccl-cu13, or --nccl LIBRARY")
        return 1
    driver = str(home.part(paths.SOFT_GPU)) if given.driver == "soft" else real_driver()
    with tempfile.TemporaryDirectory(prefix="gpn-", dir="/tmp") as made:
        program = compile_test(Path(made), [str(nccl), driver])
        folders = [str(nccl.parent), str(home.part(paths.SOFT_GPU).parent)]
        found = os.pathsep.join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])
        environment = {**os.environ, "LD_LIBRARY_PATH": found, "NCCL_DEBUG": "WARN"}
        done = subprocess.run([str(program)], env=environment, check=False)
    print(f"nccl_values: {'ok' if done.returncode == 0 else f'failed ({done.returncode})'}")
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
