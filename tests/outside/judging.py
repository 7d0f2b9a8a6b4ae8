"""Holds what came of each test through the pool against what came of it natively."""

from __future__ import annotations

import fnmatch
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from records import COUNT, NATIVE, WELL, Record, Results, is_test


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
            f"{self.suite:8} {self.way:6} {self.same:7} same {len(self.differs):5} differ"
            f" {len(self.known):5} known {len(self.missing):6} not reached"
        )


def read_differences(path: Path) -> list[Difference]:
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = [{**entry, "ways": tuple(entry.get("ways", ()))} for entry in told.get("differs", ())]
    return [Difference(**entry) for entry in entries]


def passed_natively(results: Results, suite: str, on: str, group: str) -> dict[str, Record]:
    tests = results.groups(suite, NATIVE, on).get(group, {})
    return {
        test: record
        for test, record in tests.items()
        if record.outcome == "passed" and is_test(test)
    }


def judge(
    results: Results, suite: str, way: str, native_on: str, on: str, differences: list[Difference]
) -> Verdict:
    """Of a suite that has been run natively."""
    verdict = Verdict(suite, way)
    ours = results.groups(suite, way, on)
    for group in results.groups(suite, NATIVE, native_on):
        tests = passed_natively(results, suite, native_on, group)
        verdict.native += len(tests)
        found = ours.get(group, {})
        for of_the_group in (each for each in found.values() if not is_test(each.test)):
            if of_the_group.outcome != "passed":
                place(verdict, of_the_group, differences, "cuda")
        for test, native in tests.items():
            record = found.get(test)
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
            if record.outcome in WELL:
                verdict.same += is_test(record.test)
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


def tally(results: Results, suite: str, way: str, on: str, groups: list[str]) -> str:
    """What came of the tests of a suite one way, and how many it has where that is known."""
    known = results.groups(suite, way, on)
    outcomes: Counter[str] = Counter()
    for tests in known.values():
        outcomes.update(record.outcome for test, record in tests.items() if is_test(test))
    counts = [known[group][COUNT].tests for group in groups if COUNT in known.get(group, {})]
    whole = f"of {sum(counts)} in {len(counts)} of {len(groups)} groups"
    told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return f"{suite:8} {way:6} {outcomes.total():7} {whole}: {told or 'none'}"
