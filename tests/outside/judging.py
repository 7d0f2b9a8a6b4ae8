"""Holds what came of each test through the pool against what came of it natively."""

from __future__ import annotations

import fnmatch
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from records import NATIVE, Record, Results

#: The tests that passed natively, by group; what is in no group was not run.
Passed = dict[str, dict[str, Record]]


@dataclass(frozen=True)
class Difference:
    """An entry of differs.toml."""

    suite: str
    test: str
    reason: str
    ways: tuple[str, ...] = ()
    driver: str = "cuda"

    def covers(self, record: Record, driver: str) -> bool:
        if self.suite != record.suite or self.driver != driver:
            return False
        if self.ways and record.way not in self.ways:
            return False
        return fnmatch.fnmatchcase(f"{record.group}::{record.test}", self.test)


@dataclass
class Verdict:
    """One suite, one way."""

    suite: str
    way: str
    native: int = 0
    same: int = 0
    #: With a reason, and without.
    known: list[tuple[Record, str]] = field(default_factory=list)
    differs: list[Record] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.suite:8} {self.way:4} {self.same:7} same {len(self.differs):5} differ"
            f" {len(self.known):5} known {len(self.missing):6} missing"
        )


def read_differences(path: Path) -> list[Difference]:
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = [{**entry, "ways": tuple(entry.get("ways", ()))} for entry in told.get("differs", ())]
    return [Difference(**entry) for entry in entries]


def passed_natively(results: Results, suite: str, on: str) -> Passed:
    groups = results.groups(suite, NATIVE, on)
    return {
        group: {test: record for test, record in tests.items() if record.outcome == "passed"}
        for group, tests in groups.items()
    }


def judge(
    results: Results, suite: str, way: str, native_on: str, on: str, differences: list[Difference]
) -> Verdict:
    """Of a suite that has been run natively."""
    verdict = Verdict(suite, way)
    ours = results.groups(suite, way, on)
    for group, tests in passed_natively(results, suite, native_on).items():
        verdict.native += len(tests)
        for test, native in tests.items():
            record = ours.get(group, {}).get(test)
            if record is None:
                verdict.missing.append(f"{group}::{test}")
            elif is_same(native, record):
                verdict.same += 1
            else:
                place(verdict, record, differences, "cuda")
    return verdict


def judge_soft(
    results: Results, suite: str, way: str, on: str, differences: list[Difference]
) -> Verdict:
    """Of a suite on the soft GPU, which has no native run: each test passes, or is listed."""
    verdict = Verdict(suite, way)
    for tests in results.groups(suite, way, on).values():
        for record in tests.values():
            if record.outcome in ("passed", "skipped"):
                verdict.same += 1
            else:
                place(verdict, record, differences, "soft")
    return verdict


def is_same(native: Record, ours: Record) -> bool:
    """A test that passed, with the same bits where the GPU repeats itself."""
    if ours.outcome != "passed":
        return False
    return not (native.digest and ours.digest) or native.digest == ours.digest


def place(verdict: Verdict, record: Record, differences: list[Difference], driver: str) -> None:
    for known in differences:
        if known.covers(record, driver):
            verdict.known.append((record, known.reason))
            return
    verdict.differs.append(record)


def describe(record: Record) -> str:
    why = record.why or ("other bits than natively" if record.outcome == "passed" else "")
    return f"  {record.group}::{record.test}: {record.outcome}: {why}"
