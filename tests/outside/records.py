"""What came of each test, kept as JSON lines: one file for all suites, ways and machines.

A record is known by its suite, way, test and what it was run on: natively that is the GPU with
its driver and the package, through the pool the commit. Files are merged by reading them one
after the other; the last record of a test counts, so a run that is cut off loses nothing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

#: How a test ends. `crashed` and `hung` cost the process that ran it, and no other test.
OUTCOMES = ("passed", "failed", "skipped", "crashed", "hung")

WELL = ("passed", "skipped")

NATIVE = "native"


@dataclass(frozen=True)
class Record:
    """One test, run one way."""

    suite: str
    way: str
    on: str
    group: str
    test: str
    outcome: str
    #: The bits of its results, where two runs beside each other gave the same.
    digest: str = ""
    why: str = ""
    seconds: float = 0.0
    #: Of COUNT.
    tests: int = 0


#: Behind the last test of a group: whether its process ended as it should. A group that has
#: this is through.
END = "(end)"

#: How many tests a group has, whatever part of them is run.
COUNT = "(count)"

#: Of so many parts of a group, which.
Part = tuple[int, int]

WHOLE: Part = (1, 1)


def end_of(part: Part) -> str:
    """The same of a part of a group."""
    number, count = part
    return END if count == 1 else f"(end {number}/{count})"


def halves(part: Part) -> list[Part]:
    """The two parts that a part has (Order.wants says what a part is)."""
    number, count = part
    return [(number, 2 * count), (number + count, 2 * count)]


def left_of(part: Part, tests: Iterable[str]) -> list[Part]:
    """What is not through of a part of a group that has these records."""
    number, count = part
    ends = [found for name in tests if (found := part_of(name)) is not None]
    if any(count % n == 0 and (number - i) % n == 0 for i, n in ends):
        return []
    if not any(is_power_of_two(n, count) and (i - number) % count == 0 for i, n in ends):
        return [part]
    return [left for half in halves(part) for left in left_of(half, tests)]


def is_power_of_two(number: int, of: int) -> bool:
    times, rest = divmod(number, of)
    return not rest and times & (times - 1) == 0


def part_of(name: str) -> Part | None:
    """The part that is through, if a record says that one is."""
    if name == END:
        return WHOLE
    if not name.startswith("(end "):
        return None
    number, _, count = name[5:-1].partition("/")
    return int(number), int(count)


def is_test(name: str) -> bool:
    """Whether a record is of a test: others are of its group."""
    return not name.startswith(("(end", "(count"))


class Results:
    """All records; what is added is appended to a file at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[str, dict[str, Record]]] = {}
        self._out: TextIO | None = None

    def read(self, paths: Iterable[Path]) -> Results:
        for path in paths:
            for line in lines_of(path):
                self._take(parse(line))
        return self

    def write_to(self, path: Path) -> Results:
        """Begin `path` with all that is known, and go on with what is added. What is there is
        replaced at once: whoever is ended meanwhile has not lost it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        self._out = new.open("w", encoding="utf-8")
        for groups in self._known.values():
            for tests in groups.values():
                for known in tests.values():
                    self._write(known)
        self._out.flush()
        new.replace(path)
        return self

    def add(self, new: Record) -> None:
        self._take(new)
        if self._out is not None:
            self._write(new)
            self._out.flush()

    def forget(self, suite: str, way: str, on: str) -> None:
        """What did not pass is as if it had not been run."""
        for tests in self.groups(suite, way, on).values():
            bad = [test for test, record in tests.items() if record.outcome not in WELL]
            ends = [test for test in tests if part_of(test) is not None]
            for test in (*bad, *ends) if bad else ():
                tests.pop(test, None)

    def groups(self, suite: str, way: str, on: str) -> dict[str, dict[str, Record]]:
        """The records of one run of a suite: by group, then by test."""
        return self._known.get((suite, way, on), {})

    def _take(self, new: Record) -> None:
        groups = self._known.setdefault((new.suite, new.way, new.on), {})
        groups.setdefault(new.group, {})[new.test] = new

    def _write(self, known: Record) -> None:
        assert self._out is not None
        told = {name: value for name, value in asdict(known).items() if value not in ("", 0.0)}
        self._out.write(json.dumps(told) + "\n")


def lines_of(path: Path) -> Iterator[str]:
    """The whole lines of a file: one that was cut off in the middle is fine."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file, contextlib.suppress(EOFError):
        yield from (line.decode() for line in file if line.endswith(b"\n"))


def parse(line: str) -> Record:
    told: dict[str, Any] = json.loads(line)
    if told.get("outcome") not in OUTCOMES:
        raise ValueError(f"no outcome of a test: {line[:200]}")
    return Record(**told)
