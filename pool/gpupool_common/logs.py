"""The server's log: one line an event on stderr, readable or JSON."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

#: How a worker begins a line of its log (gpw_log in server/worker/session/session.c).
_WORDS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
Log = FilteringBoundLogger


def configure(level: str, as_json: bool) -> None:
    """Set up structlog for this process; call once, before the first event."""
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if as_json:
        processors.append(structlog.processors.JSONRenderer())
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, Lossy(sys.stderr))),
        cache_logger_on_first_use=False,
    )
    # asyncio and pyzmq speak through the standard library's log.
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), stream=sys.stderr)


class Lossy(io.TextIOBase):
    """A file of lines. Where nobody reads them any more, or the disk is full, they are lost: what
    is served goes on without."""

    #: Its own: a last flush comes when this module's names are gone.
    _lost = contextlib.suppress(OSError, ValueError)

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with self._lost:
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._lost:
            self._file.flush()


def get(name: str) -> Log:
    """A logger whose events carry ``part=name``."""
    log: Log = structlog.get_logger(part=name)
    return log


class Meter:
    """How many lines somebody may still write: a burst at once, then so many a second.

    A session that makes its worker complain all the time fills no disk.
    """

    BURST = 200
    A_SECOND = 10.0

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        burst: int = BURST,
        rate: float = A_SECOND,
        most: int | None = None,
        above: Meter | None = None,
    ) -> None:
        """``most`` lines in all (None: any number); ``above`` admits them, too."""
        self._clock = clock
        self._burst = burst
        self._rate = rate
        self._most = most
        self._above = above
        self._left = float(burst)
        self._since = clock()
        self._untold = 0
        #: How many were admitted, and how many were not.
        self.lines = 0
        self.refused = 0

    def _room(self) -> int:
        """How many more may be written now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        room = int(self._left)
        if self._most is not None:
            room = min(room, self._most - self.lines)
        return room if self._above is None else min(room, self._above._room())

    def _take(self, count: int) -> None:
        self._left -= count
        self.lines += count
        if self._above is not None:
            self._above._take(count)

    def admit(self, count: int = 1) -> int:
        """How many of so many may be written now."""
        admitted = min(count, self._room())
        self._take(admitted)
        self._untold += count - admitted
        self.refused += count - admitted
        return admitted

    def left_out(self) -> int:
        """How many were refused, once there is room again to say so; 0: none."""
        if self._untold == 0 or self._room() < 2:
            return 0
        self._take(1)
        return self.untold()

    def untold(self) -> int:
        """How many were refused since that was asked last, room or not."""
        refused, self._untold = self._untold, 0
        return refused


def forward_line(log: Log, line: str) -> str:
    """Pass on one line of a worker's stderr: JSON keeps its fields. Returns the event."""
    level, event, fields = _read_line(line)
    log.log(level, event, **{f"worker_{k}": v for k, v in fields.items()})
    return event


def event_of(line: str) -> str:
    """What :func:`forward_line` makes of a line, without passing it on."""
    return _read_line(line)[1]


def _read_line(line: str) -> tuple[int, str, EventDict]:
    """Its level, event and further fields: JSON has them, text becomes the event.

    A text's level is its first word, where that is one of a worker's.
    """
    fields: EventDict = {}
    try:
        parsed = json.loads(line)
        if isinstance(parsed, dict):
            fields = {str(key): value for key, value in parsed.items()}
    except (ValueError, RecursionError):
        pass
    word, colon, text = line.partition(": ")
    if not fields and colon and text and word in _WORDS:
        fields = {"level": _WORDS[word], "event": text}
    event = str(fields.pop("event", None) or fields.pop("message", None) or line)
    level = str(fields.pop("level", "info")).lower()
    fields.pop("timestamp", None)
    return LEVELS.get(level, LEVELS["info"]), event, fields
