"""Sick GPUs and the driver's errors, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool_server.card_metrics import GPU, gpu_labels
from gpupool_server.gpus import Gpus
from gpupool_server.health import OTHER, GpuHealth


class HealthCollector(Collector):
    """Counts since the server's start; a GPU that is put aside stays so over restarts."""

    def __init__(self, gpus: Gpus, health: GpuHealth) -> None:
        self._gpus = gpus
        self._health = health

    def collect(self) -> Iterator[Metric]:
        sick = GaugeMetricFamily("gpupool_gpu_sick", "1 if the GPU is put aside", labels=GPU)
        xids = CounterMetricFamily(
            "gpupool_gpu_xid_errors", "Errors that the driver told of", labels=[*GPU, "xid"]
        )
        for gpu in self._gpus:
            labels = gpu_labels(gpu.device)
            sick.add_metric(labels, 1 if gpu.sick else 0)
            for (index, xid), count in self._health.xids.items():
                if index == gpu.index:
                    xids.add_metric([*labels, "other" if xid == OTHER else str(xid)], count)
        yield from (sick, xids)
