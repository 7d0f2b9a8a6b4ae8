"""Run every program natively and through gpupool on a machine with a real GPU, and compare.

    python tests/gpu/run.py --out DIR [--only SECTION ...] [--list]

Sections: runtime, driver, round-trips, kill, footprint, e2e, cupy, torch. Each writes
DIR/SECTION.json as it goes, and a later run with the same DIR keeps what another section wrote,
so they can be run one by one. `--shard 1/3` runs a third of the programs, and `--device` chooses
the GPU, so that several of these can run side by side, each with a DIR of its own.
Every program is bounded in time; the whole stops starting new ones after --minutes. The last
line says how many passed and failed; the exit code is 1 if any failed.

Frameworks may live in another Python than gpupool: --python names it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import xml.etree.ElementTree as ElementTree
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
E2E = ROOT / "tests" / "e2e"
for folder in (ROOT / "pool", ROOT / "server", E2E):
    sys.path.insert(0, str(folder))

from catalog import (  # noqa: E402
    CARD_PROGRAMS,
    DRIVER_PROGRAMS,
    ONCE_PROGRAMS,
    RUNTIME_PROGRAMS,
)
from harness import (  # noqa: E402
    PoolServer,
    Result,
    Talk,
    device_name,
    native_environment,
    run_program,
)
from toolchain import Toolchain, ToolchainError  # noqa: E402

WAYS = ("native", "shm", "tcp", "zmq")
TORCH_PROGRAMS = (
    ("tensors", "autograd", "properties", "memory_info", "pinned", "streams", "graph", "matmul")
    + ("resnet_train", "resnet_infer", "small_calls", "compiled", "fft", "solver")
    + ("jax_smoke", "numba_smoke")
)
TORCH_JOBS = ("loaders_fork", "loaders_spawn", "out_of_memory", "compile_modes", "checkpoint") + (
    "generate",
)


@dataclass
class Options:
    out: Path
    python: str
    ways: tuple[str, ...]
    deadline: float
    limit: float
    steps: int
    names: list[str]
    shard: tuple[int, int]  # which of how many
    device: int


Row = dict[str, Any]


class Runner:
    """Runs one command each way and keeps what came out."""

    def __init__(self, options: Options, server: PoolServer) -> None:
        self.options = options
        self.server = server
        self.toolchain = Toolchain(options.out / "programs")

    def wanted(self, name: str) -> bool:
        which, shards = self.options.shard
        named = not self.options.names or any(part in name for part in self.options.names)
        return named and zlib.crc32(name.encode()) % shards == which - 1

    def native(self) -> dict[str, str]:
        return native_environment({"CUDA_VISIBLE_DEVICES": str(self.options.device)})

    def once(self, command: list[str], way: str, **extra: str) -> Result:
        left = self.options.deadline - time.monotonic()
        if left < 1:
            return Result(124, "", "not started: the time for all programs is over")
        limit = min(self.options.limit, left)
        if way == "native":
            return run_program(command, {**self.native(), **extra}, limit)
        return self.server.run(command, way, limit, **extra)

    def every_way(self, name: str, command: list[str], **extra: str) -> Row:
        """One row of results: for each way how it ended, its output and its counts."""
        row: Row = {"name": name, "ways": {}}
        for way in self.options.ways:
            begin = time.monotonic()
            result = self.once(command, way, **extra)
            row["ways"][way] = {
                "returncode": result.returncode,
                "seconds": round(time.monotonic() - begin, 3),
                "stdout": result.stdout[-20_000:],
                "stderr": result.stderr[-4_000:],
                "round_trips": result.stats.get("round_trips"),
                "stats": result.stats,
            }
        return row


def payload(way: Row) -> Any:
    """What must agree: the `results` of a JSON line, else the whole output."""
    lines = str(way["stdout"]).strip().splitlines()
    if lines and lines[-1].startswith("{"):
        return json.loads(lines[-1]).get("results")
    return way["stdout"]


def judge(row: Row) -> None:
    """Set `verdict`: ok, or what is wrong. What fails natively too is not ours."""
    ways: dict[str, Row] = row["ways"]
    native = ways.get("native")
    if native is not None and native["returncode"] != 0:
        row["verdict"] = "fails natively"
        return
    for name, way in ways.items():
        if way["returncode"] != 0:
            row["verdict"] = f"{name}: exit code {way['returncode']}"
            return
        if native is not None and payload(way) != payload(native):
            row["verdict"] = f"{name}: another result than native"
            return
    row["verdict"] = "ok"


def runtime_section(runner: Runner) -> Iterator[Row]:
    for variant in runner.toolchain.variants():
        once = (*ONCE_PROGRAMS, *CARD_PROGRAMS) if variant == "static13" else ()
        programs = [*RUNTIME_PROGRAMS, *once]
        for program in programs:
            if runner.wanted(program.name):
                binary = program.build(runner.toolchain, variant)
                yield runner.every_way(f"{program.name}-{variant}", program.command(binary, True))
        for name in ("hello", "first_runtime_calls"):  # what a process does first
            if runner.wanted(name):
                binary = runner.toolchain.runtime_program(name, variant)
                yield runner.every_way(f"{name}-{variant}", [str(binary)])


def driver_section(runner: Runner) -> Iterator[Row]:
    for program in DRIVER_PROGRAMS:
        if runner.wanted(program.name):
            yield runner.every_way(
                program.name, program.command(program.build(runner.toolchain, "driver"), True)
            )
    if runner.wanted("first_calls"):
        binary = runner.toolchain.driver_program("first_calls")
        yield runner.every_way("first_calls", [str(binary)])


def cupy_section(runner: Runner) -> Iterator[Row]:
    script = str(E2E / "cupy_programs.py")
    listing = runner.once([runner.options.python, script, "?"], "native")
    if "there are: " not in listing.stderr:
        yield {"name": "cupy", "ways": {}, "verdict": "skipped: this Python has no CuPy"}
        return
    for name in listing.stderr.strip().rpartition("there are: ")[2].split(", "):
        if runner.wanted(name):
            yield runner.every_way(name, [runner.options.python, script, name])


def torch_section(runner: Runner) -> Iterator[Row]:
    for script, names in (("torch_programs.py", TORCH_PROGRAMS), ("torch_jobs.py", TORCH_JOBS)):
        for name in names:
            if runner.wanted(name):
                command = [runner.options.python, str(HERE / script), name]
                command += ["--steps", str(runner.options.steps)]
                yield runner.every_way(name, command)


def round_trips_section(runner: Runner) -> Iterator[Row]:
    """Waits counted, and held against what is promised."""
    binary = str(runner.toolchain.runtime_program("round_trips"))
    vector_add = str(runner.toolchain.runtime_program("vector_add"))
    script = str(HERE / "torch_programs.py")
    torch = [runner.options.python, script]
    # name, the promise, command for few and for many, how many more
    table: list[tuple[str, float, list[str], list[str], int]] = [
        ("vector_add", 10, [], [vector_add], 1),
        ("iteration", 1, [binary, "iterations", "5"], [binary, "iterations", "25"], 20),
        ("1000 launches", 1, [binary, "launches", "1"], [binary, "launches", "1000"], 1),
    ]
    for name, promise in (("resnet_train", 2.0), ("resnet_infer_1", 4.0)):
        few, many = [*torch, name, "--steps", "5"], [*torch, name, "--steps", "25"]
        table.append((name, promise, few, many, 20))
    # As users have it: default settings, a batch from the host, the loss read each step.
    steps = [runner.options.python, str(HERE / "step_programs.py")]
    for name in ("pageable", "pinned"):
        few, many = [*steps, name, "--steps", "10"], [*steps, name, "--steps", "30"]
        table.append((f"resnet_{name}", 2.0, few, many, 20))
    for name, promise, few, many, more in table:
        if not runner.wanted(name):
            continue
        for way in (way for way in runner.options.ways if way != "native"):
            yield count_row(runner, f"{name}-{way}", way, promise, few, many, more)


def count_row(
    runner: Runner, name: str, way: str, promise: float, few: list[str], many: list[str], more: int
) -> Row:
    counts = []
    for command in (few, many):
        if not command:
            counts.append(0)
            continue
        result = runner.once(command, way)
        if result.returncode != 0 or "round_trips" not in result.stats:
            row: Row = {"name": name, "ways": {}, "verdict": f"failed: {result.returncode}"}
            return {**row, "said": result.explain()[-4000:]}
        counts.append(int(result.stats["round_trips"] + result.stats["gpu_waits"]))
    each = (counts[1] - counts[0]) / more
    verdict = "ok" if each <= promise else f"{each:g} waits, promised {promise:g}"
    return {"name": name, "ways": {}, "waits": each, "promise": promise, "verdict": verdict}


#: How soon the memory of a client that was killed must be free again, in seconds.
FREE_AFTER_KILL = 2.0
HELD_MIB = 32_768


def kill_section(runner: Runner) -> Iterator[Row]:
    """kill -9 of a client that holds much memory, until the GPU has it again."""
    hold = str(runner.toolchain.runtime_program("hold"))
    for way in (way for way in runner.options.ways if way != "native"):
        yield kill_row(runner, f"kill-{way}", hold, way)


def kill_row(runner: Runner, name: str, hold: str, way: str) -> Row:
    row: Row = {"name": name, "ways": {}}
    device = runner.options.device
    before = memory_settled(device)
    program = Talk([hold, str(HELD_MIB)], runner.server.environment(way))
    try:
        if program.line() != "ready":
            return {**row, "verdict": f"failed: {program.finish().explain()[-2000:]}"}
        held = memory_used(device) - before
        program.process.kill()
        begin = time.monotonic()
        while memory_used(device) - before > 64 and time.monotonic() - begin < 30:
            time.sleep(0.02)
        row["seconds"] = round(time.monotonic() - begin, 3)
        row["held_mib"], row["left_mib"] = held, memory_used(device) - before
    finally:
        program.close()
    if held < HELD_MIB:
        return {**row, "verdict": f"only {held} MiB were held"}
    good = row["seconds"] <= FREE_AFTER_KILL
    return {**row, "verdict": "ok" if good else f"free after {row['seconds']} s"}


#: How much more of the GPU PyTorch may hold through the pool than natively.
MORE_MIB = 16

#: Seconds in which the memory in use stays the same once all is given back, and the most
#: to wait for that; a measurement that others disturb is made again.
SETTLED, SETTLES_WITHIN, TRIES = 3.0, 30.0, 4


def footprint_section(runner: Runner) -> Iterator[Row]:
    """GPU memory after PyTorch's import and one product: kernels are loaded lazily."""
    if not runner.wanted("footprint"):
        return
    row: Row = {"name": "footprint", "ways": {}}
    command = [runner.options.python, str(HERE / "torch_programs.py"), "footprint"]
    for way in WAYS:
        env = runner.native() if way == "native" else runner.server.environment(way)
        row[f"{way}_mib"] = footprint(command, env, runner.options.device)
    worst = max(row["shm_mib"], row["zmq_mib"]) - row["native_mib"]
    row["verdict"] = "ok" if worst <= MORE_MIB else f"{worst} MiB more than natively"
    yield row


def footprint(command: list[str], env: dict[str, str], device: int) -> int:
    """MiB that the program, or its worker, holds: what comes with it must go with it.

    An earlier section's context that goes meanwhile makes the memory in use before the
    program and behind it differ, so it is measured again.
    """
    for _ in range(TRIES):
        before = memory_settled(device)
        held = memory_when_ready(command, env, device) - before
        if abs(memory_settled(device, before) - before) <= 1:
            return held
    raise RuntimeError("others take and give back memory of the GPU all the time")


def memory_when_ready(command: list[str], env: dict[str, str], device: int) -> int:
    """MiB in use on the GPU when the program says that it is ready."""
    program = Talk(command, env)
    try:
        said = program.line()
        if said != "ready":
            raise RuntimeError(f"it said {said!r}: {program.finish().explain()[-1000:]}")
        return memory_used(device)
    finally:
        program.close()


def memory_settled(device: int, awaited: int | None = None) -> int:
    """MiB in use once they stay the same for a while, or are what is awaited."""
    begin = since = time.monotonic()
    used = memory_used(device)
    while time.monotonic() - since < SETTLED and time.monotonic() - begin < SETTLES_WITHIN:
        if used == awaited:
            break
        time.sleep(0.1)
        if (now := memory_used(device)) != used:
            used, since = now, time.monotonic()
    return used


def memory_used(device: int) -> int:
    """MiB in use on that GPU."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(device)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20


def e2e_section(runner: Runner) -> Iterator[Row]:
    """The end-to-end tests that are marked real_gpu, each a row, on this machine's GPU."""
    report = runner.options.out / "e2e.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", str(E2E), "-q", f"--junitxml={report}"]
    if runner.options.names:
        command += ["-k", " or ".join(runner.options.names)]
    env = {**os.environ, "GPUPOOL_TEST_DRIVER": "cuda"}
    left = max(runner.options.deadline - time.monotonic(), 1)
    said = run_program(command, env, left)
    (runner.options.out / "e2e.log").write_text(said.stdout + said.stderr)
    if not report.is_file():
        yield {"name": "e2e", "ways": {}, "verdict": f"pytest failed: {said.stdout[-500:]}"}
        return
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = any(child.tag == "skipped" for child in case)
        verdict = "skipped" if skipped else "ok"
        if bad:
            verdict = f"failed: {str(bad[0].get('message'))[:300]}"
        name = f"{case.get('classname')}.{case.get('name')}".removeprefix("tests.e2e.test_")
        yield {"name": name, "ways": {}, "verdict": verdict}


SECTIONS = {
    "runtime": runtime_section,
    "driver": driver_section,
    "round-trips": round_trips_section,
    "kill": kill_section,
    "footprint": footprint_section,
    "e2e": e2e_section,
    "cupy": cupy_section,
    "torch": torch_section,
}


def describe(row: Row) -> str:
    """One line of at most 80 columns."""
    cells = []
    for name, way in row["ways"].items():
        trips = f"/{way['round_trips']}" if way["round_trips"] is not None else ""
        cells.append(f"{name} {way['seconds']:.1f}s{trips}")
    if "native_mib" in row:
        cells.append("/".join(str(row[f"{way}_mib"]) for way in WAYS) + " MiB")
    if "seconds" in row:
        cells.append(f"{row['held_mib']} MiB free in {row['seconds']:.2f} s")
    if "waits" in row:
        cells.append(f"{row['waits']:g} waits (at most {row['promise']:g})")
    return f"{row['name'][:30]:30} {' '.join(cells)[:32]:32} {row['verdict']}"


def run_section(name: str, runner: Runner) -> Counter[str]:
    rows: list[Row] = []
    print(f"--- {name}: seconds/round trips each way")
    try:
        for row in SECTIONS[name](runner):
            if "verdict" not in row:
                judge(row)
            rows.append(row)
            print(describe(row), flush=True)
            # Written after each row: a run that is cut off leaves what it had.
            (runner.options.out / f"{name}.json").write_text(json.dumps(rows, indent=1))
    except ToolchainError as error:
        print(f"{name}: {error}")
        return Counter(failed=1)
    return Counter(outcome(row) for row in rows)


def outcome(row: Row) -> str:
    """A program that fails natively as well says nothing about gpupool: it counts as skipped."""
    verdict = str(row["verdict"])
    if verdict == "ok":
        return "passed"
    return "skipped" if verdict.startswith(("skipped", "fails natively")) else "failed"


def shard(text: str) -> tuple[int, int]:
    which, _, shards = text.partition("/")
    if not 1 <= int(which) <= int(shards):
        raise ValueError(text)
    return int(which), int(shards)


def read_options() -> tuple[argparse.Namespace, Options]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--programs", nargs="+", default=[], help="only those with this in a name")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    parser.add_argument("--driver", default="cuda", help="of the server (soft: to try this script)")
    parser.add_argument("--minutes", type=float, default=25.0, help="start no program after these")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one program")
    parser.add_argument("--steps", type=int, default=5, help="of each PyTorch program")
    parser.add_argument("--shard", type=shard, default=(1, 1), help="K/N: a part of the programs")
    parser.add_argument("--device", type=int, default=0, help="the GPU, by its number")
    parser.add_argument("--list", action="store_true", help="name the sections and stop")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * given.minutes
    options = Options(
        out=given.out.absolute(),
        python=given.python,
        ways=tuple(given.ways),
        deadline=deadline,
        limit=given.limit,
        steps=given.steps,
        names=given.programs,
        shard=given.shard,
        device=given.device,
    )
    return given, options


def main() -> int:
    given, options = read_options()
    if given.list:
        print("\n".join(SECTIONS))
        return 0
    device = device_name()
    if not device and given.driver == "cuda":
        print("tests/gpu/run.py: nvidia-smi finds no GPU here; run it on a machine with one")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"GPU: {device or 'soft'}; results in {options.out}")
    server = PoolServer(driver=given.driver, **{"max-sessions": "16", "devices": str(given.device)})
    counts: Counter[str] = Counter()
    try:
        server.start()
        runner = Runner(options, server)
        for name in given.only:
            counts += run_section(name, runner)
    finally:
        log = server.log.read_text(errors="replace") if server.log.exists() else ""
        (options.out / "server.log").write_text(log)
        server.close()
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
