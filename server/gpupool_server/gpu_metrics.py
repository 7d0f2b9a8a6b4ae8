"""What each tenant has of each GPU, for Prometheus: as the boards say when it is asked for.

Series are as many as boards have room for, and end with a tenant's or lease's last session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool_server.board import Account
from gpupool_server.card_metrics import GPU, gpu_labels
from gpupool_server.claims import tenant_of
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus

_TENANT = [*GPU, "tenant", "group", "lease"]

#: Name, help, whether it only grows, and its place in an account.
_OF_TENANTS: tuple[tuple[str, str, bool, Callable[[Account], float]], ...] = (
    ("memory_used_bytes", "Device memory in use", False, lambda a: a.memory_used),
    ("memory_peak_bytes", "The most device memory it had in use", False, lambda a: a.memory_peak),
    ("busy_seconds", "GPU time used", True, lambda a: a.busy_ns / 1e9),
    ("wait_seconds", "Time with work in hand and not on turn", True, lambda a: a.waited_ns / 1e9),
    ("turns", "Turns on the GPU", True, lambda a: a.turns),
    ("launches", "Kernels and graphs launched", True, lambda a: a.launches),
    ("copied_bytes", "Bytes copied to, from and on the GPU", True, lambda a: a.bytes_copied),
    ("copy_seconds", "Time of copy engines used", True, lambda a: a.copy_ns / 1e9),
    ("host_memory_used_bytes", "Memory of the host in use", False, lambda a: a.host_used),
    ("allocation_failures", "Allocations over the limit", True, lambda a: a.memory_denied),
)


class GpuCollector(Collector):
    """Reads the boards when Prometheus asks."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def collect(self) -> Iterator[Metric]:
        tenants = [
            (gpu, account)
            for gpu in self._gpus
            if (snapshot := gpu.snapshot()) is not None
            for account in snapshot.tenants
        ]
        yield from self._of_gpus(tenants)
        yield from self._of_tenants(tenants)

    def _of_gpus(self, tenants: Iterable[tuple[Gpu, Account]]) -> Iterator[Metric]:
        busy = {gpu.index: gpu.retired_busy_ns for gpu in self._gpus}
        for gpu, account in tenants:
            busy[gpu.index] += account.busy_ns
        memory = GaugeMetricFamily(
            "gpupool_gpu_memory_total_bytes", "Memory of the GPU", labels=GPU
        )
        time = CounterMetricFamily(
            "gpupool_gpu_busy_seconds", "GPU time used by all tenants", labels=GPU
        )
        for gpu in self._gpus:
            labels = gpu_labels(gpu.device)
            memory.add_metric(labels, gpu.device.memory_bytes)
            time.add_metric(labels, busy[gpu.index] / 1e9)
        yield from (memory, time)

    def _of_tenants(self, tenants: list[tuple[Gpu, Account]]) -> Iterator[Metric]:
        for name, text, grows, value in _OF_TENANTS:
            kind = CounterMetricFamily if grows else GaugeMetricFamily
            family = kind(f"gpupool_tenant_{name}", text, labels=_TENANT)
            for gpu, account in tenants:
                family.add_metric(_labels(gpu, account.name), value(account))
            yield family
        limit = GaugeMetricFamily(
            "gpupool_tenant_memory_limit_bytes", "Device memory it may use", labels=_TENANT
        )
        sessions = GaugeMetricFamily(
            "gpupool_tenant_sessions", "Sessions that run on the GPU", labels=_TENANT
        )
        for gpu, account in tenants:
            labels = _labels(gpu, account.name)
            limit.add_metric(labels, account.memory_limit or gpu.device.memory_bytes)
            sessions.add_metric(labels, account.members)
        yield from (limit, sessions)


def _labels(gpu: Gpu, name: str) -> list[str]:
    """A group of a lease of the pool has the lease's name."""
    group = name.partition("/")[2]
    claim = gpu.claims.get(name)
    lease = group if claim is not None and claim.pooled else ""
    return [*gpu_labels(gpu.device), tenant_of(name), group, lease]
