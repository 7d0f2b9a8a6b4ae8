"""What is run, and in which order: natively in slices, and what passed through the pool at once.

So whenever a run is cut off, native results have their pairs; each group of tests has had a turn
before one has its second; and what is left of a long group is run by several processes.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crew import Job, Task
from judging import is_same, passed_natively
from records import COUNT, NATIVE, WHOLE, Part, Record, Results, halves, left_of
from telling import Order

#: Seconds of a group's tests that run natively before others have their turn.
SLICE = 30.0


@dataclass
class Suite:
    """A suite as suites.toml has it, on this machine."""

    name: str
    module: str
    settings: dict[str, Any]
    limit: float
    #: Each group has a process of its own.
    alone: bool = False
    package: str = ""
    version: str = ""
    #: What its native results are told of.
    native_on: str = ""
    #: What runs it, by way.
    tasks: dict[str, Task] = field(default_factory=dict)

    def groups(self) -> list[str]:
        found: list[str] = importlib.import_module(self.module).groups(self.settings)
        return found


@dataclass
class Plan:
    """The jobs of some suites. Where they have no native task, each way runs all tests."""

    results: Results
    suites: list[Suite]
    #: Of so many parts of the groups, and of each group's tests, which.
    shard: Part = WHOLE
    part: Part = WHOLE
    #: Ways that run one slice in so many.
    some: Mapping[str, int] = field(default_factory=dict)
    #: Whether what is run through the pool is what passed natively.
    compares: bool = True
    slice: float = SLICE
    #: The tests that jobs have been made of, by suite, way and group.
    _asked: dict[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    #: The native bits of tests that had others through the pool, by suite, group and test.
    _doubted: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def counts(self) -> Iterator[Job]:
        """Jobs that find the tests of each group, and run none."""
        for suite in self.suites:
            task = next(iter(suite.tasks.values()))
            for group in self._groups(suite):
                if COUNT not in self._known(task, group):
                    yield Job(task, group, only=frozenset(), ends=False)

    def jobs(self) -> Iterator[Job]:
        """What is missing: first what an earlier run has left without its pair."""
        for suite in self.suites if self.compares else ():
            for group in self._groups(suite):
                yield from self._pairs(suite, group, self.part, through=True)
                yield from self._doubts(suite, group)
        for suite in self.suites:
            ways = [way for way in suite.tasks if way == NATIVE or not self.compares]
            for group in self._groups(suite):
                for way in ways:
                    task = suite.tasks[way]
                    for left in left_of(self.part, self._known(task, group)):
                        yield Job(task, group, left, slice=self.slice)

    def follow(self, job: Job, left: bool) -> tuple[list[Job], list[Job]]:
        """Behind native tests come the same through the pool, and natively once more what had other
        bits there; at the end of the line, the halves of what is left.
        """
        now: list[Job] = []
        if self.compares:
            (suite,) = (suite for suite in self.suites if suite.name == job.task.suite)
            if job.again:
                self._settle(job)
            elif job.task.way == NATIVE:
                now = [*self._pairs(suite, job.group, job.part, through=not left)]
            else:
                now = [*self._doubts(suite, job.group)]
        later = [Job(job.task, job.group, half, slice=job.slice) for half in halves(job.part)]
        return now, later if left else []

    def _doubts(self, suite: Suite, group: str) -> Iterator[Job]:
        """The tests of which the pool gave other bits: do they have the same ones twice?"""
        doubted = set()
        passed = passed_natively(self.results, suite.name, suite.native_on, group)
        for way in (way for way in suite.tasks if way != NATIVE):
            for test, ours in self._known(suite.tasks[way], group).items():
                native = passed.get(test)
                known = (suite.name, group, test)
                if native is None or ours.outcome != "passed" or is_same(native, ours):
                    continue
                if known not in self._doubted:
                    self._doubted[known] = native.digest
                    doubted.add(test)
        if doubted and NATIVE in suite.tasks:
            task = suite.tasks[NATIVE]
            yield Job(task, group, WHOLE, frozenset(doubted), ends=False, again=True)

    def _settle(self, job: Job) -> None:
        """Where the GPU gives other bits the second time, in another process, bits say nothing."""
        known = self._known(job.task, job.group)
        for test in job.only or ():
            if known[test].digest != self._doubted[job.task.suite, job.group, test]:
                self.results.add(replace(known[test], digest=""))

    def _pairs(self, suite: Suite, group: str, part: Part, through: bool) -> Iterator[Job]:
        """What passed natively of a part and was not run through the pool."""
        passed = passed_natively(self.results, suite.name, suite.native_on, group)
        for way, task in suite.tasks.items():
            if way == NATIVE or not self._runs(way, group, part):
                continue
            asked = self._asked.get((suite.name, way, group), frozenset())
            wanted = Order(skip=asked.union(self._known(task, group)), part=part)
            if tests := frozenset(name for name in passed if wanted.wants(name)):
                self._asked[suite.name, way, group] = asked | tests
                yield Job(task, group, part, tests, ends=through)

    def _runs(self, way: str, group: str, part: Part) -> bool:
        """Whether a slice runs this way."""
        number, _ = part
        return zlib.crc32(f"{group} {number}".encode()) % self.some.get(way, 1) == 0

    def _groups(self, suite: Suite) -> list[str]:
        number, count = self.shard
        return [
            group for group in suite.groups() if zlib.crc32(group.encode()) % count == number - 1
        ]

    def _known(self, task: Task, group: str) -> Mapping[str, Record]:
        return self.results.groups(task.suite, task.way, task.on).get(group, {})
