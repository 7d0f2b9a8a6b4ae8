"""Accepting connections for as long as a process lives.

Event loops' own servers do so only while there are descriptors: uvloop's closes the listener for
good without any.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

from gpupool_common import logs

#: After there were no descriptors, accepting is tried again so soon.
PAUSE_SECONDS = 0.2

#: Of that there is at most one line in so many seconds.
QUIET_SECONDS = 5.0


async def accept_each(
    listener: socket.socket,
    take: Callable[[socket.socket, Any], None],
    log: logs.Log,
) -> None:
    """Give ``take`` each connection and its address; for ever."""
    loop = asyncio.get_running_loop()
    quiet_until = 0.0
    while True:
        try:
            connection, address = await loop.sock_accept(listener)
        except OSError as error:
            # Those who wait stay in the listener's queue.
            if time.monotonic() >= quiet_until:
                quiet_until = time.monotonic() + QUIET_SECONDS
                log.warning("connections cannot be accepted", reason=error.strerror)
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            take(connection, address)
