"""What orders of the queue come to: the manager's own decisions on a day of simulated requests.

    python bench/queue_orders.py [--gpus 10000] [--hours 8] [--load 2.0] [--seed 1]

Tenants ask by a Poisson process whose rate changes from hour to hour, some for much more than
their quota, others for less. Lengths are log-normal, so a few jobs run for very long; gangs have up
to 64 GPUs. Every order gets the same trace. No database and no network: placement, quotas, queue
and reclaim are the manager's own, and time goes by as fast as they can.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
for folder in (ROOT / "pool", ROOT / "tests" / "python", HERE):
    sys.path.insert(0, str(folder))

from gpupool_common.lease import LeaseState  # noqa: E402
from gpupool_manager.lease_request import LeaseRequest  # noqa: E402
from gpupool_manager.leases import Leases  # noqa: E402
from gpupool_manager.ledger import Ledger  # noqa: E402
from gpupool_manager.placement_request import Hosts, PlacementRequest  # noqa: E402
from gpupool_manager.records import Beyond, Lease, Quota  # noqa: E402
from gpupool_manager.transaction import Transaction  # noqa: E402
from gpupool_manager.waiting import OrderRules  # noqa: E402
from queue_world import loaded  # noqa: E402

GPUS_PER_NODE = 8
TENANTS = 8
HOUR = 3600.0
#: How many GPUs a job has, and how often; those of one node at most are all on one.
SIZES = ((1, 50), (2, 15), (4, 12), (8, 13), (16, 5), (32, 3), (64, 2))
#: Seconds of half of all jobs, and how far lengths are spread.
MEDIAN, SPREAD = 40 * 60.0, 1.5
#: No job runs for longer.
LONGEST = 48 * HOUR
#: What people write as a time limit: the next one that is enough.
LIMITS = tuple(hours * HOUR for hours in (0.5, 1, 2, 4, 8, 16, 24, 48, 49))
#: How much more or less than usual a tenant asks in an hour.
BURSTS = (0.2, 0.5, 1.0, 3.0)
#: What a program that was reclaimed has to do again: what it did since its last checkpoint.
REDONE = 5 * 60.0


@dataclass(frozen=True)
class Way:
    """An order of the queue, and what quotas mean."""

    name: str
    fair: bool
    quotas: bool
    beyond: Beyond
    #: Whether jobs say how long they last at most.
    timed: bool = False


WAYS = (
    Way("strict, no quotas", False, False, "refuse"),
    Way("strict, no quotas, time limits", False, False, "refuse", True),
    Way("strict, quotas", False, True, "wait"),
    Way("fair, no quotas", True, False, "refuse"),
    Way("fair, quotas lent", True, True, "borrow"),
)


@dataclass
class Job:
    tenant: str
    at: float
    gpus: int
    length: float
    #: What it has still to run, in seconds.
    left: float
    ended: float | None = None
    reclaims: int = 0


def trace(gpus: int, hours: float, load: float, seed: int) -> list[Job]:
    """All jobs of a day, in the order in which they come."""
    draw = random.Random(seed)
    sizes, often = zip(*SIZES, strict=True)
    mean_gpus = sum(size * part for size, part in SIZES) / sum(often)
    sample = [_length(draw) for _ in range(20_000)]
    per_hour = load * gpus * HOUR / (mean_gpus * sum(sample) / len(sample))
    # The first asks most: four times as much as the last.
    weights = [4.0 ** (1 - number / (TENANTS - 1)) for number in range(TENANTS)]
    mean_burst = sum(BURSTS) / len(BURSTS)
    jobs: list[Job] = []
    for number, weight in enumerate(weights):
        now, rate = 0.0, 0.0
        while now < hours * HOUR:
            rate = per_hour * weight / sum(weights) * draw.choice(BURSTS) / mean_burst / HOUR
            end = now + HOUR
            while (now := now + draw.expovariate(rate)) < end:
                size = draw.choices(sizes, often)[0]
                length = _length(draw)
                jobs.append(Job(f"t-{number}", now, size, length, length))
            now = end
    return sorted((job for job in jobs if job.at < hours * HOUR), key=lambda job: job.at)


def _length(draw: random.Random) -> float:
    return min(MEDIAN * draw.lognormvariate(0.0, SPREAD), LONGEST)


@dataclass
class Day:
    """One way through the trace."""

    way: Way
    gpus: int
    hours: float
    jobs: list[Job]
    now: float = 0.0
    #: By tenant, in seconds of a GPU.
    granted: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _running: dict[str, tuple[Job, float]] = field(default_factory=dict)
    _waiting: dict[str, Job] = field(default_factory=dict)
    #: What is to come: (time, order, lease that ends; empty: something is due).
    _coming: list[tuple[float, int, str]] = field(default_factory=list)
    _count: int = 0

    def run(self) -> None:
        quota = self.gpus // TENANTS if self.way.quotas else None
        quotas = [
            Quota(f"t-{number}", gpus=quota, borrow=self.way.beyond == "borrow")
            for number in range(TENANTS)
        ]
        pool = loaded(self.gpus // GPUS_PER_NODE, GPUS_PER_NODE, quotas)
        self.ledger = Ledger(pool, 0.0, "e", OrderRules(fair=self.way.fair))
        self.leases = Leases(self.ledger, 60.0, 1_000_000, 1e9)
        arrivals = iter(self.jobs)
        job = next(arrivals, None)
        end = self.hours * HOUR
        while self.now < end:
            coming = self._coming[0][0] if self._coming else end
            if job is not None and job.at <= coming:
                self.now = job.at
                self._ask(job)
                job = next(arrivals, None)
            elif coming < end:
                self.now, _, lease = heapq.heappop(self._coming)
                self._pass(lease)
            else:
                self.now = end
        for running, since in self._running.values():
            self._count_time(running, since)

    def _ask(self, job: Job) -> None:
        hosts: Hosts = "same" if job.gpus <= GPUS_PER_NODE else "any"
        request = PlacementRequest(job.gpus, None, 1000, hosts=hosts)
        limit = next((each for each in LIMITS if each >= job.left), None)
        asked = LeaseRequest(
            job.tenant,
            request,
            wait=1e9,
            ttl=1e9,
            beyond=self.way.beyond,
            time_limit=limit if self.way.timed else None,
        )
        transaction = Transaction(self.now)
        lease = self.leases.admit(transaction, asked)
        self._waiting[lease.id] = job
        self._take(transaction)

    def _pass(self, name: str) -> None:
        """A job is done, or the manager has something to do."""
        transaction = Transaction(self.now)
        lease = self.ledger.leases.get(name)
        if lease is not None and lease.state == LeaseState.ACTIVE:
            job = self._stop(lease)
            job.ended = self.now
            self.leases.end(transaction, lease, LeaseState.RELEASED, "")
        elif not name and self.leases.any_due(self.now):
            self.leases.sweep(transaction)
        self._take(transaction)

    def _stop(self, lease: Lease) -> Job:
        job, since = self._running.pop(lease.id)
        self._count_time(job, since)
        return job

    def _count_time(self, job: Job, since: float) -> None:
        self.granted[job.tenant] += job.gpus * (self.now - since)
        job.left -= self.now - since

    def _take(self, transaction: Transaction) -> None:
        """What a change has told those who watch."""
        again: list[Job] = []
        for event in transaction.events:
            if event.kind == "lease.granted":
                job = self._waiting.pop(event.object)
                self._running[event.object] = (job, self.now)
                self._at(self.now + job.left, event.object)
            elif event.kind == "lease.reclaiming":
                self._at(event.detail["at"], "")
            elif event.kind == "lease.reclaimed":
                job, since = self._running.pop(event.object)
                self._count_time(job, since)
                job.left = min(job.length, job.left + REDONE)
                job.reclaims += 1
                again.append(job)
        for job in again:
            self._ask(job)

    def _at(self, when: float, lease: str) -> None:
        self._count += 1
        heapq.heappush(self._coming, (when, self._count, lease))

    # Figures ---------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Of the jobs that came in the first three quarters: the others had no time to end."""
        asked = [job for job in self.jobs if job.at < 0.75 * self.hours * HOUR]
        waits = [self._wait(job) for job in asked]
        speeds: defaultdict[str, list[float]] = defaultdict(list)
        by_tenant: defaultdict[str, list[float]] = defaultdict(list)
        for job, wait in zip(asked, waits, strict=True):
            speeds[job.tenant].append(job.length / (wait + job.length))
            by_tenant[job.tenant].append(wait)
        return {
            "way": self.way.name,
            "jobs": len(self.jobs),
            "utilisation": sum(self.granted.values()) / (self.gpus * self.hours * HOUR),
            "wait_mean_min": _mean(waits) / 60,
            "wait_p95_min": sorted(waits)[int(0.95 * len(waits))] / 60,
            "worst_tenant_wait_min": max(map(_mean, by_tenant.values())) / 60,
            "best_tenant_wait_min": min(map(_mean, by_tenant.values())) / 60,
            "jain_speed": jain([_mean(each) for each in speeds.values()]),
            "jain_due": jain(self._dues()),
            "reclaims": sum(job.reclaims for job in self.jobs),
        }

    def _dues(self) -> list[float]:
        """Of each tenant: what it got of an equal part of the pool, or of all that it asked."""
        end, asked = self.hours * HOUR, defaultdict[str, float](float)
        for job in self.jobs:
            asked[job.tenant] += job.gpus * min(job.length, end - job.at)
        part = self.gpus * end / TENANTS
        return [min(1.0, self.granted[name] / min(part, most)) for name, most in asked.items()]

    def _wait(self, job: Job) -> float:
        """All the time in which it did not get on: before its start, and after each reclaim."""
        until = self.hours * HOUR if job.ended is None else job.ended
        return max(0.0, until - job.at - (job.length - job.left))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def jain(values: list[float]) -> float:
    """Jain's index: 1 if all have the same, 1/n if one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def measure(gpus: int, hours: float, load: float, seed: int) -> list[dict[str, Any]]:
    """The same day in each way."""
    found = []
    for way in WAYS:
        day = Day(way, gpus, hours, trace(gpus, hours, load, seed))
        started = time.process_time()
        day.run()
        found.append({**day.figures(), "cpu_seconds": time.process_time() - started})
        print(line(found[-1]), flush=True)
    return found


def line(figures: dict[str, Any]) -> str:
    """A row of the table of docs/queue.md."""
    return (
        f"| {figures['way']} | {figures['utilisation']:.1%} | {figures['wait_mean_min']:.0f}"
        f" | {figures['wait_p95_min']:.0f} | {figures['best_tenant_wait_min']:.0f}"
        f" | {figures['worst_tenant_wait_min']:.0f} | {figures['jain_speed']:.3f}"
        f" | {figures['jain_due']:.3f} | {figures['reclaims']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--load", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        "| order | in use | wait mean | p95 | best tenant | worst tenant | Jain, speed"
        " | Jain, due | reclaims |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found = measure(options.gpus, options.hours, options.load, options.seed)
    path = HERE / "results" / "queue.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**vars(options), "ways": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
