"""What ends a program from outside: signals, and output that nobody takes."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: What a write says where a disk is full; it names no file then, as one does that is opened.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


#: Of a terminal, or a service manager, to the whole group: what helps a service leaves it to that.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ending() -> tuple[signal.Signals, ...]:
    """What a service stops in order for. nohup has it ignore a terminal that goes away."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in ENDING if number != signal.SIGHUP or not ignored)


def _output_is_cut() -> bool:
    """Whether it is our output, and no other pipe or socket, whose reader has gone."""
    outputs = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):  # none, closed, or no file
            outputs.register(stream.fileno(), 0)
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in outputs.poll(0))


def _let_go_of_output() -> None:
    """What is still to be written would fail once more at the interpreter's end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


@contextmanager
def quiet() -> Iterator[None]:
    """One line, or none, instead of a traceback; the exit code of a shell for an interruption."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed from the beginning
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        if not _output_is_cut():
            raise
        _let_go_of_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        _let_go_of_output()
        print(f"{sys.argv[0].rpartition('/')[2]}: cannot write: {error.strerror}", file=sys.stderr)
        sys.exit(1)
