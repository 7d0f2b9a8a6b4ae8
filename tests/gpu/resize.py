"""A lease of a real GPU that gets other limits while its program runs.

    python tests/gpu/resize.py [--out DIR] [--ways shm tcp] [--times N] [--driver soft]

A manager and one server. A program takes memory up to its limit, gets more by a resize, and less
again: below what it holds a resize is refused with the figure, and forced it keeps what it holds
and gets no more. Then its limit is changed N times, and the time from the request to the worker's
answer with the new limit is shown. The exit code is 1 if anything is not as promised.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

import httpx  # noqa: E402

from gpupool_common import paths  # noqa: E402
from harness import Talk, wait_until  # noqa: E402
from pool_site import Site  # noqa: E402
from tenants import MIB, end, info, tell  # noqa: E402
from toolchain import Toolchain  # noqa: E402

REFUSED = "refused CUDA_ERROR_OUT_OF_MEMORY"


class Checks:
    def __init__(self) -> None:
        self.failed = 0

    def that(self, what: str, ok: bool, found: object = "") -> None:
        self.failed += not ok
        print(f"{'ok ' if ok else 'NOT'} {what}{f': {found}' if not ok else ''}", flush=True)


def resize(site: Site, lease: dict[str, Any], **limits: Any) -> httpx.Response:
    return site.manager.ask("PATCH", f"/leases/{lease['id']}", limits, site.red)


def limits_change(site: Site, way: str, unit: int, checks: Checks) -> None:
    """`unit` MiB is a quarter of the first limit; a context and modules take part of one."""
    lease = site.ask(memory_bytes=4 * unit * MIB)
    program = site.tenant(lease, way)
    checks.that(f"{way}: within the limit", tell(program, f"take {2 * unit}").startswith("took"))
    checks.that(f"{way}: beyond it", tell(program, f"take {2 * unit}") == REFUSED)
    more = resize(
        site, lease, memory_bytes=8 * unit * MIB, share_permille=300, ceiling_permille=600
    )
    checks.that(f"{way}: raised", more.status_code == 200, more.text)
    checks.that(f"{way}: seen by the program", info(program)[1] == 8 * unit * MIB, info(program))
    checks.that(f"{way}: and used", tell(program, f"take {2 * unit}").startswith("took"))
    less = resize(site, lease, memory_bytes=3 * unit * MIB)
    detail = less.json().get("detail", "")
    checks.that(f"{way}: not below what is held", less.status_code == 409, less.text)
    checks.that(f"{way}: with the figure", " in use, more than " in detail, detail)
    forced = resize(site, lease, memory_bytes=3 * unit * MIB, force=True)
    checks.that(f"{way}: but forced", forced.status_code == 202, forced.text)
    checks.that(f"{way}: nothing more then", tell(program, "take 1") == REFUSED)
    checks.that(f"{way}: while it works on", tell(program, "work 3") == "worked 3")
    tell(program, "give")
    path = f"/leases/{lease['id']}"
    wait_until(lambda: site.manager.do("GET", path)["resize"] is None, "it fits")
    checks.that(f"{way}: it fits at last", info(program)[1] == 3 * unit * MIB, info(program))
    end(program)
    site.clear()


def timed(site: Site, way: str, unit: int, times: int) -> dict[str, float]:
    """Milliseconds from the request until the program has seen the new limit."""
    lease = site.ask(memory_bytes=4 * unit * MIB)
    program = site.tenant(lease, way)
    taken = []
    for turn in range(times):
        wanted = (4 + turn % 2 + 1) * unit * MIB
        begin = time.monotonic()
        answer = resize(site, lease, memory_bytes=wanted)
        answered = time.monotonic()
        if answer.status_code != 200:
            raise SystemExit(f"resize {turn}: {answer.text}")
        await_limit(program, wanted)
        taken.append(((answered - begin) * 1e3, (time.monotonic() - begin) * 1e3))
    end(program)
    site.clear()
    answers, seen = ([each[place] for each in taken] for place in (0, 1))
    return {
        "answer_median_ms": statistics.median(answers),
        "answer_worst_ms": max(answers),
        "seen_median_ms": statistics.median(seen),
        "seen_worst_ms": max(seen),
    }


def await_limit(program: Talk, wanted: int) -> None:
    deadline = time.monotonic() + 10.0
    while info(program)[1] != wanted:
        if time.monotonic() > deadline:
            raise SystemExit("the program never saw its new limit")


def main() -> int:
    parser = argparse.ArgumentParser(description="a lease resized while its program runs")
    parser.add_argument("--out", type=Path, help="a folder for resize.json")
    parser.add_argument("--ways", nargs="+", default=["shm", "tcp"], choices=("shm", "tcp", "zmq"))
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--driver", default="cuda", help="of the server (soft: to try this)")
    given = parser.parse_args()
    unit = 1024 if given.driver == "cuda" else 16
    checks = Checks()
    site = Site(paths.find_home(), Toolchain(ROOT / "build" / "gpu" / "programs"))
    site.talk = Talk
    times: dict[str, dict[str, float]] = {}
    try:
        site.manager.start()
        site.red = site.manager.tenant("red")
        site.add("one", driver=given.driver)
        site.manager.wait_for("one")
        for way in given.ways:
            limits_change(site, way, unit, checks)
            times[way] = timed(site, way, unit, given.times)
            told = ", ".join(f"{key} {value:.1f}" for key, value in times[way].items())
            print(f"{way}: {given.times} times: {told}", flush=True)
    finally:
        site.close()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "resize.json").write_text(json.dumps(times, indent=1))
    print(f"{checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
