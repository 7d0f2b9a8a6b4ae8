"""What sessions cost that do nothing: memory of each, and processors' time of all, by /proc."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpupool_server.process_tree import owner_of
from harness import PoolServer, Talk, wait_until

#: Programs with a context each, which have done a little, once.
PROGRAMS = 16
SILENCE_S = 0.1
#: How often, and after how long, the GPU's memory is read until it stands still.
SETTLES = 15
SETTLE_S = 1.0


def mib(pids: Iterable[int], kind: str = "Pss") -> float:
    """Of processes together; one that has ended has none."""
    return sum(memory_kib(pid, kind) for pid in pids) / 1024


def memory_kib(pid: int, kind: str) -> int:
    """Pss: its own pages, and its part of those that it shares."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1])
    return 0


def processor_ns(pids: Iterable[int]) -> dict[Path, int]:
    """What each thread has run, to the nanosecond: ticks of 10 ms are too coarse for this."""
    found = {}
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[task] = int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return found


def gpu_mib() -> float:
    """Used of the first GPU, by NVML: of all processes, whose pids another namespace may have."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return float(done.stdout.split()[0])


def settled_gpu_mib() -> float:
    """Once it stands still: a driver frees what processes had that have ended a moment ago."""
    last = gpu_mib()
    for _ in range(SETTLES):
        time.sleep(SETTLE_S)
        before, last = last, gpu_mib()
        if last == before:
            break
    return last


def staying(server: PoolServer | None) -> list[int]:
    """The server, its arbiters and its relays: what is not of one session."""
    if server is None or server.pid is None:
        return []
    known = [server.pid, *server.worker_pids()]
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if owner_of(pid, known) == server.pid]


def grown(server: PoolServer | None) -> float:
    """Without pages of files, of which a server has less once its workers share them."""
    return mib(staying(server), "Private_Dirty")


def core_percent(groups: dict[str, list[int]], seconds: float) -> dict[str, float]:
    """The share of one core that each group of processes takes from now on."""
    before = {name: processor_ns(pids) for name, pids in groups.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    percent = {}
    for name, pids in groups.items():
        ran = (ns - before[name].get(task, 0) for task, ns in processor_ns(pids).items())
        percent[name] = 100e-9 * sum(ran) / took
    return percent


def measure(
    start: Callable[[], Talk], server: PoolServer | None, seconds: float, gpu: bool
) -> dict[str, float]:
    """Figures of PROGRAMS idle ones, memory for each; without a server there are no workers."""
    held, used = grown(server), settled_gpu_mib() if gpu else 0.0
    programs: list[Talk] = []
    try:
        for _ in range(PROGRAMS):
            programs.append(start())
        for program in programs:
            if (said := program.line()) != "ready":
                raise RuntimeError(said)
            program.say("work 1")
        for program in programs:
            program.line()
        time.sleep(SILENCE_S)
        groups = {"program": [program.process.pid for program in programs]}
        if server is not None:
            groups |= {"worker": server.worker_pids(), "server": staying(server)}
            if len(groups["worker"]) != PROGRAMS:
                raise RuntimeError(f"{len(groups['worker'])} workers of {PROGRAMS} programs")
        taken = core_percent(groups, seconds)
        memory = {name: mib(pids) for name, pids in groups.items()}
        memory["server"] = grown(server) - held
        used = gpu_mib() - used if gpu else 0.0
    finally:
        for program in programs:
            program.close()
        if server is not None:
            wait_until(lambda: not server.worker_pids(), "the idle sessions ended")
    figures = {f"idle_{name}_mib": memory[name] / PROGRAMS for name in groups}
    figures |= {"idle_gpu_mib": used / PROGRAMS} if gpu else {}
    figures[f"idle_{PROGRAMS}_core_percent"] = taken["program"] + taken.get("worker", 0.0)
    figures |= {"server_core_percent": taken["server"]} if server is not None else {}
    return figures
