"""What the manager serves for Prometheus: requests counted here, the pool as it is."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from gpupool_common.exposition import render
from gpupool_manager.pool import Pool
from gpupool_manager.pool_metrics import PREFIX, PoolCollector
from gpupool_manager.request_budgets import RequestBudgets


class Metrics:
    """Counts requests; renders everything."""

    def __init__(self, pool: Pool, budgets: RequestBudgets | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(PoolCollector(pool, budgets))
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            f"{PREFIX}_requests",
            "Requests answered",
            ["method", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_request_duration_seconds",
            "How long an answer took",
            ["method"],
            registry=self._registry,
        )

    def count(self, method: str, status: int, seconds: float) -> None:
        # Methods that nobody has heard of must not each become a series.
        known = method if method in _METHODS else "other"
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Everything, and its content type, in the format that a scraper accepts."""
        return render(self._registry, accept)


_METHODS: Iterable[str] = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
