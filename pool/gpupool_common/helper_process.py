"""Starting processes of our own, also those that strangers' bytes come to."""

from __future__ import annotations

import os
import subprocess
import sys


def command_of(module: str) -> list[str]:
    """How a module of ours is run; what lies in the working directory is none (-P)."""
    return [sys.executable, "-P", "-m", module]


def start_helper(module: str, *descriptors: int) -> subprocess.Popen[bytes]:
    """Run a module with the numbers of descriptors, which it inherits; OSError.

    No token and no secret of ours is in reach of who takes it over.
    """
    env = {key: text for key, text in os.environ.items() if not key.startswith("GPUPOOL_")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [*command_of(module), *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=env,
        cwd="/",
    )
