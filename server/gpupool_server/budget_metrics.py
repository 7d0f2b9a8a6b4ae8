"""The budgets of sessions and tenants, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool_server.budgets import State

#: Name, help, whether it only grows, its key in a state.
_FIGURES = (
    ("used", "What {} has of a budget", False, "used"),
    ("limit", "What {} may have of a budget", False, "limit"),
    ("refused", "How often {} was refused more of a budget", True, "refused"),
)
_Series = list[tuple[list[str], State]]


class BudgetCollector(Collector):
    """Shows what it was given last: workers are asked before, and answer when they can."""

    def __init__(self) -> None:
        self._sessions: _Series = []
        self._tenants: _Series = []

    def take(
        self,
        sessions: Sequence[Mapping[str, Any]],
        tenants: Mapping[str, Mapping[str, State]],
    ) -> None:
        """``SessionSupervisor.describe`` and ``budgets``."""
        self._sessions = [
            ([each["session"], each["tenant"], name], state)
            for each in sessions
            for name, state in each["budgets"].items()
        ]
        self._tenants = [
            ([tenant, name], state)
            for tenant, states in tenants.items()
            for name, state in states.items()
        ]

    def collect(self) -> Iterator[Metric]:
        labels = ["session", "tenant", "resource"]
        yield from _families("gpupool_session_budget", "a session", labels, self._sessions)
        yield from _families("gpupool_tenant_budget", "a tenant", labels[1:], self._tenants)


def _families(prefix: str, whose: str, labels: list[str], series: _Series) -> Iterator[Metric]:
    for figure, text, grows, key in _FIGURES:
        kind = CounterMetricFamily if grows else GaugeMetricFamily
        family = kind(f"{prefix}_{figure}", text.format(whose), labels=labels)
        for values, state in series:
            value = state[key]
            if value is not None:
                family.add_metric(values, value)
        yield family
