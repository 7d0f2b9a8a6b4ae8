"""Run every fuzz target of a build: over its corpus once, or for a while.

A target is an executable ``fuzz_NAME`` somewhere in the build folder; its corpus is
tests/fuzz/corpus/fuzz_NAME/ or .../NAME/ (committed, only read) and, for the
generated decoders, the seeds that gpgen wrote. A ``.steps`` file there is text, of which the
input is made (``steps`` below). New inputs go into the build folder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_RUNS = re.compile(r"^Done (\d+) runs|stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


def targets(build: Path, only: str) -> list[Path]:
    """The fuzz programs, in the order of their names."""
    found = (path for path in build.rglob(f"fuzz_{only or '*'}") if path.is_file())
    programs = (p for p in found if not p.suffix and os.access(p, os.X_OK))
    return sorted(programs, key=lambda path: path.name)


@cache
def numbers() -> dict[str, int]:
    """The operations of the spec by name."""
    found: dict[str, int] = {}
    for part in (ROOT / "proto/spec").rglob("*.toml"):
        for name, entry in tomllib.loads(part.read_text(encoding="utf-8")).items():
            if isinstance(entry, dict) and "id" in entry:
                found[name] = int(entry["id"])
    return found


def steps(text: str) -> bytes:
    """The input that a text says: a line for each step (tests/fuzz/steps.h), the name or the
    number of an operation and bytes as hexadecimal digits; ``#`` begins a comment. A step of
    messages has a byte before the operation, which says how it is sent: ``how=03``; one of calls
    has none: ``how=``."""
    out = bytearray()
    for line in text.splitlines():
        name, *rest = line.partition("#")[0].split() or [""]
        if not name:
            continue
        how = bytes.fromhex(rest.pop(0).removeprefix("how=")) if "how=" in line else b"\2"
        number = numbers()[name] if name in numbers() else int(name, 0)
        step = how + number.to_bytes(2, "little") + bytes.fromhex("".join(rest))
        out += bytes([len(step)]) + step
    return bytes(out)


def corpora(build: Path, target: Path) -> list[Path]:
    """The folders with inputs for a target."""
    short = target.name.removeprefix("fuzz_")
    folders = [ROOT / "tests/fuzz/corpus" / name for name in (target.name, short)]
    if "decode" in short:
        folders.append(build / "proto/seeds")
    made = build / "fuzz" / target.name / "made"
    for source in [file for folder in folders for file in folder.glob("*.steps")]:
        made.mkdir(parents=True, exist_ok=True)
        (made / source.stem).write_bytes(steps(source.read_text(encoding="utf-8")))
    folders = [made if any(folder.glob("*.steps")) else folder for folder in folders]
    return [folder for folder in folders if folder.is_dir()]


def dictionary(build: Path, target: Path) -> list[str]:
    """The option that gives a target its dictionary, if gpgen wrote one."""
    path = build / "proto/gen" / f"{target.name}.dict"
    return [f"-dict={path}"] if path.is_file() else []


def fuzz(build: Path, target: Path, args: argparse.Namespace, seconds: int) -> bool:
    """Run one target; whether nothing was found and all that was asked for was done."""
    work = build / "fuzz" / target.name
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    command = [str(target), "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={work}/"]
    command += dictionary(build, target)
    inputs = [str(folder) for folder in corpora(build, target)]
    if args.replay:
        command += ["-runs=0", *inputs]
    else:
        command += [f"-runs={args.runs or -1}", f"-max_total_time={seconds}"]
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
        print(f"FAIL {target.name}: only {runs} of {args.runs} runs in {seconds} s")
        return False
    print(f"ok   {target.name}: {runs} runs", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--replay", action="store_true", help="the corpora only, each input once")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--runs", type=int, default=0, help="of each target, or it has failed")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--only", default="", metavar="NAME", help="one target")
    args = parser.parse_args()
    build = args.build.absolute()
    found = targets(build, args.only)
    if not found:
        print(f"FAIL no fuzz targets in {build}; it must be built with -DGPUPOOL_FUZZ=ON")
        return 1
    seconds = max(args.seconds * args.jobs // len(found), 1)
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda target: fuzz(build, target, args, seconds), found))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
