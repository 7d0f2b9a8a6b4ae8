"""Who gets a place among those that are told metrics."""

from __future__ import annotations

import asyncio

import pytest

from gpupool_server import metrics_listener
from gpupool_server.metrics_listener import MetricsListener


async def test_strangers_leave_a_place_to_a_scraper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight addresses that said nothing had all places for as long as they liked."""
    monkeypatch.setattr(metrics_listener, "MOST_CONNECTIONS", 4)

    async def respond(_: bytes) -> bytes:
        return b"told"

    listener = MetricsListener(respond, None)
    await listener.open("127.0.0.1", 0)
    silent = [await _connect(listener, "127.0.0.2") for _ in range(4)]
    reader, writer = await _connect(listener, "127.0.0.3")
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert await reader.read() == b"told"
    assert await silent[0][0].read() == b""
    for _, each in [*silent, (reader, writer)]:
        each.close()
    await listener.close()


async def _connect(
    listener: MetricsListener, source: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(source, 0))
