"""The variables of gpupool that a program or a command of it reads.

A variable that is nearly one of these does nothing, and nobody says so: the doctor does.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from gpupool_common import request_variables

PREFIX = "GPUPOOL_"

NAMES = frozenset(
    (
        *(name for name in request_variables.VARIABLES if name.startswith(PREFIX)),
        "GPUPOOL_CONFIG",
        "GPUPOOL_CONTEXT",
        "GPUPOOL_COPY_THREADS",
        "GPUPOOL_DRIVER_LIBRARY",
        "GPUPOOL_HOME",
        "GPUPOOL_INSECURE_PLAIN",
        "GPUPOOL_JOIN_TOKEN",
        "GPUPOOL_LANES",
        "GPUPOOL_LEASE",
        "GPUPOOL_LOG",
        "GPUPOOL_NOTICE",
        "GPUPOOL_PLUGINS",
        "GPUPOOL_POOL",
        "GPUPOOL_POOL_CA",
        "GPUPOOL_POOL_FINGERPRINT",
        "GPUPOOL_POOL_TOKEN",
        "GPUPOOL_SERVER",
        "GPUPOOL_SERVER_TOKEN",
        "GPUPOOL_SILENCE",
        "GPUPOOL_STATS",
        "GPUPOOL_SYNC",
        "GPUPOOL_TIMELINE",
        "GPUPOOL_TIMELINE_BYTES",
        "GPUPOOL_TOKEN",
        "GPUPOOL_TOKEN_FILE",
        "GPUPOOL_TRACE",
        "GPUPOOL_TRANSPORT",
        "GPUPOOL_UCX_LIBRARY",
        "GPUPOOL_UCX_LOG_LEVEL",
        "GPUPOOL_UCX_NET_DEVICES",
        "GPUPOOL_UCX_TLS",
        "GPUPOOL_WATCH_CAPTURES",
    )
)


def nearly(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of ``env`` that look like ours and are none, each with the one that is meant."""
    found: dict[str, str] = {}
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in NAMES:
            meant = difflib.get_close_matches(name, NAMES, 1, 0.85)
            if meant:
                found[name] = meant[0]
    return found
