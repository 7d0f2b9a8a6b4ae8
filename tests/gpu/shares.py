"""Hold the sharing of one GPU against what is promised, on a machine with a real GPU.

    python tests/gpu/shares.py --out DIR [--only SECTION ...] [--list]

Sections: ratios, resnet, copies, fixed, priority, latency, crash, hostile, memory, many, alone,
live. One server with a tenant for every role; policies and weights are changed through its admin
socket, as an operator would. Each row says what was asked, what was measured and whether that is
within the promise; DIR/shares.json has everything. The exit code is 1 if any row failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pynvml
from share_bench import (
    GIB,
    HERE,
    MS,
    ROOT,
    TENANTS,
    US,
    Bench,
    Report,
    clock,
    configuration,
    read_report,
)

from harness import PoolServer
from toolchain import Toolchain


def check_ratio(
    bench: Bench,
    section: str,
    asked: str,
    got: Sequence[float],
    want: Sequence[int],
    percent: float = 2.0,
    alone: float = 0.0,
) -> None:
    """Every tenant's part of what was done, against its weight."""
    total, weights = sum(got), sum(want)
    parts = [
        100 * (g / total) / (w / weights) - 100 if total else -100
        for g, w in zip(got, want, strict=True)
    ]
    worst = max(parts, key=abs)
    least = min(got)
    text = " : ".join(f"{g / least:.3f}" if least else "0" for g in got)
    good = abs(worst) <= percent
    if alone:
        text += f" sum {100 * total / alone:.1f} %"
        good = good and total >= 0.95 * alone
    bench.row(section, asked, f"{text} ({worst:+.1f} %)", good, done=list(got), alone=alone)


def rate(bench: Bench, length: int) -> float:
    """Chunks that kernels of this length do alone, by length."""
    if length not in bench.rates:
        seconds = 6.0 if length >= 300 * MS else 2.0
        bench.rates[length] = bench.work([(TENANTS[0], length)], seconds)[0] / seconds
    return bench.rates[length]


def ratios(bench: Bench) -> None:
    """Work done by kernels of every length, by weight."""
    a, b, c = TENANTS[:3]
    bench.policy("weighted")
    for pair in ((1, 2), (1, 1), (1, 9), (3, 7), (8, 4)):
        bench.weights(*pair)
        lengths = (20 * US,) if pair == (8, 4) else (20 * US, 300 * US, 3 * MS)
        for length in lengths:
            got = bench.work([(a, length), (b, length)])
            check_ratio(bench, "ratios", f"{pair[0]} : {pair[1]}, {length / MS:g} ms", got, pair)
    bench.weights(1, 1, 2)
    got = bench.work([(a, 300 * US), (b, 300 * US), (c, 300 * US)])
    check_ratio(bench, "ratios", "1 : 1 : 2, 0.3 ms", got, (1, 1, 2))
    bench.weights(1, 2)
    for first, second in ((300 * MS, 300 * MS), (300 * US, 300 * MS), (20 * US, 3 * MS)):
        seconds = 30.0 if 300 * MS in (first, second) else bench.seconds
        done = bench.work([(a, first), (b, second)], seconds)
        # A kernel has a cost of its own: time is compared, not what short ones lose of it.
        rates = [rate(bench, first), rate(bench, second)]
        parts = [chunks / each for chunks, each in zip(done, rates, strict=True)]
        name = f"1 : 2, {first / MS:g} ms beside {second / MS:g} ms"
        check_ratio(bench, "ratios", name, parts, (1, 2))


def resnet(bench: Bench) -> None:
    """ResNet-50: training in bf16, inference that waits after every step."""
    bench.policy("weighted")
    bench.weights(1, 2)
    a, b = TENANTS[:2]
    for kind, batch in (("train", 64), ("infer", 1), ("infer", 8), ("infer", 64), ("infer", 128)):
        alone = bench.images([(a, kind, batch)], 14.0)[0]
        # Starting is much waiting, which a turn of the other's makes long.
        lead = 30.0 if kind == "train" else 45.0
        got = bench.images([(a, kind, batch), (b, kind, batch)], lead)
        check_ratio(bench, "resnet", f"1 : 2, {kind} {batch}", got, (1, 2), alone=alone)


def copies(bench: Bench) -> None:
    """Pinned memory to and from the GPU: an account of its own, beside kernels too."""
    bench.policy("weighted")
    a, b = TENANTS[:2]
    for kind in ("upload", "download"):
        bench.weights(1)
        alone = bench.images([(a, kind, 64)], 14.0)[0]
        bench.weights(1, 2)
        got = bench.images([(a, kind, 64), (b, kind, 64)], 20.0)
        name = f"1 : 2, {kind} of 64 MiB, {alone / 1024:.1f} GiB/s"
        check_ratio(bench, "copies", name, got, (1, 2), alone=alone)


def fixed(bench: Bench) -> None:
    """A fixed share with nobody else there: what it does of what it could."""
    a = TENANTS[0]
    bench.policy("native")
    bench.weights(6)
    whole = bench.work([(a, 300 * US)])[0]
    bench.policy("fixed", max_inst=20)
    got = bench.work([(a, 300 * US)])[0]
    busy = 100 * got / whole
    bench.row("fixed", "6 of 20 slices: 30 %", f"{busy:.2f} %", abs(busy - 30) <= 1)
    bench.policy("weighted", max_inst=25)


#: Kernels of 180 us in a job, and the pause behind it in us.
HIGH_JOBS = ((4, 20000), (11, 20000), (28, 30000), (56, 40000))


def priority(bench: Bench) -> None:
    """Jobs of several lengths with a pause between them, alone and beside a tenant that trains."""
    high, low = TENANTS[:2]
    bench.policy("preemptive")
    bench.weights(1, 1)
    program, seconds = str(bench.toolchain.runtime_program("work")), min(bench.seconds, 3.5)

    def jobs(count: int, pause: int) -> Report:
        job = (high, ["180", "{start}", "{seconds}", str(count), str(pause)])
        return bench.together([program], [job], 1.5, seconds, None, GPUPOOL_PRIORITY="high")[0]

    alone = [jobs(*job) for job in HIGH_JOBS]
    script, lasts = str(HERE / "share_programs.py"), len(HIGH_JOBS) * (seconds + 3)
    trainer = bench.start(
        low, [bench.python, script, "train", "64", f"{clock() + 14:.6f}", f"{lasts:g}"]
    )
    time.sleep(14)
    for (count, pause), without in zip(HIGH_JOBS, alone, strict=True):
        beside = jobs(count, pause)
        ratio = beside["p99"] / without["p99"]
        got = f"{beside['p99']:.0f} us, alone {without['p99']:.0f}: {ratio:.2f}"
        bench.row(
            "priority",
            f"{0.18 * count:.1f} ms: p99 at most 1.5 x alone",
            got,
            ratio <= 1.5,
            alone=without,
            beside=beside,
        )
    read_report(trainer, 60)


#: Steps that a client waits for, and the kernels beside them: lengths.
STEPS = ((4, 300 * US), (4, 3 * MS), (10, 300 * US), (10, 3 * MS), (20, 300 * US), (40, 300 * US))


def latency(bench: Bench) -> None:
    """Steps of a tenant with 25 % that waits for each, beside one that always has work.

    Rows have p50 and p99 of what a step takes with that part of the GPU at every moment.
    """
    a, b = TENANTS[:2]
    bench.policy("weighted")
    bench.weights(1, 3)
    program = str(bench.toolchain.runtime_program("work"))
    length, seconds = 300 * US, 3.5
    alone = rate(bench, length)
    for step, other in STEPS:
        count = step * MS // length
        jobs = [
            (a, [str(length), "{start}", "{seconds}", str(count)]),
            (b, [str(other), "{start}", "{seconds}"]),
        ]
        waits, works = bench.together([program], jobs, 4.0, seconds)
        fair = 4 * count * length / alone * 1e6
        p50, p99 = waits["p50"] / fair, waits["p99"] / fair
        done = waits["chunks"] + works["chunks"]
        share, total = waits["chunks"] / max(done, 1), done / (alone * seconds)
        good = 0 < p99 <= 1.5 and abs(share / 0.25 - 1) <= 0.02 and total >= 0.95
        bench.row(
            "latency",
            f"p99 <= 1.5: {step} ms beside {other / MS:g}",
            f"{p50:.2f} {p99:.2f} {100 * share:.1f} % sum {100 * total:.1f} %",
            good,
            waits=waits,
            works=works,
            fair_us=fair,
            alone=alone,
        )


def crash(bench: Bench) -> None:
    """Tenants die in three ways beside five others, which step on."""
    bench.policy("preemptive")
    fault = str(bench.toolchain.driver_program("driver_fault"))
    hold = str(bench.toolchain.runtime_program("hold"))

    def illegal_address() -> None:
        subprocess.run(
            [fault], env=bench.environment(TENANTS[0]), capture_output=True, timeout=60, check=False
        )

    def die(how: signal.Signals) -> Callable[[], None]:
        def end() -> None:
            victim = bench.start(TENANTS[1], [hold, "2048"])
            assert victim.stdout is not None
            victim.stdout.readline()
            victim.send_signal(how)
            victim.communicate(timeout=60)

        return end

    ways: tuple[tuple[str, Callable[[], None]], ...] = (
        ("nobody dies", lambda: None),
        ("illegal address", illegal_address),
        ("abort", die(signal.SIGABRT)),
        ("kill -9", die(signal.SIGKILL)),
    )
    for name, end in ways:
        worst, native = (crash_pause(bench, tenants, end) for tenants in (TENANTS[3:8], ["native"]))
        bench.row(
            "crash",
            f"{name}: no pause over 50 ms",
            f"{worst:.1f} ms, native {native:.1f}",
            worst <= 50,
            native=native,
        )


def crash_pause(bench: Bench, tenants: Sequence[str], end: Callable[[], None]) -> float:
    """The longest step, in ms, of tenants with a little work every 5 ms."""
    program = str(bench.toolchain.runtime_program("work"))
    steps = [(name, ["250", "{start}", "{seconds}", "2", "5000"]) for name in tenants]

    def strike(start: float) -> None:
        time.sleep(max(0.0, start + 1 - clock()))
        end()

    reports = bench.together([program], steps, 4.0, 4.0, strike)
    return float(max(report["worst"] for report in reports)) / 1000


def hostile(bench: Bench) -> None:
    """What a worker that was taken over, or an arbiter that dies, costs the neighbour."""
    bench.policy("weighted")
    bench.weights(1, 1)
    a, b = TENANTS[:2]
    alone = rate(bench, 300 * US) * bench.seconds

    def stop(start: float) -> None:
        time.sleep(max(0.0, start + 1 - clock()))
        workers = [s["pid"] for s in bench.admin(do="status")["sessions"] if s["tenant"] == a]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in workers:
                os.kill(pid, number)
            time.sleep(bench.seconds / 2)

    _, neighbour = bench.work([(a, 300 * US), (b, 300 * US)], while_running=stop)
    part = neighbour / alone
    asked = "a worker is stopped in its turn"
    bench.row("hostile", asked, f"neighbour {100 * part:.1f} %", part >= 0.48, part=part)

    def kill(start: float) -> None:
        time.sleep(max(0.0, start + 1 - clock()))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as arbiter:
            arbiter.connect(str(bench.server.folder / "run" / "gpus" / "0.arbiter"))
            arbiter.send(b"hello 2")
            os.kill(int(arbiter.recv(100)[16:]), signal.SIGKILL)

    got = bench.work([(a, 300 * US), (b, 300 * US)], while_running=kill)
    check_ratio(bench, "hostile", "1 : 1, the arbiter is killed", got, (1, 1), 10.0)


def memory(bench: Bench) -> None:
    """Under 6 GiB, watched by NVML: ways and threads to allocate, and what the driver takes."""
    bench.policy("preemptive")
    pynvml.nvmlInit()
    memory_peak(bench, 6 * GIB, "driver_limits", "6144")
    # What a load or a graph takes is known when it has taken it, and is given back at once.
    memory_peak(bench, 6 * GIB + 256 * (1 << 20), "driver_growth")


def memory_peak(bench: Bench, most: int, name: str, *arguments: str) -> None:
    """A program under 6 GiB does what it should, and the process never holds more than most."""
    program = str(bench.toolchain.driver_program(name))
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    deadline = clock() + 30
    while pynvml.nvmlDeviceGetComputeRunningProcesses(card) and clock() < deadline:
        time.sleep(0.1)  # those before it are still leaving
    process = bench.start(TENANTS[0], [program, *arguments], GPUPOOL_MEMORY="6GiB")
    peak = 0
    while process.poll() is None:
        held = [p.usedGpuMemory or 0 for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)]
        peak = max(peak, sum(held))
        time.sleep(0.002)
    said, errors = process.communicate()
    good = process.returncode == 0 and peak <= most + (1 << 20)
    got = f"peak {peak / (1 << 20):.0f} MiB, exit {process.returncode}"
    bench.row(
        "memory",
        f"at most {most >> 20} MiB, {name}",
        got,
        good,
        said=said[-500:],
        errors=errors[-500:],
    )


def many(bench: Bench) -> None:
    """25 tenants at once, and how long each takes to start."""
    bench.policy("preemptive", max_inst=25)
    hold = str(bench.toolchain.runtime_program("hold"))
    took, held = [], []
    for name in TENANTS:
        began = clock()
        process = bench.start(name, [hold, "64"])
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        took.append(clock() - began)
        held.append(process)
        if ready != "ready":
            raise RuntimeError(f"{name}: {ready} {process.communicate()[1][-300:]}")
    for process in held:
        process.communicate("end\n", timeout=60)
    ratio = took[-1] / took[0]
    bench.row("many", "the 25th starts in 2 x the first", f"{ratio:.2f}", ratio <= 2, took=took)
    got = bench.work([(name, 300 * US) for name in TENANTS], 20.0, lead=60.0)
    check_ratio(bench, "many", "25 equal shares", got, (1,) * 25, percent=5.0)
    bench.weights(*[1] * len(TENANTS))
    bench.policy("weighted")


def alone(bench: Bench) -> None:
    """What the gate costs a tenant that has the GPU to itself."""
    a = TENANTS[0]
    bench.weights(1)
    done: dict[str, list[tuple[float, float]]] = {"native": [], "weighted": []}
    # By turns, so that what changes slowly (a warm card, the host's load) meets both.
    for policy in ("native", "weighted", "weighted", "native"):
        bench.policy(policy)
        images = bench.images([(a, "train", 64)], 14.0)[0]
        done[policy].append((images, bench.work([(a, 20 * US)])[0]))
    for place, what in enumerate(("train 64", "0.02 ms")):
        off, on = (sum(pair[place] for pair in done[policy]) for policy in ("native", "weighted"))
        bench.row("alone", f"slicing on / off, {what}", f"{on / off:.4f}", on / off >= 0.99)
    bench.policy("weighted")


def live(bench: Bench) -> None:
    """Weights are turned round one second before the count begins."""
    a, b = TENANTS[:2]
    bench.policy("weighted")
    bench.weights(1, 2)

    def turn(start: float) -> None:
        time.sleep(max(0.0, start - 1 - clock()))
        bench.weights(2, 1)

    got = bench.work([(a, 300 * US), (b, 300 * US)], 5.0, while_running=turn)
    check_ratio(bench, "live", "1 : 2 becomes 2 : 1 within 1 s", got, (2, 1))


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "ratios": ratios,
    "resnet": resnet,
    "copies": copies,
    "fixed": fixed,
    "priority": priority,
    "latency": latency,
    "crash": crash,
    "hostile": hostile,
    "memory": memory,
    "many": many,
    "alone": alone,
    "live": live,
}


def run(bench: Bench, names: Sequence[str]) -> None:
    for name in names:
        try:
            SECTIONS[name](bench)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            bench.row(name, "to run", f"failed: {error}"[:400], False)
            print(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", default="cuda", help="of the server (soft: to try this script)")
    parser.add_argument("--way", choices=("shm", "tcp", "zmq"), default="shm")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--list", action="store_true", help="name the sections and stop")
    given = parser.parse_args()
    if given.list:
        print("\n".join(SECTIONS))
        return 0
    out: Path = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    server = PoolServer(driver=given.driver, **{"max-sessions": "64"})
    server.settings["config"] = str(configuration(server.folder))
    toolchain = Toolchain(out / "programs")
    bench = Bench(out, given.python, server, toolchain, given.way, given.seconds)
    try:
        server.start()
        bench.weights(*[1] * len(TENANTS))
        run(bench, given.only)
    finally:
        log = server.log.read_text(errors="replace") if server.log.exists() else ""
        (out / "shares-server.log").write_text(log)
        server.close()
    failed = sum(not row["ok"] for row in bench.rows)
    print(f"{len(bench.rows) - failed} passed, {failed} failed")
    return 1 if failed or not bench.rows else 0


if __name__ == "__main__":
    sys.exit(main())
