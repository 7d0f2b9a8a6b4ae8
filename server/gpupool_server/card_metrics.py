"""What the cards say of themselves, for Prometheus, in its base units.

Through the same readers as our NVML (nvml_cards.py): what a card cannot answer has no series, and a
soft GPU, which has no sensors, hardly any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gpupool_server.device import Device
from gpupool_server.nvml_cards import Cards, Facts

GPU = ["gpu", "uuid"]

#: Name, help, the reader's word, and how many of its units are one of ours.
_GAUGES = (
    ("temperature_celsius", "Temperature of the GPU", "temperature", 1),
    ("memory_temperature_celsius", "Temperature of its memory", "temperature-memory", 1),
    ("power_watts", "Power that the card draws", "power", 1000),
    ("power_limit_watts", "The most that it may draw", "power-enforced", 1000),
    ("utilization_ratio", "Part of the time in which kernels ran", "utilisation", 100),
    ("memory_used_bytes", "Memory in use, whoever uses it", "memory-used", 1),
    ("sm_clock_hertz", "Clock of the multiprocessors", "clock-sm", 1e-6),
    ("memory_clock_hertz", "Clock of the memory", "clock-memory", 1e-6),
)
_COUNTERS = (
    ("energy_joules", "Energy used since the driver was loaded", "energy", 1000),
    ("pcie_replays", "Retries on the PCI bus", "pcie-replays", 1),
)
_ECC = (("corrected", "ecc-volatile-corrected"), ("uncorrected", "ecc-volatile-uncorrected"))


def gpu_labels(device: Device) -> list[str]:
    return [str(device.index), device.uuid]


class CardCollector(Collector):
    """Shows what it was given last: cards are asked before, on a thread."""

    def __init__(self, cards: Cards, devices: Iterable[Device]) -> None:
        self._cards = cards
        self._devices = list(devices)
        self._facts: list[tuple[Device, Mapping[str, int | str]]] = []
        self._driver = ""

    async def ask(self) -> None:
        """Ask all cards what is true now."""
        self._driver = (await self._cards.versions()).get("driver-version", "")
        facts = await asyncio.gather(*(self._of(device) for device in self._devices))
        self._facts = list(zip(self._devices, facts, strict=True))

    async def _of(self, device: Device) -> Facts:
        lasting = await self._cards.lasting(device)
        passing, _ = await self._cards.passing(device)
        return {**lasting, **passing}

    def collect(self) -> Iterator[Metric]:
        info = InfoMetricFamily("gpupool_gpu", "What the GPU is", labels=GPU)
        for device in self._devices:
            told = {"model": device.name, "pci": device.pci, "driver_version": self._driver}
            info.add_metric(gpu_labels(device), told)
        yield info
        for name, text, word, units in _GAUGES:
            gauge = GaugeMetricFamily(f"gpupool_gpu_{name}", text, labels=GPU)
            self._fill(gauge, word, units)
            yield gauge
        for name, text, word, units in _COUNTERS:
            counter = CounterMetricFamily(f"gpupool_gpu_{name}", text, labels=GPU)
            self._fill(counter, word, units)
            yield counter
        ecc = CounterMetricFamily(
            "gpupool_gpu_ecc_errors",
            "Errors of memory since the driver was loaded",
            labels=[*GPU, "kind"],
        )
        for kind, word in _ECC:
            self._fill(ecc, word, 1, kind)
        yield ecc

    def _fill(
        self, family: GaugeMetricFamily | CounterMetricFamily, word: str, units: float, *more: str
    ) -> None:
        for device, facts in self._facts:
            value = facts.get(word)
            if isinstance(value, int):
                family.add_metric([*gpu_labels(device), *more], value / units)
