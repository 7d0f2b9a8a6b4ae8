"""Run every fuzz target of a build: over its corpus once, or for a number of runs.

A target is an executable ``fuzz_NAME`` somewhere in the build folder; its corpus is
tests/fuzz/corpus/fuzz_NAME/ or .../NAME/ (committed, only read) and, for the
generated decoders, the seeds that gpgen wrote. New inputs go into the build folder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_RUNS = re.compile(r"^Done (\d+) runs|stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


def targets(build: Path) -> list[Path]:
    """The fuzz programs, in the order of their names."""
    found = (path for path in build.rglob("fuzz_*") if path.is_file() and not path.suffix)
    return sorted((p for p in found if os.access(p, os.X_OK)), key=lambda path: path.name)


def corpora(build: Path, target: Path) -> list[Path]:
    """The folders with inputs for a target."""
    short = target.name.removeprefix("fuzz_")
    folders = [ROOT / "tests/fuzz/corpus" / name for name in (target.name, short)]
    if "decode" in short:
        folders.append(build / "proto/seeds")
    return [folder for folder in folders if folder.is_dir()]


def dictionary(build: Path, target: Path) -> list[str]:
    """The option that gives a target its dictionary, if gpgen wrote one."""
    path = build / "proto/gen" / f"{target.name}.dict"
    return [f"-dict={path}"] if path.is_file() else []


def fuzz(build: Path, target: Path, args: argparse.Namespace) -> bool:
    """Run one target; whether nothing was found and all that was asked for was done."""
    work = build / "fuzz" / target.name
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    command = [str(target), "-timeout=20", "-rss_limit_mb=4096", f"-artifact_prefix={work}/"]
    command += dictionary(build, target)
    inputs = [str(folder) for folder in corpora(build, target)]
    if args.replay:
        command += ["-runs=0", *inputs]
    else:
        command += [f"-runs={args.runs}", f"-max_total_time={args.seconds}"]
        command += ["-print_final_stats=1", str(work / "corpus"), *inputs]
    done = subprocess.run(
        command, cwd=work, capture_output=True, text=True, errors="replace", check=False
    )
    runs = max((int(a or b) for a, b in _RUNS.findall(done.stderr)), default=0)
    if done.returncode != 0:
        print(done.stderr[-8000:])
        print(f"FAIL {target.name}: exit code {done.returncode}; the input is in {work}")
        return False
    if args.replay and not inputs:
        print(f"FAIL {target.name}: it has no corpus in tests/fuzz/corpus")
        return False
    if not args.replay and runs < args.runs:
        print(f"FAIL {target.name}: only {runs} of {args.runs} runs in {args.seconds} s")
        return False
    print(f"ok   {target.name}: {runs} runs", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--replay", action="store_true", help="the corpora only, each input once")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=600, help="at most, for each target")
    args = parser.parse_args()
    build = args.build.absolute()
    found = targets(build)
    if not found:
        print(f"FAIL no fuzz targets in {build}; it must be built with -DGPUPOOL_FUZZ=ON")
        return 1
    return 0 if all([fuzz(build, target, args) for target in found]) else 1


if __name__ == "__main__":
    sys.exit(main())
