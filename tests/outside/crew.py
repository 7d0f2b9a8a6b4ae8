"""Runs the groups of suites in processes side by side; a test that hangs or ends its process costs
itself only.

A process runs one group after the other, so its framework is imported once. It says when a test
begins and how it ended. When it says nothing for longer than a test may take, or goes, the test
that ran is recorded as hung or crashed, and another process runs what is left of the group.
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
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import COUNT, WHOLE, Part, Record, Results, end_of

HERE = Path(__file__).resolve().parent

#: A process that has run its tests ends within so many seconds.
END_LIMIT = 60.0

#: A process that goes without having run a test since it began is not started more often.
TRIES = 2

#: Processes that a thread keeps between jobs, one for each suite and way.
KEPT = 3

WHY_LENGTH = 300


@dataclass(frozen=True, eq=False)
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
    #: Each group has a process of its own.
    alone: bool = False


@dataclass(frozen=True)
class Job:
    """A part of a group, run one way."""

    task: Task
    group: str
    part: Part = WHOLE
    #: The tests that count; None: all.
    only: frozenset[str] | None = None
    #: Seconds until what is left is another job; None: no such.
    slice: float | None = None
    #: Whether the part is through behind these tests.
    ends: bool = True
    #: Whether `only` is run whatever has been run before.
    again: bool = False

    @property
    def end(self) -> str:
        return end_of(self.part)

    def is_done(self, records: frozenset[str]) -> bool:
        """Whether all of it has been run, if these have."""
        if self.only is None:
            return self.end in records
        return bool(self.only) and self.only <= records


#: What a job leads to, once it is over, or as much of it as its slice took (`left`): jobs that run
#: as soon as they can, and jobs at the end of the line.
Follow = Callable[[Job, bool], tuple[list[Job], list[Job]]]


def nothing_follows(job: Job, left: bool) -> tuple[list[Job], list[Job]]:
    return [], []


@dataclass
class Crew:
    """Processes side by side, until `deadline` (of time.monotonic)."""

    results: Results
    processes: int
    deadline: float
    scratch: Path
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _now: deque[Job] = field(default_factory=deque)
    _later: deque[Job] = field(default_factory=deque)
    _busy: int = 0

    def run(self, jobs: Iterable[Job], follow: Follow = nothing_follows) -> None:
        """Run the jobs, in their order, and what follows each."""
        self._later.extend(jobs)
        with ThreadPoolExecutor(self.processes) as pool:
            for done in [pool.submit(self._work, follow) for _ in range(self.processes)]:
                done.result()

    def add(self, new: Record) -> None:
        with self._turn:
            self.results.add(new)

    def done(self, job: Job) -> frozenset[str]:
        """The tests of a job's group that have been run."""
        task = job.task
        with self._turn:
            return frozenset(self.results.groups(task.suite, task.way, task.on).get(job.group, ()))

    def _work(self, follow: Follow) -> None:
        lanes: dict[Task, Lane] = {}
        try:
            while (job := self._next(lanes)) is not None:
                now: list[Job] = []
                later: list[Job] = []
                try:
                    how = self._run_job(job, lanes)
                    if how in ("over", "left"):
                        with self._turn:  # the results stay as they are meanwhile
                            now, later = follow(job, how == "left")
                finally:
                    with self._turn:
                        self._now.extend(now)
                        self._later.extend(later)
                        self._busy -= 1
                        self._turn.notify_all()
        finally:
            for lane in lanes.values():
                lane.close()

    def _next(self, lanes: Mapping[Task, Lane]) -> Job | None:
        """Of what is for now, first what a process of this thread can run; None: there is no more,
        nor will be."""
        with self._turn:
            while time.monotonic() < self.deadline:
                waiting = self._now or self._later
                if waiting:
                    job = next((job for job in self._now if job.task in lanes), waiting[0])
                    waiting.remove(job)
                    self._busy += 1
                    return job
                if not self._busy:
                    return None
                self._turn.wait(1.0)
        return None

    def _run_job(self, job: Job, lanes: dict[Task, Lane]) -> str:
        """Until it is `over`, its slice is and something is `left`, or no process gets further."""
        how, tries = "", 0
        ended: frozenset[str] = frozenset()
        while tries < TRIES and how not in ("over", "left", "deadline"):
            done = self.done(job)
            if job.again and job.only is not None:
                done = done - job.only | ended
            if job.is_done(done):
                return "over"
            if time.monotonic() >= self.deadline:
                return "deadline"
            if job.again and job.task in lanes:
                lanes.pop(job.task).close()  # another process, which may find something else
            lane = self._lane(job.task, lanes)
            how = lane.run(job, done)
            if how not in ("over", "left") or job.task.alone:
                lanes.pop(job.task).close()
            tries = 0 if lane.ended else tries + 1
            ended |= lane.ended
        if how not in ("over", "left", "deadline"):
            task = job.task
            why = lane.last_words
            self.add(Record(task.suite, task.way, task.on, job.group, job.end, "crashed", why=why))
        return how

    def _lane(self, task: Task, lanes: dict[Task, Lane]) -> Lane:
        lane = lanes.pop(task, None) or Lane(self, task)
        while len(lanes) >= KEPT:
            lanes.pop(next(iter(lanes))).close()
        lanes[task] = lane  # the last one is the one that was used last
        return lane


class Lane:
    """One process that runs jobs of a task, one after the other."""

    def __init__(self, crew: Crew, task: Task) -> None:
        self.crew = crew
        self.task = task
        self.job: Job | None = None
        #: Of this job.
        self.ended: frozenset[str] = frozenset()
        self.running = ""
        self.over = ""
        self.last_words = ""
        self._said = b""
        descriptor, name = tempfile.mkstemp(dir=crew.scratch, suffix=".log")
        self.log = Path(name)
        self._order = self.log.with_suffix(".json")
        self._events, events = os.pipe()
        orders, self._orders = os.pipe()
        command = [task.python, str(HERE / "telling.py"), task.module, str(orders), str(events)]
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            command,
            env=dict(task.env),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            pass_fds=(orders, events),
            start_new_session=True,
        )
        for each in (descriptor, orders, events):
            os.close(each)

    def run(self, job: Job, done: frozenset[str]) -> str:
        """Run what is left of a job, or a part of it: `ended` says what."""
        self.job, self.ended, self.running, self.over = job, frozenset(), "", ""
        only = None if job.only is None else sorted(job.only)
        told: dict[str, Any] = {
            "group": job.group,
            "skip": sorted(done),
            "only": only,
            "part": job.part,
        }
        told |= {"settings": dict(self.task.settings), "slice": job.slice}
        self._order.write_text(json.dumps(told))
        with contextlib.suppress(BrokenPipeError):  # it has ended: its events say so
            os.write(self._orders, f"{self._order}\n".encode())
        how = self._follow()
        if how in ("silent", "closed"):
            status = self._end(0.0 if how == "silent" else END_LIMIT)
            if self.running:
                outcome = "hung" if how == "silent" else "crashed"
                self._take_end(self.running, outcome, self._why(status))
        elif how == "over" and job.ends:
            self._take_end(job.end, "passed", "")
        elif how == "deadline":
            self._end(0.0)
        return how

    def close(self) -> None:
        """Let it end, as it should: if it does not, that is what came of its last job."""
        job, self.job = self.job, None
        if self._process is not None:
            os.close(self._orders)
            self._orders = -1
            patience = min(END_LIMIT, max(0.0, self.crew.deadline - time.monotonic()))
            status = self._end(patience)
            stayed = status == -signal.SIGKILL
            if (
                status != 0
                and job is not None
                and job.ends
                and not (stayed and patience < END_LIMIT)
            ):
                self.job = job
                self._take_end(job.end, "hung" if stayed else "crashed", self._why(status))

    def _end(self, patience: float) -> int:
        assert self._process is not None
        status = end(self._process, patience)
        self._process = None
        self.last_words = last_line(self.log)
        for each in (self._events, self._orders):
            if each != -1:
                os.close(each)
        self.log.unlink()
        self._order.unlink(missing_ok=True)
        return status

    def _why(self, status: int) -> str:
        return f"{how_it_ended(status)}: {self.last_words}"[:WHY_LENGTH]

    def _follow(self) -> str:
        """Take what the process says: until it is through (`over`) or has run for its slice
        (`left`), ends before that (`closed`), is `silent` for too long, or the time is over
        (`deadline`).
        """
        limit = self.task.start_limit
        while True:
            left = self.crew.deadline - time.monotonic()
            if left <= 0:
                return "deadline"
            readable, _, _ = select.select([self._events], [], [], min(limit, left))
            if not readable:
                if left <= limit:
                    continue
                return "silent"
            more = os.read(self._events, 1 << 16)
            if not more:
                return "closed"
            self._said += more
            *lines, self._said = self._said.split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if self.over:
                return self.over
            limit = self.task.limit if self.running or self.ended else self.task.start_limit

    def _take(self, event: dict[str, Any]) -> None:
        if "ready" in event:
            self._take_count(event["ready"])
        elif "begin" in event:
            self.running = event["begin"]
        elif "end" in event:
            more = {"digest": event["digest"], "seconds": event["seconds"]}
            self._take_end(event["end"], event["outcome"], event["why"], **more)
        elif "over" in event:
            self.over = event["over"]

    def _take_count(self, tests: int) -> None:
        """How many tests the group has is one of its records."""
        assert self.job is not None
        if COUNT not in self.crew.done(self.job):
            task = self.task
            new = Record(
                task.suite, task.way, task.on, self.job.group, COUNT, "passed", tests=tests
            )
            self.crew.add(new)

    def _take_end(self, test: str, outcome: str, why: str, **more: Any) -> None:
        assert self.job is not None
        task, group = self.task, self.job.group
        self.running = ""
        self.ended |= {test}
        self.crew.add(Record(task.suite, task.way, task.on, group, test, outcome, why=why, **more))


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
