"""Streams of connections that were accepted, and writing to peers that may have gone."""

from __future__ import annotations

import asyncio
import socket
import ssl


def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send bytes; ConnectionResetError where the connection has ended.

    asyncio's event loop drops them then, and uvloop's raises RuntimeError.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection has ended")
    writer.write(data)


async def of_accepted(
    connection: socket.socket, limit: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """What asyncio's servers give their callbacks; the connection is closed with it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
    except BaseException:
        connection.close()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
