"""Native, shared memory and TCP, plain and encrypted, side by side; ratios to native as a table.

    python bench/run.py [--sections micro crowd applications …] [--rounds 3] [--out FILE]

Where there is no GPU, the soft GPU stands in, `native` is the soft GPU without the pool, and the
figures say something about the forwarding only. In the section `sockets` there is no GPU at all,
and `native` is sockets alone: what a transport adds to them (bench/sockets.c). `calls` is what the
driver itself takes, natively (bench/calls.c), and `crowd` many processes that launch at once
(bench/crowd.c). `applications` are what users run with PyTorch (bench/applications.py), whose
answers must be the same each way; `start` is its beginning alone, the first and each later time of
this server's. The way `far` is `tcp` over a network that takes --far-us microseconds each way
(bench/far.c). Ways take turns within each round, and a figure is its median over the rounds:
machines are noisy, so compare ratios within one run, never figures of two. The results go to
bench/results/*.json (ignored by git).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from far import Far  # noqa: E402
from far import build as build_far  # noqa: E402

from gpupool_common import paths  # noqa: E402
from gpupool_server import ucx  # noqa: E402
from harness import PoolServer, Result, run_program  # noqa: E402
from toolchain import Toolchain  # noqa: E402

#: `curve`: zmq, encrypted. `tls`: tcp, encrypted.
WAYS = ("native", "shm", "tcp", "tls", "zmq", "curve")
#: What bench_sockets listens at; shared memory has no sockets.
SOCKETS = {
    "native": "bare",
    "tcp": "plain://127.0.0.1:*",
    "tls": "tls://127.0.0.1:*",
    "zmq": "tcp://127.0.0.1:*",
    "curve": "tcp://127.0.0.1:*?key=own",
}
SECTIONS = ("sockets", "micro", "calls", "crowd", "visible", "start", "applications")
#: Processes of section crowd.
CROWDS = ("1", "16")
#: Where they are asked for: UCX has to be there, or root's rights (bench/far.c).
EXTRA = ("ucx", "far")
#: section -> figure -> way -> the figures of all rounds
Figures = dict[str, dict[str, dict[str, list[float]]]]


class Bench:
    """Runs the same program each way in turn and collects its figures."""

    def __init__(
        self, server: PoolServer, encrypting: PoolServer, soft: bool, scratch: Path, lanes: str
    ) -> None:
        self.lanes = {"GPUPOOL_LANES": lanes} if lanes else {}
        self.server = server
        self.encrypting = encrypting
        self.soft = soft
        self.figures: Figures = {}
        self.troubles: list[str] = []
        self.far: Far | None = None
        #: What each program answered first, whichever way it went.
        self.answers: dict[str, Any] = {}
        self._native = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        if soft:
            (scratch / "libcuda.so.1").symlink_to(server.home.part(paths.SOFT_GPU))
            self._native["LD_LIBRARY_PATH"] = str(scratch)

    def sockets(self, program: Path, seconds: float, ways: list[str]) -> None:
        plugins = self.server.home.root / paths.PLUGINS
        here = self._native | {"GPUPOOL_PLUGIN_DIR": str(plugins)}
        here |= self.lanes
        for way in (way for way in ways if way in SOCKETS):
            result = run_program([str(program), SOCKETS[way], str(seconds)], here, 300.0)
            self.take("sockets alone", "", way, result)

    def run(self, way: str, command: list[str], limit: float) -> Result:
        if way == "native":
            return run_program(command, self._native, limit)
        if way in ("curve", "tls"):
            transport = "zmq" if way == "curve" else "tcp"
            return self.encrypting.run(command, transport, limit, **self.lanes)
        if way == "far" and self.far is not None:
            return self.far.run(command, limit)
        own = ucx.environment(library) if way == "ucx" and (library := ucx.find(None)) else {}
        return self.server.run(command, way, limit, **own, **self.lanes)

    def round(self, section: str, label: str, ways: list[str], command: list[str]) -> None:
        for way in ways:
            self.take(section, label, way, self.run(way, command, 300.0))

    def take(self, section: str, label: str, way: str, result: Result) -> None:
        """The figures that a program has printed."""
        if result.returncode != 0:
            last = (result.stderr or result.stdout).strip().splitlines()[-1:]
            self.troubles.append(f"{label} {way}: exit code {result.returncode} {last}")
            return
        said = json.loads(result.stdout.strip().splitlines()[-1])
        for name, value in said.get("figures", said).items():
            known = self.figures.setdefault(section, {}).setdefault(f"{label}{name}", {})
            known.setdefault(way, []).append(float(value))
        for name, answer in said.get("results", {}).items():
            first = self.answers.setdefault(f"{section}.{name}", answer)
            if not is_near(answer, first):
                self.troubles.append(f"{name} {way}: {answer} is not {first}")


def build_micro(toolchain: Toolchain) -> Path:
    """The microbenchmark, linked to libcuda.so.1 by name."""
    return toolchain.driver_source("micro", HERE / "micro.c")


def build_visible(toolchain: Toolchain) -> Path:
    """What host and kernel see of each other's words."""
    return toolchain.driver_source("visible", HERE / "visible.c")


def is_near(answer: Any, other: Any) -> bool:
    """The same but for the order of sums, in which even two native runs may differ."""
    if isinstance(answer, list) and isinstance(other, list):
        return len(answer) == len(other) and all(map(is_near, answer, other))
    if isinstance(answer, float) and isinstance(other, float):
        return math.isclose(answer, other, rel_tol=1e-3)
    return bool(answer == other)


def is_rate(name: str) -> bool:
    return name.endswith(("_gb_s", "_tflops", "_k_per_s"))


def ratio(name: str, native: float, pooled: float) -> float:
    """How fast against native: 1 is as fast, 0.5 takes twice as long."""
    if native <= 0 or pooled <= 0:
        return 0.0
    return pooled / native if is_rate(name) else native / pooled


def table(figures: Figures, ways: list[str]) -> list[str]:
    """Lines of at most 80 columns: figures each way, and the ratio of each to native."""
    pooled = [way for way in ways if way != "native"]
    columns = len(ways) + len(pooled) * ("native" in ways)
    cell, over = (9, "/nat") if columns <= 5 else (8, "/n")
    label = min(32, 80 - cell * columns)
    head = f"{'figure':{label}}" + "".join(f"{way:>{cell}}" for way in ways)
    if "native" in ways:
        head += "".join(f"{way + over:>{cell}}" for way in pooled)
    lines = [head]
    for section, names in figures.items():
        lines.append(f"-- {section}")
        for name, each in names.items():
            middle = {way: statistics.median(values) for way, values in each.items()}
            cells = "".join(
                f"{middle[w]:{cell}.4g}" if w in middle else f"{'-':>{cell}}" for w in ways
            )
            if "native" in ways:
                for way in pooled:
                    both = "native" in middle and way in middle
                    value = ratio(name, middle["native"], middle[way]) if both else None
                    cells += f"{value:{cell}.2f}" if value is not None else f"{'-':>{cell}}"
            lines.append(f"{name[:label]:{label}}{cells}")
    return lines


def has_gpu() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""


def has_torch(python: str) -> bool:
    command = [python, "-c", "import torch"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=None, help="those that can be run here"
    )
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, *EXTRA), default=list(WAYS))
    parser.add_argument("--far-us", type=int, default=200, help="of way far, each way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each figure of micro")
    parser.add_argument("--steps", type=int, default=20, help="of each application")
    parser.add_argument("--applications", nargs="+", default=[], help="only these")
    parser.add_argument(
        "--lanes",
        default=os.environ.get("GPUPOOL_LANES", ""),
        help="connections for long messages, 1 to 8, at both ends of tcp and tls",
    )
    parser.add_argument("--soft", action="store_true", help="the soft GPU even where a GPU is")
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument(
        "--bench-sockets",
        type=Path,
        default=ROOT / "build" / "tests" / "c" / "bench_sockets",
        help="the program of section sockets, as `make bench` builds it",
    )
    parser.add_argument("--out", type=Path, default=None, help="the file for the results")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    return given


def measure(bench: Bench, given: argparse.Namespace, sections: list[str], cache: Path) -> None:
    toolchain = Toolchain(cache)
    micro, visible = build_micro(toolchain), build_visible(toolchain)
    calls = toolchain.driver_source("calls", HERE / "calls.c")
    crowd = toolchain.driver_source("crowd", HERE / "crowd.c")
    start = [given.python, str(HERE / "applications.py"), "start"]
    largest = "16" if bench.soft else "256"
    applications = [given.python, str(HERE / "applications.py"), "--steps", str(given.steps)]
    applications += given.applications
    for turn in range(given.rounds):
        print(f"round {turn + 1} of {given.rounds}", file=sys.stderr, flush=True)
        if "sockets" in sections:
            bench.sockets(given.bench_sockets, given.seconds, given.ways)
        if "micro" in sections:
            bench.round("driver calls", "", given.ways, [str(micro), str(given.seconds), largest])
        if "calls" in sections:
            bench.round("the driver itself", "", ["native"], [str(calls)])
        for count in CROWDS if "crowd" in sections else ():
            bench.round("crowd", "", given.ways, [str(crowd), count, str(5 * given.seconds)])
        if "start" in sections:
            bench.round("start", f"{turn + 1}: ", given.ways, start)
        if "visible" in sections:
            bench.round("mapped memory", "", given.ways, [str(visible)])
        if "applications" in sections:
            bench.round("applications", "", given.ways, applications)


def save(path: Path, device: str, bench: Bench) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {
        "device": device,
        "host_cores": os.cpu_count(),
        "kernel": platform.release(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "figures": bench.figures,
        "troubles": bench.troubles,
    }
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    given = read_arguments()
    gpu = "" if given.soft else has_gpu()
    device = gpu or "gpupool soft GPU (no real GPU here: nothing below says how fast a GPU is)"
    sections = given.sections or [
        *(["sockets"] if given.bench_sockets.exists() else []),
        "micro",
        "visible",
        *(["applications"] if gpu and has_torch(given.python) else []),
    ]
    out = given.out or HERE / "results" / time.strftime("%Y%m%d-%H%M%S.json")
    driver = "cuda" if gpu else "soft"
    more = {"ucx": ""} if "ucx" in given.ways else {}
    lanes = {"tcp-lanes": given.lanes} if given.lanes else {}
    server = PoolServer(driver, **more, **lanes)
    encrypting = PoolServer(driver, curve="", **lanes)
    cache = ROOT / "build" / "bench"
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as ends:
        ends.callback(server.close)
        ends.callback(encrypting.close)
        server.start()
        if {"curve", "tls"} & set(given.ways):
            encrypting.start()
        bench = Bench(server, encrypting, not gpu, Path(scratch), given.lanes)
        if "far" in given.ways:
            bench.far = ends.enter_context(Far(build_far(cache), given.far_us, driver, given.lanes))
        measure(bench, given, sections, cache)
    save(out, device, bench)
    print(f"{device}\nmedian of {given.rounds} rounds; _us, _ms: time; _gb_s, _tflops: rate")
    print("\n".join(table(bench.figures, given.ways)))
    for trouble in bench.troubles:
        print(f"FAILED {trouble}"[:300])
    print(f"results: {out}")
    return 1 if bench.troubles or not bench.figures else 0


if __name__ == "__main__":
    sys.exit(main())
