"""Run every check of the project and add up: the last line is ``N passed, M failed``.

What failed is named just before it. A stage that fails does not keep the next ones from
running. Python standard library only. ``--only NAME`` runs one stage: c, python, e2e, chaos,
sanitize, sanitize-build, threads, lint, figures, coverage, ray, alone (of e2e).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counts import Count, Row, failure, last_words, one, read_junit, read_rows, summary, write_rows

ROOT = Path(__file__).resolve().parent.parent

#: Folders with Python of ours, each checked by itself: their module names overlap.
TYPED = (
    (
        "pool/gpupool",
        "pool/gpupool_common",
        "pool/gpupool_kubernetes",
        "pool/gpupool_manager",
        "pool/gpupool_ray",
        "pool/gpupool_slurm",
        "server/gpupool_server",
        "tests/python",
    ),
    ("proto/gpgen",),
    ("tests/e2e",),
    ("tests/chaos",),
    ("tests/gpu",),
    ("tests/outside",),
    ("bench",),
    ("tests/demo",),
    (".ci",),
)

#: Of the whole suite, for new inputs; `make fuzz` is for long runs.
FUZZ_SECONDS = 10
#: What chance begins with there: who runs the same sources finds the same.
FUZZ_SEED = 1
#: The soft GPU's own threads, and the client's handles, which ThreadSanitizer sees.
THREADED = ("test_exec_threads", "test_handle_walk")

#: Where they find each other's modules.
MYPYPATH = "proto:bench:tests/e2e:tests/chaos:tests/demo:tests/gpu"


@dataclass(frozen=True)
class Place:
    """Where things are built."""

    build: Path
    jobs: int

    @property
    def sanitize(self) -> Path:
        return self.build / "sanitize"


def run(command: Sequence[str | Path], **env: str) -> bool:
    """Run a command from the root of the sources; whether it succeeded."""
    print("+", *command, flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=False).returncode == 0


def check(command: Sequence[str | Path], name: str = "", **env: str) -> Count:
    """A command that is a check by itself; ``name`` stands for a long one. What it says is
    shown when it is over."""
    words = [str(word).removeprefix(f"{ROOT}/") for word in command]
    name = name or " ".join(words)
    print("+", name, flush=True)
    with tempfile.TemporaryFile() as log:
        to: dict[str, Any] = {"stdout": log, "stderr": log, "env": {**os.environ, **env}}
        try:
            code = subprocess.run(command, cwd=ROOT, check=False, **to).returncode
        finally:  # also of one that hung until we were ended
            log.seek(0)
            said = log.read().decode(errors="replace")
            print(said, end="", flush=True)
    return one(code == 0, failure(f"{name}: exit code {code}", last_words(said)))


def ctest(folder: Path, jobs: int, **env: str) -> Count:
    """The C tests of a build folder."""
    report = folder / "ctest.xml"
    report.unlink(missing_ok=True)
    passed = run(
        [
            "ctest",
            "--test-dir",
            folder,
            "--output-on-failure",
            "--no-tests=error",
            "-j",
            str(2 * jobs),  # half of their time they wait
            "--timeout",
            "300",
            "--output-junit",
            report.absolute(),
        ],
        **env,
    )
    return read_junit(report, passed)


#: Of pytest: tests run side by side, those of a file one after the other. More than two cores
#: could run at once, because most of them wait for processes.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile")
#: Of the second half, when most of the other lane is done.
LATER = ("-n", "4", "--dist", "loadfile")
#: Named at the end of each run, so that who looks for time to save need not look for tests.
SLOWEST = ("--durations", "10", "--durations-min", "3")


def pytest(place: Place, tests: str, *options: str, name: str = "", **env: str) -> Count:
    """One folder of Python tests, or a file; ``name`` tells its runs apart."""
    report = place.build / f"pytest-{name or Path(tests).name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", tests, "-q", *SLOWEST, *options]
    passed = run([*command, f"--junitxml={report.absolute()}"], **env)
    return read_junit(report, passed)


def configure(preset: str, folder: Path) -> bool:
    """Configure a preset of CMakePresets.json, unless that has been done."""
    if (folder / "build.ninja").is_file():
        return True
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    return run(["cmake", "--preset", preset, "-B", folder, python])


def stage_c(place: Place) -> Count:
    return ctest(place.build, place.jobs)


def compile_last(folder: Path, place: Place, *targets: str) -> bool:
    """Build a folder with what time the tests beside it leave."""
    command = ["nice", "-n", "19", "cmake", "--build", str(folder), "-j", str(place.jobs)]
    return run([*command, *(["--target", *targets] if targets else [])])


def build_sanitized(place: Place) -> bool:
    """Everything with ASan and UBSan and the fuzz targets, by clang."""
    if not configure("asan", place.sanitize):
        return False
    return compile_last(place.sanitize, place)


def jails_sanitized(place: Place) -> Count:
    """The tests that look into jails, with gpupool-jail of the sanitized build."""
    home = place.sanitize / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(place.build / "stage", home, symlinks=True)
    shutil.copy2(place.sanitize / "libexec" / "gpupool-jail", home / "libexec")
    count = Count()
    for file in ("test_jail.py", "test_jail_peers.py"):
        name = f"sanitized-{file.removesuffix('.py')}"
        count.add(pytest(place, f"tests/e2e/{file}", name=name, GPUPOOL_HOME=str(home)))
    return count


def stage_sanitize(place: Place) -> Count:
    if not build_sanitized(place):
        return one(False, f"the build in {place.sanitize}")
    count = ctest(
        place.sanitize,
        place.jobs,
        ASAN_OPTIONS="detect_leaks=1:abort_on_error=1",
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
    )
    count.add(jails_sanitized(place))
    fuzz = [sys.executable, ".ci/fuzz.py", "--build", str(place.sanitize)]
    fuzz += ["--jobs", str(place.jobs)]
    count.add(check([*fuzz, "--replay"]))
    fuzz += ["--seconds", str(FUZZ_SECONDS), "--seed", str(FUZZ_SEED)]
    count.add(check(fuzz))
    return count


def build_threads(place: Place) -> bool:
    """Client and worker with ThreadSanitizer, by clang."""
    built = place.build / "thread"
    if not configure("tsan", built):
        return False
    targets = ("gpupool_cuda", "gpupool_worker", "gpupool_zmq", "gpupool_tcp", *THREADED)
    return compile_last(built, place, *targets)


def stage_threads(place: Place) -> Count:
    """Programs of many threads under ThreadSanitizer."""
    built = place.build / "thread"
    if not build_threads(place):
        return one(False, f"the build in {built}")
    count = Count()
    for name in THREADED:
        count.add(check([built / "tests" / "c" / name], TSAN_OPTIONS="halt_on_error=1"))
    command = [sys.executable, "tests/e2e/races.py", "--home", str(place.build / "stage")]
    count.add(check([*command, "--build", str(built)]))
    return count


def stage_coverage(place: Place) -> Count:
    """proto/coverage.md must be what the spec says, and the reference can be made."""
    fresh = place.build / "coverage.md"
    command = [sys.executable, "-m", "gpgen", "--spec", "proto/spec", "--coverage", str(fresh)]
    made = check(command, PYTHONPATH="proto", PYTHONDONTWRITEBYTECODE="1")
    if made.failed:
        return made
    count = check(["diff", "-u", "proto/coverage.md", fresh])
    if count.failed:
        print(
            "proto/coverage.md is out of date; run: ",
            "PYTHONPATH=proto",
            *command[:-1],
            "proto/coverage.md",
        )
    count.add(check(["cmake", "--build", place.build, "--target", "gp_reference"]))
    return count


def clang_format() -> Count:
    """The C is as .clang-format has it; .clang-format-ignore says what is left out."""
    folders = ("client_lib", "server", "proto", "tests", "bench")
    sources = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.[ch]"))
    program = Path(sys.executable).with_name("clang-format")
    options = ("--dry-run", "--Werror")
    return check([program, *options, *sources], name=" ".join((program.name, *options, *folders)))


def stage_lint(place: Place) -> Count:
    count = check([sys.executable, "-m", "ruff", "check", "."])
    count.add(check([sys.executable, "-m", "ruff", "format", "--check", "."]))
    count.add(clang_format())
    for folders in TYPED:
        present = [folder for folder in folders if any((ROOT / folder).glob("*.py"))]
        if present:
            command = [sys.executable, "-m", "mypy", *present]
            count.add(check(command, MYPYPATH=MYPYPATH))
    return count


def stage_figures(place: Place) -> Count:
    """What the code is held to: no figure worse than its target."""
    return check([sys.executable, ".ci/figures.py"])


def stage_ray(place: Place) -> Count:
    """A Ray, if one was fetched; without it its tests say that they are skipped."""
    ray = os.environ.get("GPUPOOL_RAY", "")
    there = ray and Path(ray, "ray").is_dir()
    return pytest(place, "tests/e2e/test_ray.py", PYTHONPATH=ray) if there else Count()


STAGES: dict[str, Callable[[Place], Count]] = {
    "c": stage_c,
    "python": lambda place: pytest(place, "tests/python", *SIDE_BY_SIDE),
    "e2e": lambda place: pytest(place, "tests/e2e", "-m", "not alone", *LATER),
    "chaos": lambda place: pytest(place, "tests/chaos"),
    "sanitize": stage_sanitize,
    "threads": stage_threads,
    "lint": stage_lint,
    "figures": stage_figures,
    "coverage": stage_coverage,
    "ray": stage_ray,
    # Behind all others: measured behaviour.
    "alone": lambda place: pytest(place, "tests/e2e", "-m", "alone", name="alone"),
}
EXTRA: dict[str, Callable[[Place], Count]] = {
    "sanitize-build": lambda place: one(build_sanitized(place), "the build"),
}
#: These run beside the others, a lane each: the first computes, and most of chaos is waiting.
BESIDE = (("sanitize", "threads"), ("chaos", "ray", "lint", "figures", "coverage"))
#: Behind all others, with nothing beside it.
LAST = ("alone",)


class Beside:
    """A process with one lane of stages. What it says is shown when it is over."""

    def __init__(self, place: Place, stages: Sequence[str]) -> None:
        self.stages = stages
        self.log = place.build / f"beside-{stages[0]}.log"
        self.file = self.log.with_suffix(".json")
        self.file.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--build", str(place.build)]
        command += ["--jobs", str(place.jobs), "--rows", str(self.file)]
        command += [*(word for name in stages for word in ("--only", name))]
        print(f"beside: {', '.join(stages)} ({self.log})", flush=True)
        with self.log.open("wb") as log:
            # A group, to end it with all that it started; in our session, because priorities
            # count within one alone (sched_autogroup).
            self.process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)

    def rows(self) -> list[Row]:
        """Wait for it. Stages of which it tells nothing have failed."""
        self.process.wait()
        said = self.log.read_text(encoding="utf-8", errors="replace")
        print(said, flush=True)
        rows = read_rows(self.file)
        told = {row.name for row in rows}
        lost = one(
            False, failure(f"the lane ended with {self.process.returncode}", last_words(said))
        )
        return [*rows, *(Row(name, lost, 0.0) for name in self.stages if name not in told)]

    def end(self) -> None:
        """Leave nothing behind, whatever ended us; its compilers are in its group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


def hear_signals() -> None:
    """Tests end programs by these: `nohup make test &` leaves them ignored in all it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):  # what we started ends with us
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def run_stages(place: Place, names: Sequence[str]) -> list[Row]:
    """One after the other."""
    rows = []
    for name in names:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        count = {**STAGES, **EXTRA}[name](place)
        rows.append(Row(name, count, time.monotonic() - began))
    return rows


def compile_once(place: Place) -> None:
    """The programs of tests: most stages have some in common."""
    programs = place.build / "programs"
    shutil.rmtree(programs, ignore_errors=True)
    os.environ.setdefault("GPUPOOL_E2E_CACHE", str(programs))


def run_all(place: Place) -> list[Row]:
    """Every stage, in lanes, and behind them what has to be alone."""
    other = {*itertools.chain(*BESIDE), *LAST}
    lanes = [Beside(place, stages) for stages in BESIDE]
    try:
        rows = run_stages(place, [name for name in STAGES if name not in other])
        for lane in lanes:
            rows += lane.rows()
    finally:
        for lane in lanes:
            lane.end()
    return rows + run_stages(place, LAST)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=[*STAGES, *EXTRA], action="append")
    parser.add_argument("--rows", type=Path, help="where to write the counts, too")
    args = parser.parse_args()
    hear_signals()
    # Else each of thousands of processes compiles all of our Python anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if libucx := importlib.util.find_spec("libucx"):
        os.environ.setdefault("GPUPOOL_UCX_LIBRARY", f"{Path(libucx.origin or '').parent}/lib")
    place = Place(args.build.absolute(), args.jobs)
    place.build.mkdir(parents=True, exist_ok=True)
    if not args.only:
        compile_once(place)
    rows = run_stages(place, args.only) if args.only else run_all(place)
    if args.rows:
        write_rows(args.rows, rows)
    print(summary(rows))
    return 1 if any(row.count.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
