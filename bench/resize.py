"""How long a change of a lease's limits takes: from the REST call until the worker keeps to it.

    python bench/resize.py [--changes 100] [--json] [--out FILE]

A manager and a server with soft GPUs on this machine, one lease, and a program on it that runs.
Each change gives the lease other memory, more and less by turns, and is over when the program's
own cuMemGetInfo, which its worker answers, has it. Shown are the median and the worst, of the
call's answer and of that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool_common import paths  # noqa: E402
from harness import Talk  # noqa: E402
from pool_site import running_site  # noqa: E402
from tenants import MIB, end, info  # noqa: E402
from toolchain import Toolchain  # noqa: E402

#: What the lease has by turns.
SIZES = (96 * MIB, 64 * MIB)
#: What is promised.
MOST_SECONDS = 1.0


def measure(changes: int, folder: Path) -> dict[str, list[float]]:
    """Seconds until the call's answer, and until the program sees it, of each change."""
    found: dict[str, list[float]] = {"answered": [], "enforced": []}
    with running_site(paths.find_home(), Toolchain(folder)) as site:
        site.talk = Talk
        lease = site.ask()
        program = site.tenant(lease)
        head = {"Authorization": f"Bearer {site.red}"}
        with httpx.Client(headers=head, trust_env=False, timeout=60) as client:
            for number in range(changes):
                wanted = SIZES[number % 2]
                url = f"{site.manager.url}/v1/leases/{lease['id']}"
                began = time.monotonic()
                answer = client.patch(url, json={"memory_bytes": wanted})
                found["answered"].append(time.monotonic() - began)
                while info(program)[1] != wanted:
                    if answer.status_code != 200 or time.monotonic() - began > 60:
                        raise SystemExit(f"change {number}: {answer.status_code} {answer.text}")
                found["enforced"].append(time.monotonic() - began)
        end(program)
    return found


def summary(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "worst": max(seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.changes, Path(folder))
    kept: dict[str, Any] = {
        "changes": given.changes,
        "host_cores": os.cpu_count(),
        "load": load,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **{name: summary(seconds) for name, seconds in found.items()},
    }
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(kept))
    else:
        print(f"{given.changes} changes, {os.cpu_count()} cores, load {load[0]:.1f} before")
        for name in found:
            print(f"{name:9} median {kept[name]['median'] * 1000:6.1f} ms", end="  ")
            print(f"worst {kept[name]['worst'] * 1000:6.1f} ms")
    return int(kept["enforced"]["worst"] > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
