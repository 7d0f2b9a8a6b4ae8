"""Every metric that the manager and a server expose: asked of both, with something to show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric

from fake_nvml import UUIDS, TwoCards
from gpupool_manager.metrics import Metrics
from gpupool_manager.request_budgets import RequestBudgets
from gpupool_server.device import Device
from gpupool_server.metrics import MetricsServer
from gpupool_server.nvml_cards import NvmlCards
from manager_rest import Rest
from metrics_harness import metrics_server
from server_harness import Office, accepted, hello

#: What the client library tells of any process.
OF_PROCESSES = ("process_", "python_")


@dataclass(frozen=True)
class Exposed:
    """One metric by its name as queries have it, without what a histogram appends."""

    name: str
    kind: str
    labels: frozenset[str]


def families(registry: CollectorRegistry) -> Iterable[Exposed]:
    for metric in registry.collect():
        if not metric.name.startswith(OF_PROCESSES):
            yield Exposed(_name(metric), metric.type, frozenset(_labels(metric)))


def _name(metric: Metric) -> str:
    ends = {"counter": "_total", "info": "_info"}
    return metric.name + ends.get(metric.type, "")


def _labels(metric: Metric) -> set[str]:
    """Of its series; of one that has none here, those that it says to have."""
    found = {name for sample in metric.samples for name in sample.labels} - {"le"}
    return found or set(getattr(metric, "_labelnames", ()))


async def of_manager(rest: Rest) -> set[Exposed]:
    await rest.world.join("n1", 1)
    await rest.tenant("a", gpus=1, memory_bytes=1 << 40, compute_permille=1000, sessions=9)
    budgets = RequestBudgets(1.0)
    budgets.spend("a")
    rest.world.pool.ledger.meter.busy("a", 1.0, rest.world.clock.now)
    metrics = Metrics(rest.world.pool, budgets)
    metrics.count("GET", 200, 0.1)
    return set(families(metrics._registry))


async def of_server(office: Office) -> set[Exposed]:
    accepted(await office.handler.answer(hello()))
    server = metrics_server(office, cards=NvmlCards(TwoCards()))
    return set(families(await asked(server)))


async def asked(server: MetricsServer) -> CollectorRegistry:
    """Its registry, after workers and cards were asked as for a scraper."""
    server._cards._devices = [
        Device(index, "NVIDIA H200", uuid, 1 << 37, "0:0", "9.0")
        for index, uuid in enumerate(UUIDS)
    ]
    await server.ask()
    return server._registry
