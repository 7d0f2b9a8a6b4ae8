"""Wait until this container's server has no session left: wait_for_sessions.py [--seconds N].

The hook before a pod of servers stops. A server that gives no answer has nothing to wait for, and
what is left after so many seconds is the server's to end. Drain the node first: new sessions come
as long as it takes them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

#: A server that is busy is asked again; one that is gone stays gone.
TRIES = 3


def sessions() -> int | None:
    """How many there are; None: the server does not say."""
    asked = ["gpupool", "session", "list", "--json"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        answer = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return len(answer) if isinstance(answer, list) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    silent, shown = 0, -1
    while time.monotonic() < end and silent < TRIES:
        count = sessions()
        silent = silent + 1 if count is None else 0
        if count == 0:
            return
        if count is not None and count != shown:
            print(f"waiting for {count} sessions", file=sys.stderr, flush=True)
            shown = count
        time.sleep(given.every)


if __name__ == "__main__":
    main()
