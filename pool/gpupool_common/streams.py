"""Writing to a peer that may have gone."""

from __future__ import annotations

import asyncio


def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send bytes; ConnectionResetError where the connection has ended.

    asyncio's event loop drops them then, and uvloop's raises RuntimeError.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection has ended")
    writer.write(data)
