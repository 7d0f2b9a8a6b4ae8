"""Run suites that others wrote natively and through gpupool, test by test, and compare.

    python tests/outside/run.py --packages DIR --out FILE [--resume FILE ...]
        [--suites torch ...] [--ways native shm tcp] [--shard I/N] [--part I/N] [--minutes M]
        [--again]

Natively first, then, of what passed, the same through the pool. FILE gets a line for each test
as it ends; a later run that resumes it does what is missing, also with another --shard, and
merges it all. `--part` is of the tests of every file, for a look at all of them. `--driver soft`
runs what suites.toml gives the soft GPU, or all with `--all`. `--report` runs nothing.
The frameworks may live in another Python than gpupool: --python names it.
The exit code is 1 where a test differs from its native run without a reason in differs.toml, and
where nothing was the same.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    passed_natively,
    read_differences,
)
from records import NATIVE, Results, end_of  # noqa: E402

from harness import PoolServer, device_name, native_environment  # noqa: E402

WAYS = (NATIVE, "shm", "tcp", "zmq")
SHOWN = 40

#: Seconds in which a process imports its framework and finds its tests.
START_LIMIT = 240.0


@dataclass
class Suite:
    """A suite as suites.toml has it, on this machine."""

    name: str
    module: str
    package: str
    limit: float
    settings: dict[str, Any]
    version: str = ""

    def groups(self) -> list[str]:
        found: list[str] = importlib.import_module(self.module).groups(self.settings)
        return found


class Run:
    """What this call does."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.deadline = time.monotonic() + 60 * given.minutes
        self.told = tomllib.loads((HERE / "suites.toml").read_text(encoding="utf-8"))
        self.soft = given.driver == "soft"
        self.device = "soft" if self.soft else device_name()
        self.results = Results().read([*given.resume])
        self.extra = dict(self.told["soft"]["env"]) if self.soft else {}

    def suites(self) -> list[Suite]:
        """Those that were asked for, and whose package is here."""
        names = [name for name in self.told if name != "soft"]
        if self.soft and not self.given.all:
            names = [name for name in names if name in self.told["soft"]]
        found = [self._suite(name) for name in names if name in (self.given.suites or names)]
        for suite in found:
            if not suite.version:
                print(f"{suite.name:8} skipped: {self.given.python} has no {suite.package}")
        return [suite for suite in found if suite.version]

    def _suite(self, name: str) -> Suite:
        told = self.told[name]
        settings = {**told.get("settings", {}), "site": str(self.given.packages / "site")}
        if self.soft and not self.given.all:
            settings.update(self.told["soft"][name])
        suite = Suite(name, told["module"], "", told["limit"], settings)
        for suite.package in told["packages"]:
            suite.version = self._ask("importlib.metadata as m", f"m.version({suite.package!r})")
            if suite.version:
                break
        if suite.version and (tests := settings.get("tests")):
            settings["root"] = self._root(str(tests))
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

    def native_on(self, suite: Suite) -> str:
        return f"{self.device}; {suite.package} {suite.version}"

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
                for suite in self.suites():
                    for way in given.ways:
                        self._run_suite(crew, server, suite, way)
        finally:
            if server.log.exists():
                said = server.log.read_text(errors="replace")[-1_000_000:]
                given.out.with_suffix(".server.log").write_text(said)
            server.close()

    def _run_suite(self, crew: Crew, server: PoolServer, suite: Suite, way: str) -> None:
        if time.monotonic() >= self.deadline:
            return
        groups = [group for group in suite.groups() if self._in_shard(group)]
        only = None
        env = native_environment(self.extra)
        on = self.native_on(suite)
        if way != NATIVE:
            env = server.environment(way, **self.extra)
            on = self.on()
            if not self.soft:
                only, groups = self._passed(suite, groups)
        if self.given.again:
            self.results.forget(suite.name, way, on)
        task = Task(
            suite=suite.name,
            module=suite.module,
            way=way,
            on=on,
            python=self.given.python,
            env=env,
            settings=suite.settings,
            limit=suite.limit,
            start_limit=START_LIMIT,
            only=only,
            part=self.given.part,
        )
        began = time.monotonic()
        crew.run(task, groups)
        print(f"{suite.name:8} {way:6} {len(groups)} groups, {time.monotonic() - began:.0f} s")

    def _passed(
        self, suite: Suite, groups: list[str]
    ) -> tuple[dict[str, frozenset[str]], list[str]]:
        """What counts through the pool: what passed natively, of groups that are through there."""
        passed = passed_natively(self.results, suite.name, self.native_on(suite))
        end = end_of(self.given.part)
        through = [group for group in groups if end in passed.get(group, {})]
        return {group: frozenset(passed[group]) for group in through}, through

    def _in_shard(self, group: str) -> bool:
        number, count = self.given.shard
        return bool(zlib.crc32(group.encode()) % count == number - 1)

    def verdicts(self) -> list[Verdict]:
        differences = read_differences(HERE / "differs.toml")
        found = []
        for suite in self.suites():
            for way in (way for way in self.given.ways if way != NATIVE):
                told = (self.results, suite.name, way)
                if self.soft:
                    found.append(judge_soft(*told, self.on(), differences))
                else:
                    on = self.native_on(suite)
                    found.append(judge(*told, on, self.on(), differences))
        return found


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
    parser.add_argument("--all", action="store_true", help="more than the soft GPU carries")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", choices=("cuda", "soft"), default="cuda")
    parser.add_argument("--commit", default=this_commit(), help="what the results are told of")
    parser.add_argument("--again", action="store_true", help="once more what did not pass")
    parser.add_argument("--report", action="store_true", help="run nothing")
    given = parser.parse_args()
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
    return report(run.verdicts())


if __name__ == "__main__":
    sys.exit(main())
