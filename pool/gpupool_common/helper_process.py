"""Starting a process of our own that strangers' bytes come to."""

from __future__ import annotations

import os
import subprocess
import sys


def start_helper(module: str, *descriptors: int) -> subprocess.Popen[bytes]:
    """Run a module with the numbers of descriptors, which it inherits; OSError.

    No token and no secret of ours is in reach of who takes it over.
    """
    env = {key: text for key, text in os.environ.items() if not key.startswith("GPUPOOL_")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=env,
        cwd="/",
    )
