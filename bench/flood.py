"""What a neighbour notices while another tenant floods one resource after the other.

    python bench/flood.py [--rounds 3] [--seconds 2] [--within 150] [--floods KIND …] [--out FILE]

A victim makes small steps (bench/step.c) all the time. In each round every flood is measured
between two quiet times, and its p99 divided by theirs; shown are the median over the rounds and
the least and most of them. Every other round goes the other way, so that a machine that becomes
slower favours no flood. With what is set three rounds take less than five minutes; with --within
no flood begins that would not end in time, and the last round may have fewer of them.
The attacker is another tenant. Its own processes get only the processor time that nobody else
wants (SCHED_IDLE), as if they were on another machine; what they make the server and their
worker do is not held back. Three controls ask for nothing of ours: `still` does nothing, so that
its ratios are the noise of the measurement; `spin` uses the processor as an attacker's process
does, `busy` as a worker does, at everybody's priority. Where a flood costs no more than `busy`, it
costs the processor time of one worker.

Machines are noisy: compare within one run, and look at the controls first. Below the table is the
flood that cost most, beside the noise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "proto", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool.admin import Admin  # noqa: E402
from harness import PoolServer, Talk, device_name  # noqa: E402
from raw_client import (  # noqa: E402
    KIND_CONTEXT,
    NUMBERS,
    ask_for_session,
    connected,
    handle,
    with_context,
)
from tenants import Pool  # noqa: E402
from toolchain import Toolchain  # noqa: E402

#: What a neighbour's p99 may become (docs/budgets.md).
ALLOWED = 1.5

ATTACKER, VICTIM = "token-of-blue", "token-of-red"

#: A context of a large GPU takes half a GiB.
QUOTAS = """
[tenants.red]
token = "token-of-red"
memory = "{0}MiB"
share = "50%"
weight = 4
sessions = 4

[tenants.blue]
token = "token-of-blue"
memory = "{0}MiB"
share = "30%"
weight = 1
"""

#: So little that a flood soon stands at its limit, and is refused again and again.
TIGHT = {
    "session-host-memory": "128MiB",
    "session-pinned-memory": "256MiB",
    "session-shares": "512",
    "session-log-lines": "1000",
    "session-disk": "16MiB",
}

#: What the hoarding program (tests/e2e/programs/driver_hoard.c) is told over and over.
HOARDS = {
    "pinned": ("pinned 4096 4096", "free"),
    "shares": ("pinned 4096 4", "free"),
    "images": ("modules 4096 4096", "free"),
    "log": ("bad 200",),
}

#: Which budgets a flood presses on (gpupool_common/budgets.py). Each piece of shared memory is a
#: descriptor that the worker is handed, so that flood is the one of open files as well.
PRESSES = {
    "sessions": ("sessions", "pending"),
    "pinned": ("pinned_memory",),
    "shares": ("shares", "open_files"),
    "images": ("host_memory",),
    "disk": ("disk",),
    "log": ("log_lines",),
}

#: Messages that are sent at once.
BURST = 500


def begun() -> None:
    """Whoever measures may begin."""
    print("flooding", flush=True)


def still(server: PoolServer) -> None:
    """Nothing at all."""
    begun()
    while True:
        time.sleep(60)


def spin(server: PoolServer) -> None:
    """Nothing of anybody's but the processor."""
    begun()
    while True:
        pass


def sessions(server: PoolServer) -> None:
    """Sessions whose programs never come."""
    begun()
    while True:
        ask_for_session(server, token=ATTACKER)


def questions(server: PoolServer) -> None:
    """Wrong tokens."""
    begun()
    while True:
        ask_for_session(server, token="none-of-yours")


def messages(server: PoolServer) -> None:
    """Good calls that cost nothing, as many as the worker takes."""
    with connected(server, token=ATTACKER) as client:
        with_context(client)
        context = struct.pack("<Q", handle(KIND_CONTEXT, 1))
        begun()
        while True:
            call = NUMBERS["gp_context_set"]
            client.send([client.message(call, context, flags=0) for _ in range(BURST)])


def disk(server: PoolServer) -> None:
    """What a driver could write for its tenant: the cache of what it compiles, until it is full."""
    with connected(server, token=ATTACKER) as client:
        with_context(client)
        status = Admin(server.folder / "run").ask({"do": "status"})
        (pid,) = (each["pid"] for each in status["sessions"] if each["tenant"] == "blue")
        path = Path(f"/proc/{pid}/root/cache/flood")
        path.touch()
        begun()
        while True:
            with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))


def connections(server: PoolServer) -> None:
    """Connections to the front end that say something wrong, or nothing."""
    begun()
    host, _, port = server.url.removeprefix("tcp://").rpartition(":")
    opened: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            one = socket.create_connection((host, int(port)), timeout=1)
            opened.append(one)
            one.send(b"GET / HTTP/1.1\r\n\r\n" if len(opened) % 2 else b"")
        if len(opened) > 600:
            opened.pop(0).close()


ASKERS: dict[str, Callable[[PoolServer], None]] = {
    "still": still,
    "spin": spin,
    "busy": spin,
    "sessions": sessions,
    "questions": questions,
    "connections": connections,
    "messages": messages,
    "disk": disk,
}
KINDS = (*ASKERS, *HOARDS)
CONTROLS = ("still", "spin", "busy")


class Flood:
    """One kind of flood while the context lasts."""

    def __init__(self, server: PoolServer, hoard: list[str]) -> None:
        self._server = server
        self._hoard = hoard

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        attacker = subprocess.Popen(
            [
                *(sys.executable, __file__, "--attack", kind),
                *(self._server.url, str(self._server.folder), *self._hoard),
            ],
            env=os.environ | self._server.environment("shm", GPUPOOL_TOKEN=ATTACKER),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        try:
            assert attacker.stdout is not None
            if attacker.stdout.readline() != b"flooding\n":
                raise RuntimeError(f"the flood {kind} did not begin")
            yield
        finally:
            attacker.kill()
            attacker.wait()


def attack(kind: str, url: str, folder: str, hoard: list[str]) -> None:
    """The attacker's process: it floods until it is killed."""
    if kind != "busy":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    server = PoolServer()
    server.url = server.address = url
    server.folder.rmdir()
    server.folder = Path(folder)
    if kind in ASKERS:
        ASKERS[kind](server)
    program = Talk(hoard, os.environ)
    if program.line() != "ready":
        sys.exit("no session")
    begun()
    while True:
        for words in HOARDS[kind]:
            program.say(words)
            program.line()


class Bench:
    """A victim that runs all the time, and what it says."""

    def __init__(self, pool: Pool, flood: Flood, step: str, seconds: float) -> None:
        self._pool = pool
        self._flood = flood
        self._seconds = seconds
        self._victim = Talk([step], pool.server.environment("shm", GPUPOOL_TOKEN=VICTIM))
        if self._victim.line() != "ready":
            raise RuntimeError("the victim did not begin")
        self._sessions_refused = 0
        self._took: dict[str, float] = {}
        self.figures: dict[str, list[dict[str, Any]]] = {}

    def measure(self) -> dict[str, Any]:
        self._victim.say(f"measure {self._seconds * 1000:.0f}")
        told: dict[str, Any] = json.loads(self._victim.line())
        if "error" in told:
            raise RuntimeError(f"the victim failed: {told['error']}")
        return told

    def round(self, kinds: list[str], ends: float) -> None:
        """Each kind once, or as many as end in time."""
        quiet = self.measure()
        for kind in kinds:
            began = time.monotonic()
            if began + self._took.get(kind, 0.0) > ends:
                continue
            with self._flood.of(kind):
                time.sleep(0.5)
                flooded = self.measure()
                refused = self._refused(kind)
            self._settle()
            after = self.measure()
            figure = {"quiet": quiet, "flood": flooded, "after": after, "refused": refused}
            self.figures.setdefault(kind, []).append(figure)
            self._took[kind] = time.monotonic() - began
            quiet = after

    def _refused(self, kind: str) -> int:
        """How often the attacker was refused what it floods, as far as the server counts it."""
        status = self._pool.ask(do="status")
        if kind != "sessions":
            mine = [each for each in status["sessions"] if each["tenant"] == "blue"]
            return sum(of["refused"] for each in mine for of in each["budgets"].values())
        found = status["budgets"].get("blue", {})
        whole = sum(found[name]["refused"] for name in ("sessions", "pending") if name in found)
        before, self._sessions_refused = self._sessions_refused, max(whole, self._sessions_refused)
        return self._sessions_refused - before

    def _settle(self) -> None:
        """Wait for the attacker's sessions to end, as far as they do."""
        for _ in range(50):
            left = [s for s in self._pool.ask(do="status")["sessions"] if s["tenant"] == "blue"]
            if not left:
                return
            time.sleep(0.2)

    def close(self) -> None:
        self._victim.close()


def summary(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """The medians of one flood over its rounds."""

    def quiet(one: dict[str, Any], key: str) -> float:
        return float(one["quiet"][key] + one["after"][key]) / 2

    ratios = [one["flood"]["p99_us"] / quiet(one, "p99_us") for one in rounds]
    return {
        "quiet_p99_us": statistics.median(quiet(one, "p99_us") for one in rounds),
        "flood_p99_us": statistics.median(float(one["flood"]["p99_us"]) for one in rounds),
        "p50_ratio": statistics.median(
            one["flood"]["p50_us"] / quiet(one, "p50_us") for one in rounds
        ),
        "p99_ratio": statistics.median(ratios),
        "p99_ratio_least": min(ratios),
        "p99_ratio_most": max(ratios),
        "refused": statistics.median(one["refused"] for one in rounds),
        "rounds": len(rounds),
    }


def table(found: dict[str, dict[str, float]]) -> list[str]:
    heads = f"{'flood of':14}{'quiet p99':>11}{'p99':>10}{'ratio':>7}{'least..most':>13}"
    lines = [f"{heads}{'of p50':>8}{'refused':>9}{'rounds':>7}"]
    for kind, each in found.items():
        over = "" if each["p99_ratio"] <= ALLOWED else f"  over {ALLOWED}"
        spread = f"{each['p99_ratio_least']:.2f}..{each['p99_ratio_most']:.2f}"
        lines.append(
            f"{kind:14}{each['quiet_p99_us']:8.0f} us{each['flood_p99_us']:7.0f} us"
            f"{each['p99_ratio']:7.2f}{spread:>13}{each['p50_ratio']:8.2f}{each['refused']:9.0f}"
            f"{each['rounds']:7.0f}{over}"
        )
    return [*lines, *verdict(found)]


def verdict(found: dict[str, dict[str, float]]) -> list[str]:
    """The flood that cost most, by its median and by its worst round, beside the noise."""
    floods = {kind: each for kind, each in found.items() if kind not in CONTROLS}
    lines = []
    for what, key in (("median", "p99_ratio"), ("worst round", "p99_ratio_most")):
        noise = f"; nothing: {found['still'][key]:.2f}" if "still" in found else ""
        if floods:
            most = max(floods, key=lambda kind: floods[kind][key])
            lines.append(f"most by the {what}: {most} {floods[most][key]:.2f}{noise}")
    return lines


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--within", type=float, default=0.0, help="seconds in all; 0: as it takes")
    parser.add_argument("--floods", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--soft", action="store_true", help="the soft GPU even where a GPU is")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--out", type=Path, default=None, help="a file for the results")
    given = parser.parse_args()
    if given.rounds < 1 or not 0.1 <= given.seconds <= 600:
        parser.error("--rounds must be at least 1, and --seconds 0.1..600")
    return given


def measure(given: argparse.Namespace, driver: str) -> dict[str, list[dict[str, Any]]]:
    toolchain = Toolchain(ROOT / "build" / "bench")
    ends = time.monotonic() + given.within if given.within else float("inf")
    step = str(toolchain.driver_source("step", HERE / "step.c"))
    hoard = [str(toolchain.driver_program("driver_hoard"))]
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "server.toml"
        config.write_text(QUOTAS.format(2048 if driver == "cuda" else 64))
        server = PoolServer(driver, config=str(config), **TIGHT)
        try:
            server.start()
            pool = Pool(server, toolchain, Talk)
            bench = Bench(pool, Flood(server, hoard), step, given.seconds)
            try:
                for turn in range(given.rounds):
                    print(f"round {turn + 1} of {given.rounds}", file=sys.stderr, flush=True)
                    bench.round(given.floods[:: -1 if turn % 2 else 1], ends)
            finally:
                bench.close()
        finally:
            server.close()
    return bench.figures


def main() -> int:
    if sys.argv[1:2] == ["--attack"]:
        attack(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    given = read_arguments()
    gpu = "" if given.soft else device_name()
    if "disk" in given.floods and os.geteuid() != 0:
        given.floods.remove("disk")
        print("disk is left out: only root writes where a worker does", file=sys.stderr)
    rounds = measure(given, "cuda" if gpu else "soft")
    found = {kind: summary(each) for kind, each in rounds.items()}
    kept = {
        "device": gpu or "gpupool soft GPU",
        "host_cores": os.cpu_count(),
        "load": os.getloadavg(),
        "kernel": platform.release(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "floods": found,
        "rounds": rounds,
    }
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(kept))
    else:
        print(f"{kept['device']}, {os.cpu_count()} cores, median of up to {given.rounds} rounds")
        print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
