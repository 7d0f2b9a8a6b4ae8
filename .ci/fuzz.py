"""Run every fuzz target of a build: over its corpus once, or for a while.

A target is an executable ``fuzz_NAME`` somewhere in the build folder; its corpus is
tests/fuzz/corpus/fuzz_NAME/ or .../NAME/ (committed, only read) and, for the
generated decoders, the seeds that gpgen wrote. A ``.steps`` file there is text, of which
inputs are made (``steps`` below). New inputs go into the build folder.

``--pack FILE`` writes what another machine needs beside these sources, which is then its build
folder; ``--minimise`` keeps of what was found what reaches something of its own. Python standard
library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Inputs that gpgen wrote, in a build folder.
SEEDS = "proto/seeds"
#: Whole processes, which have ten thousands of features: to reckon what each is worth whenever it
#: is seen takes half of the time, and finds no more.
WHOLE = {"fuzz_worker", "fuzz_session", "fuzz_softgpu", "fuzz_nvml"}
#: Of a pack: libraries that another machine may not have. The C library is its own.
LIBRARIES = "needed"
_OF_EVERY_MACHINE = re.compile(r"lib(c|m|pthread|dl|rt|resolv|gcc_s|stdc\+\+)\.so\.")
_NEEDED = re.compile(r"=> (/\S+)")
_RUNS = re.compile(r"^Done (\d+) runs|stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


def targets(build: Path, only: str) -> list[Path]:
    """The fuzz programs, or those named with commas between, in the order of their names."""
    names = [f"fuzz_{name}" for name in (only or "*").split(",")]
    found = {path for name in names for path in build.rglob(name) if path.is_file()}
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


def step(words: list[str], name: str) -> bytes:
    """One step: its length, how it is sent, its operation, and bytes."""
    how, rest = b"\2", words
    if words and words[0].startswith("how="):
        how, rest = bytes.fromhex(words[0].removeprefix("how=")), words[1:]
    number = numbers()[name] if name in numbers() else int(name, 0)
    said = how + number.to_bytes(2, "little") + bytes.fromhex("".join(rest))
    return bytes([len(said)]) + said


def steps(text: str) -> list[bytes]:
    """The inputs that a text says: a line for each step (tests/fuzz/steps.h), the name or the
    number of an operation and bytes as hexadecimal digits; ``#`` begins a comment. A step of
    messages has a byte before the operation, which says how it is sent: ``how=03``; one of calls
    has none: ``how=``. ``each PATTERN`` in the place of the name ends as many inputs as there are
    operations whose names it fits: the steps since the last of these lines, then that one."""
    inputs = list[bytes]()
    begun = b""
    for line in text.splitlines():
        name, *rest = line.partition("#")[0].split() or [""]
        if name == "each":
            fits = [other for other in sorted(numbers()) if re.search(rest[0], other)]
            inputs += [begun + step(rest[1:], other) for other in fits]
            begun = b""
        elif name:
            begun += step(rest, name)
    return [*inputs, begun] if begun else inputs


def corpora(build: Path, target: Path) -> list[Path]:
    """The folders with inputs for a target."""
    short = target.name.removeprefix("fuzz_")
    folders = [ROOT / "tests/fuzz/corpus" / name for name in (target.name, short)]
    if "decode" in short:
        folders.append(build / SEEDS)
    made = build / "fuzz" / target.name / "made"
    shutil.rmtree(made, ignore_errors=True)
    for source in [file for folder in folders for file in folder.glob("*.steps")]:
        made.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(steps(source.read_text(encoding="utf-8"))):
            (made / f"{source.stem}-{number}").write_bytes(one)
    folders = [made if any(folder.glob("*.steps")) else folder for folder in folders]
    return [folder for folder in folders if folder.is_dir()]


def dictionaries(build: Path, target: Path) -> list[Path]:
    """A target's dictionary, if gpgen wrote one."""
    path = build / "proto/gen" / f"{target.name}.dict"
    return [path] if path.is_file() else []


@dataclass(frozen=True)
class Share:
    """What one target gets of the time and the cores."""

    seconds: int
    processes: int

    @staticmethod
    def of(seconds: int, jobs: int, count: int) -> Share:
        """So many targets, one after the other on each core, or each on several."""
        if count < jobs:
            return Share(seconds, jobs // count)
        return Share(max(seconds * jobs // count, 1), 1)


def execute(command: list[str], build: Path, work: Path) -> subprocess.CompletedProcess[str]:
    """Run a target in its folder, with the libraries that a pack has brought."""
    env = dict(os.environ)
    if (build / LIBRARIES).is_dir():
        env["LD_LIBRARY_PATH"] = str(build / LIBRARIES)
    return subprocess.run(
        command, cwd=work, env=env, capture_output=True, text=True, errors="replace", check=False
    )


def options(args: argparse.Namespace, share: Share) -> list[str]:
    """How long a target runs, and in how many processes."""
    if args.replay:
        return ["-runs=0"]
    runs = -(-args.runs // share.processes) or -1
    found = [f"-runs={runs}", f"-max_total_time={share.seconds}", "-print_final_stats=1"]
    found += [f"-seed={args.seed}"] if args.seed else []
    if share.processes > 1:  # they tell each other by the folder, and write fuzz-N.log
        found += [f"-jobs={share.processes}", f"-workers={share.processes}", "-reload=30"]
    return found


def said_runs(said: str) -> int:
    """How many inputs one process says that it has run."""
    return max((int(a or b) for a, b in _RUNS.findall(said)), default=0)


def fuzz(build: Path, target: Path, args: argparse.Namespace, share: Share) -> bool:
    """Run one target; whether nothing was found and all that was asked for was done."""
    work = build / "fuzz" / target.name
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    command = [str(target), "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={work}/"]
    command += [f"-dict={path}" for path in dictionaries(build, target)]
    command += ["-entropic=0"] if target.name in WHOLE else []
    inputs = [str(folder) for folder in corpora(build, target)]
    command += [*options(args, share), *([] if args.replay else [str(work / "corpus")]), *inputs]
    for log in work.glob("fuzz-*.log"):
        log.unlink()
    done = execute(command, build, work)
    logs = [log.read_text(errors="replace") for log in work.glob("fuzz-*.log")] or [done.stderr]
    runs = sum(said_runs(said) for said in logs)
    if done.returncode != 0:
        print(*(said[-8000:] for said in logs if "ERROR" in said or len(logs) == 1), sep="\n")
        print(f"FAIL {target.name}: exit code {done.returncode}; the input is in {work}")
        return False
    if args.replay and not inputs:
        print(f"FAIL {target.name}: it has no corpus in tests/fuzz/corpus")
        return False
    if not args.replay and runs < args.runs:
        print(f"FAIL {target.name}: only {runs} of {args.runs} runs in {share.seconds} s")
        return False
    print(f"ok   {target.name}: {runs} runs", flush=True)
    return True


def minimise(build: Path, target: Path) -> bool:
    """Of the inputs found, keep as few as reach what all of them do."""
    work = build / "fuzz" / target.name
    found, kept = work / "corpus", work / "minimal"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    found.mkdir(exist_ok=True)
    before = len(list(found.iterdir()))
    command = [str(target), "-merge=1", "-timeout=60", str(kept), str(found)]
    done = execute(command, build, work)
    if done.returncode != 0:
        print(f"FAIL {target.name}: {done.stderr[-2000:]}")
        return False
    shutil.rmtree(found)
    kept.rename(found)
    print(f"ok   {target.name}: {len(list(found.iterdir()))} of {before} inputs", flush=True)
    return True


def pack(build: Path, found: list[Path], file: Path) -> None:
    """The targets, their dictionaries and seeds, what was found, and libraries, in one file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        libraries = set[str]()
        for target in found:
            archive.add(target, target.name)
            for path in (build / "fuzz" / target.name / "corpus", *dictionaries(build, target)):
                if path.exists():
                    archive.add(path, str(path.relative_to(build)))
            listed = subprocess.run(["ldd", target], capture_output=True, text=True, check=True)
            libraries |= set(_NEEDED.findall(listed.stdout))
        if (build / SEEDS).is_dir():
            archive.add(build / SEEDS, SEEDS)
        for library in sorted(libraries):
            if not _OF_EVERY_MACHINE.match(Path(library).name):
                archive.add(Path(library).resolve(), f"{LIBRARIES}/{Path(library).name}")
    print(f"{file}: {file.stat().st_size >> 20} MiB, {len(found)} targets")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--replay", action="store_true", help="the corpora only, each input once")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--runs", type=int, default=0, help="of each target, or it has failed")
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with; 0: any")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", default="", metavar="NAME,…", help="these targets alone")
    parser.add_argument("--minimise", action="store_true", help="the inputs that were found")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="for another machine: a .tar.gz")
    args = parser.parse_args()
    build = args.build.absolute()
    found = targets(build, args.only)
    if not found:
        print(f"FAIL no fuzz targets in {build}; it must be built with -DGPUPOOL_FUZZ=ON")
        return 1
    if args.pack:
        pack(build, found, args.pack)
        return 0
    share = Share.of(args.seconds, 1 if args.replay else args.jobs, len(found))

    def work(target: Path) -> bool:
        return minimise(build, target) if args.minimise else fuzz(build, target, args, share)

    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(work, found))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
