"""How the manager scales: a simulated pool of up to 10,000 GPUs, with a real database.

    python bench/pool.py [--gpus 1000 2500 5000 10000] [--leases 10] [--databases sqlite postgresql]

Only the GPUs are simulated, and time goes by as fast as it can: placement, quotas, queue, ledger,
database, messages of nodes and REST API are the manager's own. Leases come and go so that the
pool is as good as full; some are refused, some wait. The results go to bench/results/pool.json
(ignored by git), the plot to bench/results/pool.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "python", HERE):
    sys.path.insert(0, str(folder))

import httpx  # noqa: E402
import uvloop  # noqa: E402
from pool_plot import plot  # noqa: E402

from gpupool_common import collector, logs  # noqa: E402
from gpupool_common.lease import LeaseState  # noqa: E402
from gpupool_common.node_protocol import (  # noqa: E402
    Beat,
    Heartbeat,
    Report,
    ReportedGpu,
    ReportedSession,
    Told,
    decode_from_node,
    encode,
)
from gpupool_common.quantities import MEBIBYTE as MIB  # noqa: E402
from gpupool_manager.app import make_app  # noqa: E402
from gpupool_manager.lease_request import LeaseRequest  # noqa: E402
from gpupool_manager.placement_request import PlacementRequest  # noqa: E402
from gpupool_manager.pool import Pool, Rules  # noqa: E402
from gpupool_manager.problems import Problem  # noqa: E402
from gpupool_manager.records import Lease, Token  # noqa: E402
from gpupool_manager.store import Store  # noqa: E402
from gpupool_manager.transaction import Actor, Transaction  # noqa: E402
from manager_databases import Postgres, find_binaries  # noqa: E402

#: What the figures must not be above at 10,000 GPUs.
TARGETS = {"placed_p99_ms": 10.0, "heartbeat_cores": 0.5, "list_p99_ms": 100.0}

MODELS = (("NVIDIA H200", "9.0", 143_771), ("NVIDIA H100", "9.0", 81_559), ("L40S", "8.9", 46_068))
GPUS_PER_NODE = 8
TENANTS = 50
#: How many ask at the same time while the pool fills; what is timed then asks one by one.
CLIENTS = 16
#: The part of the requests that is timed.
TIMED = 0.1
#: Leases at once for each GPU, if all were granted: somewhat more than fit.
PRESSURE = 2.4
#: How long a lease is held, in simulated seconds.
HELD = 600.0
HEARTBEAT_SECONDS = 10.0
OPERATOR = Actor("bench")

WANT: dict[str, Any] = {
    "gpus": 1,
    "policy": "binpack",
    "hosts": "any",
    "model": None,
    "capability": None,
    "labels": {},
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


@dataclass
class Sample:
    """Milliseconds of everything that was done."""

    #: From the request to the answer: the lease is in the database.
    placed: list[float] = field(default_factory=list)
    #: Of that, the decision itself.
    decided: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class Simulation:
    """One pool of a size, filled and emptied."""

    def __init__(self, url: str, gpus: int, seed: int) -> None:
        self.clock = Clock()
        self.pool = Pool(Store(url), Rules(lost_after=1e9, unasked=1e9), self.clock)
        self.nodes = [f"node-{number:04}" for number in range(gpus // GPUS_PER_NODE)]
        self.gpus = gpus
        self.random = random.Random(seed)
        self.sample = Sample()
        self._ends: list[tuple[float, str]] = []
        self._left = 0
        self._tick = 0.0
        self.tokens: dict[str, Token] = {}
        self.admin = ""

    async def prepare(self) -> None:
        await self.pool.open()
        do = self.pool.commands.do
        _, self.admin = await do(
            lambda transaction: self.pool.tenancy.create_token(transaction, "admin")
        )
        quota = {
            "gpus": self.gpus,
            "memory_bytes": self.gpus << 37,
            "compute_permille": self.gpus * 1000,
        }
        for number in range(TENANTS):
            await do(partial(self._add_tenant, name=f"t-{number}", quota=quota))
        for name in self.nodes:
            await do(partial(self._join, name=name))

    def _add_tenant(self, transaction: Transaction, name: str, quota: dict[str, Any]) -> None:
        self.pool.tenancy.create(transaction, name, "", quota)

    def _join(self, transaction: Transaction, name: str) -> None:
        self.tokens[name], _ = self.pool.tenancy.create_token(transaction, "node", node=name)
        self.pool.fleet.report(transaction, self.tokens[name], name, self._report(name))

    def _report(self, node: str) -> Report:
        model, capability, memory = self.random.choices(MODELS, (6, 3, 1))[0]
        gpus = [
            ReportedGpu(
                uuid=f"GPU-{node}-{index}",
                index=index,
                model=model,
                compute_capability=capability,
                memory_bytes=memory * MIB,
                policy="share",
                max_inst=20,
                prio_ratio=90,
            )
            for index in range(GPUS_PER_NODE)
        ]
        zone = f"zone-{self.random.randrange(4)}"
        return Report(
            address=f"tcp://{node}:7700", server_version="0", labels={"zone": zone}, gpus=gpus
        )

    # Leases ----------------------------------------------------------------------------

    async def churn(self, leases: int, clients: int) -> float:
        """Let so many requests come; how many a second were worked through."""
        self._left = leases
        started = time.perf_counter()
        await asyncio.gather(*(self._client() for _ in range(clients)))
        return leases / (time.perf_counter() - started)

    async def _client(self) -> None:
        while self._left > 0:
            self._left -= 1
            self.clock.now += HELD / (PRESSURE * self.gpus)
            while self._ends and self._ends[0][0] <= self.clock.now:
                await self._end(heapq.heappop(self._ends)[1])
            if self.clock.now >= self._tick:
                self._tick = self.clock.now + 1.0
                await self.pool.tick()
            await self._ask()

    async def _ask(self) -> None:
        ask = self._draw()

        def admit(transaction: Transaction) -> Lease:
            started = time.perf_counter()
            try:
                return self.pool.leases.admit(transaction, ask)
            finally:
                self.sample.decided.append((time.perf_counter() - started) * 1000)

        started = time.perf_counter()
        try:
            lease = await self.pool.commands.do(admit, OPERATOR)
        except Problem as problem:
            self.sample.count(problem.code)
        else:
            self.sample.count(lease.state)
            held = self.random.expovariate(1 / HELD)
            heapq.heappush(self._ends, (self.clock.now + held, lease.id))
        self.sample.placed.append((time.perf_counter() - started) * 1000)

    async def _end(self, name: str) -> None:
        def end(transaction: Transaction) -> None:
            lease = self.pool.ledger.leases.get(name)
            if lease is not None:
                active = lease.state == LeaseState.ACTIVE
                state = LeaseState.RELEASED if active else LeaseState.CANCELLED
                self.pool.leases.end(transaction, lease, state, "")

        started = time.perf_counter()
        await self.pool.commands.do(end, OPERATOR)
        self.sample.ended.append((time.perf_counter() - started) * 1000)

    def _draw(self) -> LeaseRequest:
        """Slices for the most part, some whole GPUs, a few whole nodes."""
        draw, kind = self.random, self.random.random()
        want = {**WANT, "policy": draw.choice(("binpack", "spread", "fragmentation"))}
        if kind < 0.75:
            want |= {
                "memory_bytes": draw.randint(2, 40) << 30,
                "share_permille": 10 * draw.randint(5, 50),
            }
        elif kind < 0.87:
            want |= {"memory_bytes": None, "share_permille": 1000}
        elif kind < 0.95:
            want |= {"gpus": draw.randint(2, 4), "hosts": "same"}
            want |= {
                "memory_bytes": draw.randint(2, 40) << 30,
                "share_permille": 10 * draw.randint(5, 50),
            }
        elif kind < 0.99:
            want |= {
                "gpus": 4,
                "hosts": "spread",
                "memory_bytes": 16_384 * MIB,
                "share_permille": 250,
            }
        else:
            want |= {"gpus": 8, "hosts": "same", "memory_bytes": None, "share_permille": 1000}
        if draw.random() < 0.1:
            want["labels"] = {"zone": f"zone-{draw.randrange(4)}"}
        wait = 120.0 if draw.random() < 0.5 else 0.0
        return LeaseRequest(
            f"t-{draw.randrange(TENANTS)}", PlacementRequest.parse(want), 0, wait, 1e6, ""
        )

    # Heartbeats ------------------------------------------------------------------------

    async def heartbeats(self, rounds: int = 3) -> float:
        """The part of a core that heartbeats of all nodes take."""
        beats = [encode(self._beat(name)) for name in self.nodes]
        applied = self.pool.ledger.generation
        spent = 0.0
        for _ in range(rounds):
            self.clock.now += HEARTBEAT_SECONDS
            started = time.process_time()
            for name, payload in zip(self.nodes, beats, strict=True):
                beat = decode_from_node(payload)
                assert isinstance(beat, Beat)
                beat.heartbeat.applied = applied(name)
                orders = await self.pool.heartbeat(
                    self.tokens[name], name, beat.heartbeat, OPERATOR
                )
                encode(Told(number=beat.number, now=self.clock.now, orders=orders))
            spent += time.process_time() - started
        return spent / rounds / HEARTBEAT_SECONDS

    def _beat(self, node: str) -> Beat:
        """Every lease has a session."""
        sessions = [
            ReportedSession(id=f"s-{lease[-12:]}", lease=lease, program="python train.py")
            for lease in sorted(self.pool.ledger.leases_on[node])
        ]
        return Beat(number=1, heartbeat=Heartbeat(applied="x" * 18, sessions=sessions))

    # Lists -----------------------------------------------------------------------------

    async def lists(self, pages: int) -> dict[str, float]:
        """p99 in milliseconds of a page of 100, by list, through the REST API."""
        transport = httpx.ASGITransport(app=make_app(self.pool))
        headers = {"Authorization": f"Bearer {self.admin}"}
        found: dict[str, float] = {}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://bench", headers=headers
        ) as client:
            for path in (
                "/v1/leases",
                "/v1/leases?state=active&tenant=t-1",
                "/v1/nodes",
                "/v1/gpus",
                "/v1/queue",
                "/v1/audit",
            ):
                found[path] = percentile(await self._pages(client, path, pages), 0.99)
        return found

    async def _pages(self, client: httpx.AsyncClient, path: str, pages: int) -> list[float]:
        """Page after page, from the start again at the end."""
        spent: list[float] = []
        cursor: str | None = None
        for _ in range(pages):
            started = time.perf_counter()
            extra = {} if cursor is None else {"cursor": cursor}
            url = httpx.URL(path).copy_merge_params(extra)
            response = await client.get(url)
            spent.append((time.perf_counter() - started) * 1000)
            if response.status_code != 200:
                raise SystemExit(f"{path}: {response.status_code}: {response.text}")
            cursor = response.json()["next"]
        return spent

    async def restart(self) -> float:
        """Seconds until all of it is there again."""
        await self.pool.close()
        self.pool = Pool(
            Store(self.pool.store.url.render_as_string(False)), Rules(unasked=1e9), self.clock
        )
        started = time.perf_counter()
        await self.pool.open()
        return time.perf_counter() - started


async def measure(url: str, gpus: int, leases: int, pages: int, seed: int) -> dict[str, Any]:
    """All figures of one size."""
    simulation = Simulation(url, gpus, seed)
    await simulation.prepare()
    collector.settle()  # as the manager does at its start
    timed = int(leases * TIMED)
    per_second = await simulation.churn(leases - timed, CLIENTS)
    outcomes, simulation.sample = simulation.sample.outcomes, Sample()
    load, cpu = os.getloadavg()[0], time.process_time()
    await simulation.churn(timed, 1)
    cpu = time.process_time() - cpu
    sample, ledger = simulation.sample, simulation.pool.ledger
    for outcome, times in sample.outcomes.items():
        outcomes[outcome] = outcomes.get(outcome, 0) + times
    used = sum(slot.used_permille for slot in ledger.index.slots.values())
    figures: dict[str, Any] = {
        "gpus": gpus,
        "nodes": len(simulation.nodes),
        "leases": leases,
        "outcomes": outcomes,
        "timed": timed,
        #: Of the whole machine, this process included: above the number of cores, times lie.
        "load": load,
        "cpu_ms": cpu / timed * 1000,
        "live_leases": len(ledger.leases),
        "queued": len(ledger.queue),
        "compute_in_use": used / gpus / 100,
        "per_second": per_second,
        "transactions": simulation.pool.commands.commits,
    }
    for name, values in (
        ("decided", sample.decided),
        ("placed", sample.placed),
        ("ended", sample.ended),
    ):
        figures[f"{name}_p50_ms"] = percentile(values, 0.5)
        figures[f"{name}_p99_ms"] = percentile(values, 0.99)
        figures[f"{name}_max_ms"] = max(values, default=0.0)
    figures["heartbeat_cores"] = await simulation.heartbeats()
    figures["lists_p99_ms"] = await simulation.lists(pages)
    figures["list_p99_ms"] = max(figures["lists_p99_ms"].values())
    figures["restart_seconds"] = await simulation.restart()
    await simulation.pool.close()
    figures["most_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures


@asynccontextmanager
async def databases(kind: str, folder: Path) -> AsyncIterator[Callable[[], Awaitable[str]] | None]:
    """Makes empty databases of a kind; None if there is none of it here."""
    if kind == "sqlite":
        numbers = iter(range(1000))

        async def new_file() -> str:
            return f"sqlite:///{folder}/{next(numbers)}.db"

        yield new_file
        return
    binaries = find_binaries()
    if binaries is None:
        yield None
        return
    server = Postgres(binaries, safe=True)
    try:
        server.prepare()

        async def new_database() -> str:
            return server.url(await server.new_database())

        yield new_database
    finally:
        server.remove()


COLUMNS = (
    ("GPUs", "gpus", "{:,}"),
    ("leases", "leases", "{:,}"),
    ("live", "live_leases", "{:,}"),
    ("decide p99", "decided_p99_ms", "{:.2f}"),
    ("place p50", "placed_p50_ms", "{:.2f}"),
    ("place p99", "placed_p99_ms", "{:.2f}"),
    ("beats", "heartbeat_cores", "{:.3f}"),
    ("list p99", "list_p99_ms", "{:.1f}"),
)


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown, narrow enough for a terminal. Times in ms, beats in cores."""
    lines = [" | ".join(name for name, _, _ in COLUMNS), "|".join(["---"] * len(COLUMNS))]
    for row in rows:
        lines.append(" | ".join(form.format(row[key]) for _, key, form in COLUMNS))
    return "\n".join(f"| {line} |" for line in lines)


def missed(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['database']}, {row['gpus']} GPUs: {key} is {row[key]:.3g}, target {most:g}"
        for key, most in TARGETS.items()
        if row[key] > most
    ]


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as folder:
            async with databases(kind, Path(folder)) as new:
                if new is None:
                    print(f"{kind}: there is none here; left out")
                    continue
                for gpus in options.gpus:
                    gc.collect()
                    leases = gpus * options.leases
                    row = await measure(await new(), gpus, leases, options.pages, options.seed)
                    rows.append({"database": kind, **row})
                    print(f"{kind}: {gpus:,} GPUs done", file=sys.stderr, flush=True)
        print(f"\n{kind}\n\n{table([row for row in rows if row['database'] == kind])}\n")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1000, 2500, 5000, 10_000])
    parser.add_argument("--leases", type=int, default=10, help="requests for each GPU")
    parser.add_argument("--pages", type=int, default=200, help="pages of each list")
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    logs.configure("error", False)
    rows = uvloop.run(run(options))
    options.out.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
    results = {"machine": machine, "targets": TARGETS, "rows": rows}
    (options.out / "pool.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "pool.svg").write_text(plot(rows))
    misses = [line for row in rows for line in missed(row)]
    print("\n".join(["MISSED:", *misses]) if misses else "all targets are met")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
