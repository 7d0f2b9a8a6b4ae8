"""The pool for Prometheus, counted when it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client import Counter as Count
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gpupool_common.sizes import WHOLE_GPU
from gpupool_manager.pool import Pool
from gpupool_manager.quotas import QUANTITIES
from gpupool_manager.request_budgets import RequestBudgets

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Collector:
    def __init__(self, pool: Pool, budgets: RequestBudgets | None) -> None:
        self._pool = pool
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        ledger = self._pool.ledger
        slots = ledger.index.slots.values()
        yield _gauge(
            "nodes",
            "Nodes of the pool.",
            "state",
            Counter("lost" if node.lost else node.mode for node in ledger.nodes.values()),
        )
        yield _gauge(
            "gpus",
            "GPUs of the pool.",
            "state",
            Counter("usable" if slot.usable else "closed" for slot in slots),
        )
        yield _gauge(
            "memory_bytes",
            "Memory of all GPUs.",
            "state",
            {
                "used": sum(slot.used_bytes for slot in slots),
                "total": sum(slot.total_bytes for slot in slots),
            },
        )
        yield _gauge(
            "compute_permille",
            "Compute of all GPUs.",
            "state",
            {
                "used": sum(slot.used_permille for slot in slots),
                "total": WHOLE_GPU * len(slots),
            },
        )
        states = Counter[str](lease.state for lease in ledger.leases.values())
        yield _gauge("leases", "Leases now.", "state", states)
        yield self._tenants()
        if self._budgets is not None:
            yield self._refused(self._budgets)
        commits = CounterMetricFamily("gpupool_manager_commits", "Transactions written.")
        commits.add_metric([], self._pool.commands.commits)
        yield commits

    def _tenants(self) -> GaugeMetricFamily:
        ledger = self._pool.ledger
        family = GaugeMetricFamily(
            "gpupool_manager_tenant_use",
            "What tenants have and wait for.",
            labels=["tenant", "state", "quantity"],
        )
        for state, uses in (("in_use", ledger.active), ("queued", ledger.queued)):
            for tenant, use in uses.items():
                for quantity in QUANTITIES:
                    family.add_metric([tenant, state, quantity], getattr(use, quantity))
        return family

    def _refused(self, budgets: RequestBudgets) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "gpupool_manager_tenant_requests_refused",
            "Requests of tenants beyond what they may ask.",
            labels=["tenant"],
        )
        for tenant, count in budgets.refused().items():
            family.add_metric([tenant], count)
        return family


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gpupool_manager_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


class Metrics:
    """Counts requests; renders everything."""

    def __init__(self, pool: Pool, budgets: RequestBudgets | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(pool, budgets))
        self._requests = Count(
            "gpupool_manager_requests",
            "Requests answered.",
            ["method", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpupool_manager_request_seconds",
            "How long an answer took.",
            ["method"],
            registry=self._registry,
        )

    def count(self, method: str, status: int, seconds: float) -> None:
        # Methods that nobody has heard of must not each become a series.
        known = method if method in _METHODS else "other"
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)


_METHODS: Iterable[str] = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
