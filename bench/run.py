"""Native, shared memory and TCP, plain and encrypted, side by side; ratios to native as a table.

    python bench/run.py [--sections micro crowd applications …] [--rounds 3] [--out FILE]

Where there is no GPU, the soft GPU stands in, `native` is the soft GPU without the pool, and the
figures say something about the forwarding only. In the section `sockets` there is no GPU at all,
and `native` is sockets alone: what a transport adds to them (bench/sockets.c). `calls` is what the
driver itself takes, natively (bench/calls.c), `crowd` many processes that launch at once and how
fair that is (bench/crowd.c), and `idle` what sessions cost that do nothing (bench/idle.py).
`applications` are what users run with PyTorch (bench/applications.py), whose answers must be the
same each way; `start` is its beginning alone, the first and each later time of this server's. The
way `far` is `tcp` over a network that takes --far-us microseconds each way (bench/far.c): several
are ways of their own, `far50` and so on. Ways take turns within each round, a figure is its median
over the rounds, and a ratio that of the rounds' own: machines are noisy, so compare ratios within
one run, never figures of two. The results go to bench/results/*.json (ignored by git), of which
bench/plot.py makes a picture.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

import idle  # noqa: E402
from compare import Figures, table  # noqa: E402
from far import Far  # noqa: E402
from far import build as build_far  # noqa: E402

from gpupool_common import paths  # noqa: E402
from gpupool_server import ucx  # noqa: E402
from harness import PoolServer, Result, Talk, device_name, find_nccl, run_program  # noqa: E402
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
SECTIONS = ("sockets", "micro", "calls", "crowd", "idle", "visible", "start", "applications")
#: Processes of section crowd; the most of them only where there are cores for a crowd.
CROWDS, LARGE, LARGE_CORES = (1, 4, 16), 64, 16
#: Of a server: all that ask at once are let in, which is a quarter of these.
MAX_SESSIONS = 4 * LARGE
#: Where they are asked for: UCX has to be there, or root's rights (bench/far.c).
EXTRA = ("ucx", "far")
LEGEND = (
    "medians of {} rounds; below them those of the rounds' ratios to native (1: as\n"
    "fast, 0.5: takes twice as long), ± half of what lies between least and most"
)


@dataclass(frozen=True)
class Place:
    """Where a way's programs run: behind a server, or without one."""

    #: What a server's own is added to; without one, all there is.
    env: dict[str, str]
    server: PoolServer | None = None
    transport: str = ""
    prefix: tuple[str, ...] = ()


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
        self.far: dict[str, Far] = {}
        self.turn = 0
        #: Once for each program: a run that is ended has what it measured.
        self.save: Callable[[], None] = lambda: None
        #: Applications that need what is not here.
        self.skipped: dict[str, str] = {}
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

    def place(self, way: str) -> Place:
        if way == "native":
            return Place(self._native)
        if way in ("curve", "tls"):
            return Place(self.lanes, self.encrypting, "zmq" if way == "curve" else "tcp")
        if way in self.far:
            return Place(self.lanes, self.far[way].server, "tcp", self.far[way].enter)
        own = ucx.environment(library) if way == "ucx" and (library := ucx.find(None)) else {}
        return Place({**own, **self.lanes}, self.server, way)

    def run(self, way: str, command: list[str], limit: float) -> Result:
        place = self.place(way)
        if place.server is None:
            return run_program(command, place.env, limit)
        return place.server.run([*place.prefix, *command], place.transport, limit, **place.env)

    def start(self, way: str, command: list[str]) -> Talk:
        place = self.place(way)
        if place.server is None:
            return Talk(command, place.env)
        env = place.server.environment(place.transport, **place.env)
        return Talk([*place.prefix, *command], env)

    def idle(self, program: Path, seconds: float, ways: list[str]) -> None:
        for way in ways:
            server = self.place(way).server
            start = partial(self.start, way, [str(program)])
            try:
                said = idle.measure(start, server, seconds, gpu=not self.soft)
            except (
                AssertionError,
                OSError,
                RuntimeError,
                ValueError,
                subprocess.SubprocessError,
            ) as error:
                self.troubles.append(f"idle {way}: {error}")
                continue
            self.keep("idle", "", way, said)

    def round(
        self, section: str, label: str, ways: list[str], command: list[str], limit: float = 300.0
    ) -> None:
        for way in ways:
            self.take(section, label, way, self.run(way, command, limit))

    def take(self, section: str, label: str, way: str, result: Result) -> None:
        """The figures that a program has printed."""
        if result.returncode != 0:
            last = (result.stderr or result.stdout).strip().splitlines()[-1:]
            self.troubles.append(f"{label} {way}: exit code {result.returncode} {last}")
            return
        said = json.loads(result.stdout.strip().splitlines()[-1])
        self.keep(section, label, way, said.get("figures", said))
        for name, why in said.get("skipped", {}).items():
            self.skipped[name] = why
        for name, why in said.get("troubles", {}).items():
            self.troubles.append(f"{name} {way}: {why}")
        for name, answer in said.get("results", {}).items():
            first = self.answers.setdefault(f"{section}.{name}", answer)
            if not is_near(answer, first):
                self.troubles.append(f"{name} {way}: {answer} is not {first}")

    def keep(self, section: str, label: str, way: str, figures: dict[str, float]) -> None:
        """Figures of this round; one that had none leaves a gap, so that rounds stay pairs."""
        for name, value in figures.items():
            known = self.figures.setdefault(section, {}).setdefault(f"{label}{name}", {})
            rounds = known.setdefault(way, [])
            rounds += [None] * (self.turn - len(rounds)) + [float(value)]
        self.save()


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
    parser.add_argument(
        "--far-us", type=int, nargs="+", default=[200], help="of way far, each way: a way for each"
    )
    parser.add_argument("--far-gbit", type=float, default=0.0, help="of way far; 0: no limit")
    parser.add_argument("--crowds", type=int, nargs="+", default=None, help="of section crowd")
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
    if given.crowds is None:
        given.crowds = crowds(os.cpu_count() or 1)
    if not all(1 <= count <= LARGE for count in given.crowds):
        parser.error(f"--crowds must be 1 to {LARGE}")
    given.ways = expand(given.ways, given.far_us)
    return given


def crowds(cores: int) -> list[int]:
    return [*CROWDS, LARGE] if cores >= LARGE_CORES else [*CROWDS]


def expand(ways: list[str], far_us: list[int]) -> list[str]:
    """A way for each delay in the place of `far`."""
    far = [f"far{us}" for us in far_us]
    return [each for way in ways for each in (far if way == "far" else [way])]


def measure(bench: Bench, given: argparse.Namespace, sections: list[str], cache: Path) -> None:
    toolchain = Toolchain(cache)
    micro, visible = build_micro(toolchain), build_visible(toolchain)
    calls = toolchain.driver_source("calls", HERE / "calls.c")
    crowd = toolchain.driver_source("crowd", HERE / "crowd.c")
    tenant = toolchain.driver_program("driver_tenant")
    start = [given.python, str(HERE / "applications.py"), "start"]
    largest = "16" if bench.soft else "256"
    applications = [given.python, str(HERE / "applications.py"), "--steps", str(given.steps)]
    applications += given.applications
    for turn in range(given.rounds):
        bench.turn = turn
        print(f"round {turn + 1} of {given.rounds}", file=sys.stderr, flush=True)
        if "sockets" in sections:
            bench.sockets(given.bench_sockets, given.seconds, given.ways)
        if "micro" in sections:
            bench.round("driver calls", "", given.ways, [str(micro), str(given.seconds), largest])
        if "calls" in sections:
            bench.round("the driver itself", "", ["native"], [str(calls)])
        for count in given.crowds if "crowd" in sections else ():
            command = [str(crowd), str(count), str(5 * given.seconds)]
            bench.round("crowd", "", given.ways, command)
        if "idle" in sections:
            bench.idle(tenant, 10 * given.seconds, given.ways)
        if "start" in sections:
            bench.round("start", "later_" if turn else "fresh_", given.ways, start)
        if "visible" in sections:
            bench.round("mapped memory", "", given.ways, [str(visible)])
        if "applications" in sections:
            bench.round("applications", "", given.ways, applications, 600.0)


def plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def save(path: Path, device: str, bench: Bench, given: argparse.Namespace) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {
        "device": device,
        "host_cores": os.cpu_count(),
        "kernel": platform.release(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "asked": {name: plain(value) for name, value in sorted(vars(given).items())},
        "figures": bench.figures,
        "skipped": bench.skipped,
        "troubles": bench.troubles,
    }
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    given = read_arguments()
    gpu = "" if given.soft else device_name()
    device = gpu or "gpupool soft GPU (no real GPU here: nothing below says how fast a GPU is)"
    sections = given.sections or [
        *(["sockets"] if given.bench_sockets.exists() else []),
        "micro",
        "crowd",
        "idle",
        "visible",
        *(["applications"] if gpu and has_torch(given.python) else []),
    ]
    out = given.out or HERE / "results" / time.strftime("%Y%m%d-%H%M%S.json")
    driver = "cuda" if gpu else "soft"
    more = {"ucx": ""} if "ucx" in given.ways else {}
    common = {"max-sessions": str(MAX_SESSIONS)}
    common |= {"tcp-lanes": given.lanes} if given.lanes else {}
    if "applications" in sections and gpu and (library := find_nccl(given.python)):
        common["nccl"] = library
    server = PoolServer(driver, **more, **common)
    encrypting = PoolServer(driver, curve="", **common)
    cache = ROOT / "build" / "bench"
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as ends:
        ends.callback(server.close)
        ends.callback(encrypting.close)
        server.start()
        if {"curve", "tls"} & set(given.ways):
            encrypting.start()
        bench = Bench(server, encrypting, not gpu, Path(scratch), given.lanes)
        for link, us in enumerate(given.far_us if f"far{given.far_us[0]}" in given.ways else ()):
            far = Far(build_far(cache), us, driver, link, given.far_gbit, **common)
            bench.far[f"far{us}"] = ends.enter_context(far)
        bench.save = partial(save, out, device, bench, given)
        measure(bench, given, sections, cache)
    bench.save()
    print(f"{device}\n{LEGEND.format(given.rounds)}")
    print("\n".join(table(bench.figures, given.ways)))
    for name, why in bench.skipped.items():
        print(f"skipped {name}: {why}")
    for trouble in bench.troubles:
        print(f"FAILED {trouble}"[:300])
    print(f"results: {out}")
    return 1 if bench.troubles or not bench.figures else 0


if __name__ == "__main__":
    sys.exit(main())
