"""The formats of Prometheus: its own text, and OpenMetrics for scrapers that ask for it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

#: A header that is longer is nobody's who scrapes.
MOST_ACCEPT = 1024


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Everything that is registered, and its content type."""
    encode, kind = choose_encoder(accept[:MOST_ACCEPT])
    return encode(registry), kind
