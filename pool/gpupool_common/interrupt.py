"""Ctrl-C before a command has come far enough to deal with it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """The exit code of a shell for an interrupted command, without a traceback of imports."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
