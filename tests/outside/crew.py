"""Runs the groups of a suite in processes side by side; a test that hangs or ends its process
costs itself only.

A process says when a test begins and how it ended. When it says nothing for longer than a test
may take, or goes, the test that ran is recorded as hung or crashed, and another process runs
what is left of the group.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import Record, Results, end_of

HERE = Path(__file__).resolve().parent

#: A process that has run its tests ends within so many seconds.
END_LIMIT = 60.0

#: A process that goes without having run a test since it began is not started more often.
TRIES = 2

WHY_LENGTH = 300


@dataclass(frozen=True)
class Task:
    """A suite, run one way."""

    suite: str
    module: str
    way: str
    on: str
    python: str
    env: Mapping[str, str]
    settings: Mapping[str, Any]
    #: Seconds for one test, and for what comes before the first.
    limit: float
    start_limit: float
    #: By group, the tests that count; None: all.
    only: Mapping[str, frozenset[str]] | None = None
    #: Of so many parts of each group, which.
    part: tuple[int, int] = (1, 1)

    @property
    def end(self) -> str:
        return end_of(self.part)


@dataclass
class Crew:
    """Processes side by side, until `deadline` (of time.monotonic)."""

    results: Results
    processes: int
    deadline: float
    scratch: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, task: Task, groups: list[str]) -> None:
        with ThreadPoolExecutor(self.processes) as pool:
            for done in [pool.submit(self._run_group, task, group) for group in groups]:
                done.result()

    def _run_group(self, task: Task, group: str) -> None:
        done = frozenset(self.results.groups(task.suite, task.way, task.on).get(group, ()))
        why, tries = "", 0
        while task.end not in done and tries < TRIES and time.monotonic() < self.deadline:
            child = Child(self, task, group, done)
            child.run()
            tries = 0 if child.ended else tries + 1
            done |= child.ended
            why = child.last_words
        if tries == TRIES:
            self.add(Record(task.suite, task.way, task.on, group, task.end, "crashed", why=why))

    def add(self, new: Record) -> None:
        with self._lock:
            self.results.add(new)


class Child:
    """One process that runs what is left of a group."""

    def __init__(self, crew: Crew, task: Task, group: str, done: frozenset[str]) -> None:
        self.crew = crew
        self.task = task
        self.group = group
        self.done = done
        self.ended: frozenset[str] = frozenset()
        self.running = ""
        self.over = False
        self.last_words = ""
        self._said = b""
        descriptor, name = tempfile.mkstemp(dir=crew.scratch, suffix=".log")
        os.close(descriptor)
        self.log = Path(name)

    def run(self) -> None:
        """Run what is left of the group, or a part of it: `ended` says what."""
        with self._started() as (process, events):
            how = self._follow(events)
            status = end(process, 0.0 if how in ("silent", "deadline") else END_LIMIT)
        test = self.task.end if how == "over" else self.running
        if how == "over" and status == 0:
            self._end(test, "passed", "")
        elif test and how != "deadline":
            stayed = how == "over" and status == -signal.SIGKILL
            outcome = "hung" if how == "silent" or stayed else "crashed"
            self._end(test, outcome, f"{how_it_ended(status)}: {self.last_words}"[:WHY_LENGTH])

    @contextlib.contextmanager
    def _started(self) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        order = self.log.with_suffix(".json")
        only = None if self.task.only is None else sorted(self.task.only.get(self.group, ()))
        told = {"skip": sorted(self.done), "only": only, "settings": dict(self.task.settings)}
        order.write_text(json.dumps({**told, "part": self.task.part}))
        reader, writer = os.pipe()
        command = [self.task.python, str(HERE / "telling.py"), self.task.module, self.group]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [*command, str(order), str(writer)],
                env=dict(self.task.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                start_new_session=True,
            )
        os.close(writer)
        try:
            yield process, reader
        finally:
            os.close(reader)
            self.last_words = last_line(self.log)
            order.unlink()
            self.log.unlink()

    def _follow(self, events: int) -> str:
        """Take what the process says: until it is through (`over`), ends before that (`closed`),
        is `silent` for too long, or the time is over (`deadline`).
        """
        limit = self.task.start_limit
        while True:
            left = self.crew.deadline - time.monotonic()
            if left <= 0:
                return "deadline"
            readable, _, _ = select.select([events], [], [], min(limit, left))
            if not readable:
                if left <= limit:
                    continue
                return "silent"
            more = os.read(events, 1 << 16)
            if not more:
                return "closed"
            self._said += more
            *lines, self._said = self._said.split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if self.over:
                return "over"
            limit = self.task.limit if self.running or self.ended else self.task.start_limit

    def _take(self, event: dict[str, Any]) -> None:
        if "begin" in event:
            self.running = event["begin"]
        elif "end" in event:
            more = {"digest": event["digest"], "seconds": event["seconds"]}
            self._end(event["end"], event["outcome"], event["why"], **more)
        elif "over" in event:
            self.over = True

    def _end(self, test: str, outcome: str, why: str, **more: Any) -> None:
        task = self.task
        self.running = ""
        self.ended |= {test}
        new = Record(task.suite, task.way, task.on, self.group, test, outcome, why=why, **more)
        self.crew.add(new)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def end(process: subprocess.Popen[bytes], patience: float) -> int:
    """The status of a process and all that it started, which are killed after `patience`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
