"""A server's metrics in front of an office without a socket, and what scrapes them."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry

from gpupool_server.gpu_metrics import GpuCollector
from gpupool_server.health import GpuHealth
from gpupool_server.metrics import MetricsServer
from gpupool_server.metrics_access import MetricsAccess
from gpupool_server.metrics_settings import MetricsSettings
from gpupool_server.nvml_cards import Cards, SoftCards
from server_harness import Office


def metrics_server(
    office: Office, state: Path | None = None, cards: Cards | None = None, **settings: object
) -> MetricsServer:
    chosen = MetricsSettings.model_validate(settings)
    access = MetricsAccess(chosen, state)
    health = GpuHealth((48, 79), office.gpus, office.supervisor)
    return MetricsServer(
        chosen, office.gpus, office.supervisor, cards or SoftCards(), health, access
    )


def registry(office: Office) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(GpuCollector(office.gpus))
    return made


def scrape(
    url: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> tuple[str, str]:
    """What is told, and its content type."""
    question = urllib.request.Request(url, headers=dict(headers or {}))
    with urllib.request.urlopen(question, timeout=30, context=tls) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]
