"""Run suites that others wrote natively and through gpupool, test by test, and compare.

    python tests/outside/run.py --packages DIR --out FILE [--resume FILE ...]
        [--suites torch ...] [--ways native shm tcp] [--some tcp=8] [--shard I/N] [--part I/N]
        [--minutes M] [--count] [--again]

A slice of a group of tests runs natively; what passed runs through the pool at once, so whenever
a run is cut off its native results have their pairs. FILE gets a line for each test as it ends; a
later run that resumes it does what is missing, also with another --shard, and merges it all.
`--part` is of the tests of every file, for a look at all of them; `--some` runs one slice in so
many one way. `--count` only counts the tests, so that a report says what part of all was reached.
`--driver soft` runs what suites.toml gives the soft GPU, or all with `--all`. `--report` runs
nothing. The frameworks may live in another Python than gpupool: --python names it.
The exit code is 1 where a test differs from its native run without a reason in differs.toml, and
where nothing was the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from crew import Crew, Task  # noqa: E402
from judging import (  # noqa: E402
    Verdict,
    describe,
    judge,
    judge_soft,
    read_differences,
    tally,
)
from planning import Plan, Suite  # noqa: E402
from records import NATIVE, Results  # noqa: E402

from harness import PoolServer, device_name, native_environment  # noqa: E402

WAYS = (NATIVE, "shm", "tcp", "zmq")
SHOWN = 40

#: Seconds in which a process imports its framework and finds its tests.
START_LIMIT = 240.0


class Run:
    """What this call does."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.deadline = time.monotonic() + 60 * given.minutes
        self.told = tomllib.loads((HERE / "suites.toml").read_text(encoding="utf-8"))
        self.soft = given.driver == "soft"
        self.device = "soft" if self.soft else device_name()
        self.results = Results().read([*given.resume])
        self.extra = dict(self.told["all"]["env"])
        if self.soft:
            self.extra.update(self.told["soft"]["env"])
        self.suites = self._suites()

    def _suites(self) -> list[Suite]:
        """Those that were asked for, in that order, and whose package is here."""
        names = [name for name in self.told if name not in ("all", "soft")]
        if self.soft and not self.given.all:
            names = [name for name in names if name in self.told["soft"]]
        found = [self._suite(name) for name in self.given.suites or names if name in names]
        for suite in found:
            if not suite.version:
                print(f"{suite.name:8} skipped: {self.given.python} has no {suite.package}")
        return [suite for suite in found if suite.version]

    def _suite(self, name: str) -> Suite:
        told = self.told[name]
        settings = {**told.get("settings", {}), "site": str(self.given.packages / "site")}
        if self.soft and not self.given.all:
            settings.update(self.told["soft"][name])
        alone = bool(told.get("alone", False))
        suite = Suite(name, told["module"], settings, told["limit"], alone)
        for suite.package in told["packages"]:
            suite.version = self._ask("importlib.metadata as m", f"m.version({suite.package!r})")
            if suite.version:
                break
        if suite.version and (tests := settings.get("tests")):
            settings["root"] = self._root(str(tests))
        suite.native_on = f"{self.device}; {suite.package} {suite.version}"
        return suite

    def _root(self, tests: str) -> str:
        """Where the tests of a suite are: carried, or a part of a package."""
        kind, _, path = tests.rpartition(":")
        if kind != "package":
            return str(self.given.packages / path)
        top, _, rest = path.partition("/")
        origin = self._ask("importlib.util as u", f"u.find_spec({top!r}).origin")
        return str(Path(origin).parent / rest)

    def _ask(self, module: str, question: str) -> str:
        """What the frameworks' Python answers; nothing where it fails."""
        site = str(self.given.packages / "site")
        program = f"import site; site.addsitedir({site!r}); import {module}; print({question})"
        command = [self.given.python, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def on(self) -> str:
        return f"{self.given.commit}; {self.device}"

    def run(self) -> None:
        given = self.given
        self.results.write_to(given.out)
        settings = {"max-sessions": str(4 * given.processes), "soft-gpus": "2"}
        server = PoolServer(given.driver, **settings)
        try:
            server.start()
            with tempfile.TemporaryDirectory() as scratch:
                crew = Crew(self.results, given.processes, self.deadline, Path(scratch))
                for suite in self.suites:
                    suite.tasks = {way: self._task(server, suite, way) for way in self.ways()}
                    if given.again:
                        for task in suite.tasks.values():
                            self.results.forget(suite.name, task.way, task.on)
                plan = Plan(self.results, self.suites, given.shard, given.part, given.some)
                plan.compares = not self.soft
                if given.count:
                    crew.run(plan.counts())
                else:
                    crew.run(plan.jobs(), plan.follow)
        finally:
            if server.log.exists():
                said = server.log.read_text(errors="replace")[-1_000_000:]
                given.out.with_suffix(".server.log").write_text(said)
            server.close()

    def ways(self) -> list[str]:
        return [way for way in self.given.ways if not (self.soft and way == NATIVE)]

    def _task(self, server: PoolServer, suite: Suite, way: str) -> Task:
        return Task(
            suite=suite.name,
            module=suite.module,
            way=way,
            on=suite.native_on if way == NATIVE else self.on(),
            python=self.given.python,
            env=self._environment(server, way),
            settings=suite.settings,
            limit=suite.limit,
            start_limit=START_LIMIT,
            alone=suite.alone,
        )

    def _environment(self, server: PoolServer, way: str) -> dict[str, str]:
        if way == NATIVE:
            return native_environment(self.extra)
        return server.environment(way, **self.extra)

    def verdicts(self) -> list[Verdict]:
        differences = read_differences(HERE / "differs.toml")
        found = []
        for suite in self.suites:
            for way in (way for way in self.given.ways if way != NATIVE):
                told = (self.results, suite.name, way)
                if self.soft:
                    found.append(judge_soft(*told, self.on(), differences))
                else:
                    on = suite.native_on
                    found.append(judge(*told, on, self.on(), differences))
        return found

    def tallies(self) -> Iterator[str]:
        """How much of each suite has been run where its tests are counted."""
        for suite in self.suites:
            way = self.ways()[0] if self.soft else NATIVE
            on = self.on() if self.soft else suite.native_on
            yield tally(self.results, suite.name, way, on, suite.groups())


def report(verdicts: Iterable[Verdict]) -> int:
    failed, same = 0, 0
    for verdict in verdicts:
        failed += len(verdict.differs)
        same += verdict.same
        for record in verdict.differs[:SHOWN]:
            print(describe(record))
        if len(verdict.differs) > SHOWN:
            print(f"  and {len(verdict.differs) - SHOWN} more")
        print(verdict.line(), flush=True)
    return 1 if failed or not same else 0


def this_commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    found = int(number), int(count)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(text)
    return found


def some(text: str) -> tuple[str, int]:
    way, _, count = text.partition("=")
    if way not in WAYS or int(count) < 1:
        raise ValueError(text)
    return way, int(count)


def folder_of(packages: Path) -> Path:
    """The folder of the packages; an archive is unpacked beside itself, once."""
    if not packages.suffix:
        return packages
    folder = packages.with_name(packages.name.partition(".")[0])
    with packages.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    unpacked = folder / "unpacked"
    if not unpacked.exists() or unpacked.read_text() != digest:
        with tarfile.open(packages) as archive:
            archive.extractall(folder, filter="data")
        unpacked.write_text(digest)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--packages", type=Path, default=ROOT / "build" / "outside" / "packages")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "outside" / "results.jsonl")
    parser.add_argument("--resume", type=Path, nargs="+", default=[], help="results to go on with")
    parser.add_argument("--suites", nargs="+", default=[])
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--part", type=shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--some", type=some, action="append", default=[], metavar="WAY=N")
    parser.add_argument("--count", action="store_true", help="only count the tests")
    parser.add_argument("--all", action="store_true", help="more than the soft GPU carries")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", choices=("cuda", "soft"), default="cuda")
    parser.add_argument("--commit", default=this_commit(), help="what the results are told of")
    parser.add_argument("--again", action="store_true", help="once more what did not pass")
    parser.add_argument("--report", action="store_true", help="run nothing")
    given = parser.parse_args()
    given.some = dict(given.some)
    try:
        given.packages = folder_of(given.packages.absolute())
    except (OSError, tarfile.TarError) as error:
        print(f"tests/outside/run.py: {given.packages}: {error}; make outside-archive makes it")
        return 2
    if given.ways is None:
        given.ways = ["shm"] if given.driver == "soft" else [NATIVE, "shm", "tcp"]
    run = Run(given)
    if not run.device:
        print("tests/outside/run.py: nvidia-smi finds no GPU here; run it on a machine with one")
        return 2
    if not given.report:
        run.run()
    for line in run.tallies():
        print(line)
    code = report(run.verdicts())
    return 0 if given.count else code


if __name__ == "__main__":
    sys.exit(main())
