"""What workers write: read at a bounded rate, metered, and passed on to the server's log.

A client can make its worker complain as often as it likes, and whoever has taken a worker
over can write what it likes. So a FIFO is read no faster than ``WINDOW_BYTES`` in
``WINDOW_SECONDS`` (a full one refuses the worker's next line, which does not wait), and of
what is read only as many lines are looked at as the session, and its tenant, may still write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from gpupool_common import logs
from gpupool_server.budget_settings import BudgetSettings
from gpupool_server.worker import FIFO_BYTES

MAX_LINE = 8192
WINDOW_BYTES = 65536
WINDOW_SECONDS = 0.25

#: A tenant's sessions together may write so many times what one may, at once and a second.
OF_TENANT = 4
#: Of so many tenants it is known how much they wrote; the longest ago is forgotten.
MOST_TENANTS = 4096


class LineReader:
    """Lines of a FIFO, handed over one by one; longer than MAX_LINE they are cut."""

    def __init__(
        self,
        path: Path,
        on_line: Callable[[str], None],
        admit: Callable[[int], int],
        on_last: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``admit`` says how many of so many lines are to be handed over.

        ``on_last`` gets the last line of what was read at once, also if none was admitted.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_line = on_line
        self._admit = admit
        self._on_last = on_last
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._window = (0.0, 0)  # its end, and what was read in it
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, WINDOW_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
            return
        self._take(chunk)
        self._slow_down(len(chunk))

    def _slow_down(self, count: int) -> None:
        """Read no more in this window if it is used up."""
        now = self._loop.time()
        end, read = self._window if now < self._window[0] else (now + WINDOW_SECONDS, 0)
        self._window = (end, read + count)
        if read + count >= WINDOW_BYTES:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_at(end, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._read)

    def _take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        self._deliver(lines)

    def _deliver(self, lines: list[bytes]) -> None:
        for line in lines[: self._admit(len(lines)) if lines else 0]:
            if text := _text(line):
                self._on_line(text)
        if last := next(filter(None, map(_text, reversed(lines))), ""):
            self._on_last(last)

    def close(self) -> None:
        """Read what is there, then let go."""
        if self._fd < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        fd, self._fd = self._fd, -1
        with contextlib.suppress(BlockingIOError):
            # No more than a FIFO holds: its worker may be writing on.
            self._take(os.read(fd, FIFO_BYTES))
        os.close(fd)
        rest, self._rest = self._rest, b""
        if rest:
            self._deliver([rest])


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", errors="replace").rstrip("\r")


class WorkerLog:
    """The lines of one session's worker in the server's log."""

    def __init__(
        self, limit: int, rate: float, of_tenant: logs.Meter, session: str, request: str
    ) -> None:
        self._log = logs.get("worker").bind(
            session=session, **({"request": request} if request else {})
        )
        self.limit = limit
        self._meter = logs.Meter(rate=rate, most=limit, above=of_tenant)
        self._told_end = False
        self._last = ""

    def note_last(self, line: str) -> None:
        """The last line so far, whether the log takes it or not."""
        self._last = line

    @property
    def last(self) -> str:
        """What the worker said last: a flood before it does not hide why it ended."""
        return logs.event_of(self._last) if self._last else ""

    @property
    def lines(self) -> int:
        return self._meter.lines

    @property
    def dropped(self) -> int:
        return self._meter.refused

    def admit(self, count: int) -> int:
        """How many of so many lines the log takes; says how many it has not taken."""
        if left_out := self._meter.left_out():
            self._say_dropped(left_out)
        admitted = self._meter.admit(count)
        if admitted < count and self._meter.lines >= self.limit and not self._told_end:
            self._told_end = True
            self._log.warning(
                "a worker has written all the lines that a session may; the rest is dropped",
                limit=self.limit,
                setting="session_log_lines",
            )
        return admitted

    def pass_on(self, line: str) -> None:
        """A line of its own, which was admitted."""
        logs.forward_line(self._log, line)

    def unexpected(self, line: str) -> None:
        """A line where it has nothing to say."""
        if self.admit(1):
            self._log.warning("unexpected output of a worker", line=line)

    def over(self) -> None:
        """The session has ended: say what was not said yet."""
        if left_out := self._meter.untold():
            self._say_dropped(left_out)

    def _say_dropped(self, count: int) -> None:
        self._log.warning("a worker logs too much; lines were dropped", count=count)


class WorkerLogs:
    """Makes them, with what tenants have written so far."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._settings = settings
        self._tenants: OrderedDict[str, logs.Meter] = OrderedDict()

    def of(self, tenant: str, session: str, request: str, lines: int | None = None) -> WorkerLog:
        """Of a session that was allotted so many ``lines``; None: as the settings say."""
        settings = self._settings
        limit = settings.session_log_lines if lines is None else lines
        meter = self._tenants.setdefault(tenant, self._new())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        return WorkerLog(limit, settings.session_log_rate, meter, session, request)

    def _new(self) -> logs.Meter:
        return logs.Meter(
            burst=OF_TENANT * logs.Meter.BURST, rate=OF_TENANT * self._settings.session_log_rate
        )
