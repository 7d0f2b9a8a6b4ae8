"""How much of one address a relay takes: in constant memory, whoever comes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from gpupool_common.hosts import limited_as

#: Budgets that are kept; addresses that meet in one share it, which no client can aim at.
CELLS = 4096


class Budgets:
    """A budget for each address that refills by ``rate`` a second up to ``most``."""

    def __init__(
        self, rate: float, most: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._most = most
        self._clock = clock
        self._left = [most] * CELLS
        self._since = [clock()] * CELLS
        self._salt = os.urandom(8)

    def _cell(self, address: bytes) -> int:
        whose = limited_as(address.decode(errors="replace"))
        cell = hash((self._salt, whose)) % CELLS
        now = self._clock()
        refill = (now - self._since[cell]) * self._rate
        self._left[cell] = min(self._most, self._left[cell] + refill)
        self._since[cell] = now
        return cell

    def left(self, address: bytes) -> bool:
        """Whether there is one to spend."""
        return self._left[self._cell(address)] >= 1

    def spend(self, address: bytes) -> bool:
        """Take one; False: there is none."""
        cell = self._cell(address)
        if self._left[cell] < 1:
            return False
        self._left[cell] -= 1
        return True


class Connections:
    """Descriptors of a socket's connections, oldest first, and whom they are from.

    The owner of the socket is libzmq, which is told nothing: a connection too many is shut
    down behind its back, and looks to it as if the other end had hung up.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open: dict[int, str] = {}
        self._count: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, fd: int) -> str | None:
        """A connection has come; the address that has one too many, whose oldest now ends."""
        self.closed(fd)  # its end was not told, and the number is in use again
        address = _peer(fd)
        if address is None:
            return None
        self._open[fd] = address
        self._count[address] = self._count.get(address, 0) + 1
        if self._count[address] <= self._most_of_one and len(self._open) <= self._most:
            return None
        if self._count[address] == 1:
            # Room for it is made where most are: the oldest of all may be a node's.
            address = max(self._count, key=self._count.__getitem__)
        self._end(next(fd for fd, whose in self._open.items() if whose == address))
        return address

    def closed(self, fd: int) -> None:
        """It has ended."""
        address = self._open.pop(fd, None)
        if address is None:
            return
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]

    def _end(self, fd: int) -> None:
        _shut(fd)
        self.closed(fd)


def _peer(fd: int) -> str | None:
    """Whom limits take the other end for; None: it has no address, or has gone."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            name = connection.getpeername()
    except OSError:
        return None
    return limited_as(str(name[0])) if isinstance(name, tuple) else None


def _shut(fd: int) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has just ended
