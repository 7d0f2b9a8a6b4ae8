"""A process that others of its user are to have no part in (C: proto/wire/closed_memory.h)."""

from __future__ import annotations

import ctypes
import os
import resource

_PR_SET_DUMPABLE = 4


def close_memory() -> None:
    """Let nobody of this user trace the process, read its memory or environment, or dump it.

    What runs here keeps tokens and keys. A new program (``exec``) opens it again.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"this process cannot be closed to others: {os.strerror(error)}")
