"""Who gets a place among those that are told metrics."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop

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


def test_a_scraper_that_resets_its_connection_is_no_fault_of_ours() -> None:
    """uvloop raises RuntimeError where its answer is written, which was logged as our fault."""

    async def scrape() -> None:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def respond(_: bytes) -> bytes:
            asked.set()
            await gone.wait()
            return b"told"

        listener = MetricsListener(respond, None)
        await listener.open("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", listener.port)) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await asked.wait()
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.1)  # that the loop sees it
        gone.set()
        served = listener._of["127.0.0.1"]
        assert len(served) == 1
        await served[0]
        await listener.close()

    uvloop.run(scrape())
