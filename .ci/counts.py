"""What checks came to: counts, and of those that failed the names and what they said.

Whoever looks at a run has often only its end: so the end tells which checks failed, and why as
far as few lines can. Python standard library only.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: Lines for all failures together, and for what one of them said.
ROOM = 10
LINES = 4
#: More of a line is cut off.
WIDTH = 160

#: Lines of compilers, sanitizers, cmocka and our own checks that say what failed.
_TELLING = re.compile(r"FAIL|ERROR|Error: |\berror: |^SUMMARY: ")


def last_words(said: str) -> list[str]:
    """Of what a check said the lines that name what failed; the last ones if none does."""
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    return [line for line in lines if _TELLING.search(line)][:LINES] or lines[-LINES:]


def failure(name: str, words: Sequence[str] = ()) -> str:
    """A check that failed: its name, and below it what it said."""
    return "\n".join((name, *words))


@dataclass
class Count:
    """How many checks of one stage passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures


@dataclass(frozen=True)
class Row:
    """What a stage came to."""

    name: str
    count: Count
    seconds: float

    def __str__(self) -> str:
        count = self.count
        counts = f"{count.passed:6} passed {count.failed:4} failed {count.skipped:4} skipped"
        return f"{self.name:16} {counts} {self.seconds:7.1f} s"


def one(passed: bool, failed: str) -> Count:
    """The count of a single check; what to tell if it failed."""
    return Count(passed=1) if passed else Count(failed=1, failures=[failed])


def _case(case: ElementTree.Element) -> str:
    """A failed test of a JUnit report: pytest's message says what failed, ctest's does not."""
    folder, name = case.get("classname", ""), case.get("name", "")
    if (output := case.find("system-out")) is not None:
        return failure(name, last_words(output.text or ""))
    messages = (child.get("message", "") for child in case if child.tag in ("failure", "error"))
    words = [line for message in messages for line in message.splitlines() if line.strip()]
    return failure(f"{folder}.{name}", words[:LINES])


def read_junit(path: Path, succeeded: bool) -> Count:
    """Counts from a JUnit report. A run that failed without saying how is one failure."""
    count = Count()
    if path.is_file():
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            outcomes = {child.tag for child in case}
            if outcomes & {"failure", "error"} or case.get("status") == "fail":
                count.add(one(False, _case(case)))
            elif "skipped" in outcomes or case.get("status") in ("disabled", "notrun"):
                count.skipped += 1
            else:
                count.passed += 1
    if not succeeded and not count.failed or count.passed + count.failed == 0:
        count.add(one(False, f"no test of {path.name} failed, but the run did"))
    return count


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    told = json.loads(path.read_text(encoding="utf-8"))
    return [Row(row["name"], Count(**row["count"]), row["seconds"]) for row in told]


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    found = [(row.name, text) for row in rows for text in row.count.failures]
    words = min(LINES, ROOM // len(found) - 1) if found else 0
    for stage, text in found[:ROOM]:
        name, *said = text.splitlines()
        yield f"failed in {stage}: {name}"
        yield from (f"    {line}" for line in said[: max(words, 0)])
    if len(found) > ROOM:
        yield f"and {len(found) - ROOM} more"


def summary(rows: Sequence[Row]) -> str:
    """The end of a run: its stages, what failed, and the sums."""
    total = Count()
    for row in rows:
        total.add(row.count)
    lines = ["==", *map(str, rows), *(line[:WIDTH] for line in _failures(rows))]
    return "\n".join([*lines, f"{total.passed} passed, {total.failed} failed"])
