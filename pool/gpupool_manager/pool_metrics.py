"""The pool for Prometheus, counted from what is in memory when it is asked for.

Nothing here grows with leases or sessions: series are of nodes, tenants and states.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from gpupool_common import __version__
from gpupool_common.lease import LeaseState
from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager.pool import Pool
from gpupool_manager.request_budgets import RequestBudgets

PREFIX = "gpupool_manager"

NODE_STATES = ("open", "cordoned", "draining", "aside", "lost")
GPU_STATES = ("usable", "closed", "aside")
LEASE_STATES = (LeaseState.ACTIVE, LeaseState.QUEUED)

#: The quantities of a quota: what a metric calls them, what they are, and their base unit.
_QUANTITIES = (
    ("gpus", "gpus", "Virtual GPUs", 1.0),
    ("memory_bytes", "memory_bytes", "Device memory", 1.0),
    ("compute_permille", "compute_gpus", "Compute, in whole GPUs", 1.0 / WHOLE_GPU),
    ("sessions", "sessions", "Sessions, one for each lease,", 1.0),
)


class PoolCollector(Collector):
    """Nodes, GPUs, leases, tenants and quotas."""

    def __init__(self, pool: Pool, budgets: RequestBudgets | None) -> None:
        self._pool = pool
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily(f"{PREFIX}_build", "The release that runs")
        build.add_metric([], {"version": __version__, "python": platform.python_version()})
        yield build
        yield from self._nodes()
        yield from self._gpus()
        yield from self._leases()
        yield from self._tenants()
        commits = CounterMetricFamily(f"{PREFIX}_commits", "Transactions written")
        commits.add_metric([], self._pool.commands.commits)
        yield commits

    def _nodes(self) -> Iterator[Metric]:
        ledger = self._pool.ledger
        states = Counter(
            "lost" if node.lost else "aside" if node.trouble else node.mode
            for node in ledger.nodes.values()
        )
        yield _by_state("nodes", "Nodes of the pool", NODE_STATES, states)
        up = _gauge("node_up", "1 if the node's server is heard of", ["node"])
        seen = _gauge(
            "node_last_seen_timestamp_seconds", "When its server was last heard of", ["node"]
        )
        sessions = _gauge("node_sessions", "Client processes of leases on the node", ["node"])
        for name, node in sorted(ledger.nodes.items()):
            up.add_metric([name], 0 if node.lost else 1)
            seen.add_metric([name], node.last_seen)
            known = self._pool.fleet.seen.get(name)
            sessions.add_metric([name], len(known.sessions) if known else 0)
        yield from (up, seen, sessions)

    def _gpus(self) -> Iterator[Metric]:
        slots = self._pool.ledger.index.slots.values()
        gpus = self._pool.ledger.gpus
        states = Counter(
            "aside" if gpus[slot.uuid].trouble else "usable" if slot.usable else "closed"
            for slot in slots
        )
        yield _by_state("gpus", "GPUs of the pool", GPU_STATES, states)
        for name, text, value in (
            ("gpu_memory_bytes", "Memory of all GPUs", sum(s.total_bytes for s in slots)),
            (
                "gpu_memory_granted_bytes",
                "What leases have of it",
                sum(s.used_bytes for s in slots),
            ),
            (
                "compute_granted_gpus",
                "Compute that leases have, in whole GPUs",
                sum(s.used_permille for s in slots) / WHOLE_GPU,
            ),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)

    def _leases(self) -> Iterator[Metric]:
        ledger = self._pool.ledger
        states = Counter[str](lease.state for lease in ledger.leases.values())
        yield _by_state("leases", "Leases now", LEASE_STATES, states)
        yield GaugeMetricFamily(
            f"{PREFIX}_leases_resizing",
            "Leases whose servers have not all made a change of limits",
            value=sum(1 for _ in self._pool.resizes.open) + len(self._pool.ledger.leaving),
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_leases_ending",
            "Leases that are to be given back soon, as their programs were told",
            value=len(ledger.ending),
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_leases_idle",
            "Leases whose programs have done nothing for as long as makes them idle",
            value=self._pool.leases.idle.count(self._pool.clock()),
        )
        resizes = CounterMetricFamily(
            f"{PREFIX}_lease_resizes", "Changes of leases' limits", labels=["outcome"]
        )
        for outcome in ("asked", "made", "refused"):
            resizes.add_metric([outcome], self._pool.resize_counts[outcome])
        yield resizes
        asked = min((waiting.lease.created for waiting in ledger.queue), default=None)
        yield GaugeMetricFamily(
            f"{PREFIX}_queue_oldest_seconds",
            "For how long the oldest request waits; 0: none does",
            value=0.0 if asked is None else max(0.0, self._pool.clock() - asked),
        )
        yield from self._pool.queue_waits.collect()

    def _tenants(self) -> Iterator[Metric]:
        ledger = self._pool.ledger
        uses = (
            ("in_use", ledger.active),
            ("borrowed", ledger.borrowed),
            ("queued", ledger.queued),
        )
        for quantity, name, text, unit in _QUANTITIES:
            have = _gauge(f"tenant_{name}", f"{text} of a tenant", ["tenant", "state"])
            for state, by_tenant in uses:
                for tenant, use in by_tenant.items():
                    have.add_metric([tenant, state], getattr(use, quantity) * unit)
            may = _gauge(
                f"tenant_quota_{name}",
                f"{text} that a tenant may have at once; no series: no limit",
                ["tenant"],
            )
            for tenant, quota in ledger.quotas.items():
                limit: int | None = getattr(quota, quantity)
                if limit is not None:
                    may.add_metric([tenant], limit * unit)
            yield from (have, may)
        busy = CounterMetricFamily(
            f"{PREFIX}_tenant_busy_seconds",
            "GPU time of a tenant since the manager's start, as its nodes have told",
            labels=["tenant"],
        )
        for tenant, seconds in ledger.meter.busy_totals.items():
            busy.add_metric([tenant], seconds)
        yield busy
        if self._budgets is not None:
            yield self._refused(self._budgets)

    def _refused(self, budgets: RequestBudgets) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}_tenant_requests_refused",
            "Requests of a tenant beyond what it may ask in a second",
            labels=["tenant"],
        )
        for tenant, count in budgets.refused().items():
            family.add_metric([tenant], count)
        return family


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


def _by_state(
    name: str, text: str, states: tuple[str, ...], counts: Mapping[str, int]
) -> GaugeMetricFamily:
    """Each state has its series from the start: an alert must not wait for the first of a kind."""
    family = _gauge(name, text, ["state"])
    for state in states:
        family.add_metric([state], counts.get(state, 0))
    return family
