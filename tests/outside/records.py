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


#: Behind the last test of a group: whether its process ended as it should. A group that has
#: this is through.
END = "(end)"


def end_of(part: tuple[int, int]) -> str:
    """The same of a part of a group."""
    number, count = part
    return END if count == 1 else f"(end {number}/{count})"


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
            ends = [test for test in tests if test.startswith("(end")]
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
