"""Run every check of the project and add up: the last line is ``N passed, M failed``.

A stage that fails does not keep the next ones from running. Python standard
library only. ``--only NAME`` runs one stage: c, sanitize, sanitize-build, threads, python,
e2e, chaos, lint, figures, coverage.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Folders with Python of ours, each checked by itself: their module names overlap.
TYPED = (
    (
        "pool/gpupool",
        "pool/gpupool_common",
        "pool/gpupool_manager",
        "server/gpupool_server",
        "tests/python",
    ),
    ("proto/gpgen",),
    ("tests/e2e",),
    ("tests/chaos",),
    ("tests/gpu",),
    ("bench",),
    ("tests/demo",),
    (".ci",),
)

#: Of the whole suite, for new inputs; `make fuzz` is for long runs.
FUZZ_SECONDS = 15

#: Where they find each other's modules.
MYPYPATH = "proto:bench:tests/e2e:tests/chaos:tests/demo:tests/gpu"


@dataclass
class Count:
    """How many checks of one stage passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


@dataclass
class Builds:
    """A process beside the stages that wait more than they compute."""

    process: subprocess.Popen[bytes] | None = None

    def wait(self) -> None:
        """Behind this nothing of it takes a core."""
        if self.process is not None:
            self.process.wait()

    def end(self) -> None:
        """Leave nothing behind, whatever ended us; its compilers are in its group."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


@dataclass(frozen=True)
class Place:
    """Where things are built."""

    build: Path
    jobs: int
    #: The sanitized builds, while they are made beside other stages.
    builds: Builds = field(default_factory=lambda: Builds())

    @property
    def sanitize(self) -> Path:
        return self.build / "sanitize"


def run(command: Sequence[str | Path], **env: str) -> bool:
    """Run a command from the root of the sources; whether it succeeded."""
    print("+", *command, flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=False).returncode == 0


def one(passed: bool) -> Count:
    """The count of a stage that is a single check."""
    return Count(passed=int(passed), failed=int(not passed))


def read_junit(path: Path, succeeded: bool) -> Count:
    """Counts from a JUnit report. A run that failed without saying how is one failure."""
    count = Count()
    if path.is_file():
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            outcomes = {child.tag for child in case}
            if outcomes & {"failure", "error"} or case.get("status") == "fail":
                count.failed += 1
            elif "skipped" in outcomes or case.get("status") in ("disabled", "notrun"):
                count.skipped += 1
            else:
                count.passed += 1
    if not succeeded and not count.failed or count.passed + count.failed == 0:
        count.failed += 1
    return count


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
            str(jobs),
            "--timeout",
            "300",
            "--output-junit",
            report.absolute(),
        ],
        **env,
    )
    return read_junit(report, passed)


#: Of pytest: tests run side by side, those of a file one after the other.
BESIDE = ("-n", "2", "--dist", "loadfile")


def pytest(place: Place, folder: str, *options: str, name: str = "") -> Count:
    """One folder of Python tests; ``name`` tells its runs apart."""
    report = place.build / f"pytest-{name or Path(folder).name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", folder, "-q", *options]
    passed = run([*command, f"--junitxml={report.absolute()}"])
    return read_junit(report, passed)


def configure(preset: str, folder: Path) -> bool:
    """Configure a preset of CMakePresets.json, unless that has been done."""
    if (folder / "build.ninja").is_file():
        return True
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    return run(["cmake", "--preset", preset, "-B", folder, python])


def stage_c(place: Place) -> Count:
    return ctest(place.build, place.jobs)


def build_sanitized(place: Place) -> bool:
    """Everything with ASan and UBSan and the fuzz targets, by clang."""
    if not configure("asan", place.sanitize):
        return False
    return run(["cmake", "--build", place.sanitize, "-j", str(place.jobs)])


def stage_sanitize(place: Place) -> Count:
    if not build_sanitized(place):
        return one(False)
    count = ctest(
        place.sanitize,
        place.jobs,
        ASAN_OPTIONS="detect_leaks=1:abort_on_error=1",
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
    )
    fuzz = [sys.executable, ".ci/fuzz.py", "--build", str(place.sanitize)]
    fuzz += ["--jobs", str(place.jobs)]
    count.add(one(run([*fuzz, "--replay"])))
    count.add(one(run([*fuzz, "--seconds", str(FUZZ_SECONDS)])))
    return count


def build_threads(place: Place) -> bool:
    """Client and worker with ThreadSanitizer, by clang."""
    built = place.build / "thread"
    if not configure("tsan", built):
        return False
    targets = ["gpupool_cuda", "gpupool_worker", "gpupool_zmq", "gpupool_tcp"]
    return run(["cmake", "--build", built, "-j", str(place.jobs), "--target", *targets])


def stage_threads(place: Place) -> Count:
    """Programs of many threads under ThreadSanitizer."""
    if not build_threads(place):
        return one(False)
    built = place.build / "thread"
    command = [sys.executable, "tests/e2e/races.py", "--home", str(place.build / "stage")]
    return one(run([*command, "--build", str(built)]))


def stage_e2e(place: Place) -> Count:
    """Side by side, because most tests wait for processes; behind them what has to be alone."""
    count = pytest(place, "tests/e2e", "-m", "not alone", *BESIDE)
    place.builds.wait()
    count.add(pytest(place, "tests/e2e", "-m", "alone", name="alone"))
    return count


def stage_coverage(place: Place) -> Count:
    """proto/coverage.md must be what the spec says, and the reference can be made."""
    fresh = place.build / "coverage.md"
    command = [sys.executable, "-m", "gpgen", "--spec", "proto/spec", "--coverage", str(fresh)]
    if not run(command, PYTHONPATH="proto", PYTHONDONTWRITEBYTECODE="1"):
        return one(False)
    same = run(["diff", "-u", "proto/coverage.md", fresh])
    if not same:
        print(
            "proto/coverage.md is out of date; run: ",
            "PYTHONPATH=proto",
            *command[:-1],
            "proto/coverage.md",
        )
    count = one(same)
    count.add(one(run(["cmake", "--build", place.build, "--target", "gp_reference"])))
    return count


def clang_format() -> bool:
    """Whether the C is as .clang-format has it; .clang-format-ignore says what is left out."""
    folders = ("client_lib", "server", "proto", "tests", "bench")
    sources = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.[ch]"))
    program = Path(sys.executable).with_name("clang-format")
    print("+", program, "--dry-run --Werror", *folders, flush=True)
    command: list[str | Path] = [program, "--dry-run", "--Werror", *sources]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def stage_lint(place: Place) -> Count:
    count = one(run([sys.executable, "-m", "ruff", "check", "."]))
    count.add(one(run([sys.executable, "-m", "ruff", "format", "--check", "."])))
    count.add(one(clang_format()))
    for folders in TYPED:
        present = [folder for folder in folders if any((ROOT / folder).glob("*.py"))]
        if present:
            command = [sys.executable, "-m", "mypy", *present]
            count.add(one(run(command, MYPYPATH=MYPYPATH)))
    return count


def stage_figures(place: Place) -> Count:
    """What the code is held to: no figure worse than its target."""
    return one(run([sys.executable, ".ci/figures.py"]))


def begin_builds(place: Place) -> None:
    """Make the sanitized builds in the time for which other stages wait.

    They are last in the queue for a core. What is said is in a file: a build that fails is made
    again by its own stage, which shows why.
    """
    command = ["nice", "-n", "19", sys.executable, __file__, "--only", "sanitize-builds"]
    command += ["--build", str(place.build), "--jobs", str(place.jobs)]
    with (place.build / "sanitize-builds.log").open("wb") as log:
        place.builds.process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True
        )


STAGES: dict[str, Callable[[Place], Count]] = {
    "c": stage_c,
    "python": lambda place: pytest(place, "tests/python", *BESIDE),
    "e2e": stage_e2e,
    "chaos": lambda place: pytest(place, "tests/chaos"),
    "sanitize": stage_sanitize,
    "threads": stage_threads,
    "lint": stage_lint,
    "figures": stage_figures,
    "coverage": stage_coverage,
}
EXTRA: dict[str, Callable[[Place], Count]] = {
    "sanitize-build": lambda place: one(build_sanitized(place)),
    "sanitize-builds": lambda place: one(build_sanitized(place) and build_threads(place)),
}
#: These wait more than they compute; behind them what was built meanwhile is needed.
WAITING = ("python", "e2e", "chaos")


def hear_signals() -> None:
    """Tests end programs by these: `nohup make test &` leaves them ignored in all it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):  # what we started ends with us
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=[*STAGES, *EXTRA])
    args = parser.parse_args()
    hear_signals()
    place = Place(args.build.absolute(), args.jobs)
    place.build.mkdir(parents=True, exist_ok=True)
    stages = {args.only: {**STAGES, **EXTRA}[args.only]} if args.only else STAGES
    try:
        return run_stages(place, stages, beside=not args.only)
    finally:
        place.builds.end()


def run_stages(place: Place, stages: Mapping[str, Callable[[Place], Count]], beside: bool) -> int:
    """The exit status; ``beside``: the sanitized builds are made in the time of others."""
    total = Count()
    rows: list[str] = []
    for name, stage in stages.items():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        if name in WAITING and not place.builds.process and beside:
            begin_builds(place)
        elif name not in WAITING:
            place.builds.wait()
        count = stage(place)
        total.add(count)
        rows.append(
            f"{name:16} {count.passed:6} passed {count.failed:4} failed {count.skipped:4} skipped"
            f" {time.monotonic() - began:7.1f} s"
        )
    print("==", *rows, sep="\n")
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
