"""The server's log: one line an event on stderr, readable or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable

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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    # asyncio and pyzmq speak through the standard library's log.
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), stream=sys.stderr)


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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(self.BURST)
        self._since = clock()
        self._refused = 0

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self.BURST, self._left + (now - self._since) * self.A_SECOND)
        self._since = now

    def admit(self) -> bool:
        """Whether one more may be written now."""
        self._refill()
        if self._left < 1:
            self._refused += 1
            return False
        self._left -= 1
        return True

    def left_out(self) -> int:
        """How many were refused, once there is room again to say so; 0: none."""
        self._refill()
        if self._refused == 0 or self._left < 2:
            return 0
        self._left -= 1
        refused, self._refused = self._refused, 0
        return refused


def forward_line(log: Log, line: str) -> str:
    """Pass on one line of a worker's stderr: JSON keeps its fields, text becomes the event.

    A text's level is its first word, where that is one of a worker's. Returns the event.
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
    log.log(
        LEVELS.get(level, LEVELS["info"]), event, **{f"worker_{k}": v for k, v in fields.items()}
    )
    return event
