"""The watchdog on a real GPU: what it sees, how soon it ends a liar, and whom it leaves alone.

    python tests/gpu/watchdog.py [--out DIR] [--only PART ...] [--seconds N] [--within N]

One server, and a program in a worker's place that uses NVIDIA's driver directly: it takes memory
beside the arbiter (`memory`; in a child of the worker's: `child`), or runs kernels outside of its
turns while a neighbour works (`time`; `turns`: and has many short turns of its own as well; `owes`:
and says that its work outlives its turns, where it may have a tenth of the GPU and owe 10 s more).
`shares` has two honest programs with work all the time, for `--seconds` each way to share; in
`long` one has kernels of a second. `sees`
asks NVML for everything that the watchdog goes by, and `honest` runs programs at their limits,
which make and end contexts all the time, for longer than the watchdog waits for anything
(`--seconds`, 45); `copies` copies to the GPU all the time, which needs no turn. All but `memory`
show what NVML said of red, what the arbiter granted, and by which rule the server held it back. A
row for each; the exit code is 1 if one failed.

What spins on the GPU comes last, and none of it stays: after `--within` seconds (400), killed, or
done, all that was started is ended (keeper.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from keeper import keep  # noqa: E402

from gpupool.admin import Admin  # noqa: E402
from gpupool_server.watch_samples import STRAY  # noqa: E402
from harness import PoolServer, Talk, alive, run_program  # noqa: E402
from liar_worker import Liar  # noqa: E402
from raw_client import ask_for_session  # noqa: E402
from toolchain import Toolchain  # noqa: E402

MIB = 1 << 20

#: Contexts of a large GPU take half a GiB, and up to 640 MiB are the driver's own for a second.
LIMIT_MIB, BEYOND_MIB = 2048, 1024

CONFIG = f"""
[watch]
owed_seconds = 10

[tenants.red]
token = "token-of-red"
memory = "{LIMIT_MIB}MiB"
share = "50%"

[tenants.blue]
token = "token-of-blue"
share = "50%"
"""

PATIENCE = 60.0
#: An eighth of the GPU's time is found to be no chance after 325 s of looks.
LIAR_PATIENCE = 340.0

Row = dict[str, Any]


class Bench:
    """A server whose worker program can be exchanged, and the programs on it."""

    def __init__(self, folder: Path, driver: str, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpw-", dir="/tmp"))
        self.liar = Liar(self.folder)
        self.toolchain = Toolchain(folder / "programs")
        config = self.folder / "server.toml"
        config.write_text(CONFIG)
        self.server = PoolServer(
            driver=driver,
            config=str(config),
            worker=str(self.liar.worker),
            **{"data-listen": "none", "soft-gpus": "1", "soft-memory": "8GiB", **settings},
        )
        self.server.start()

    def status(self) -> dict[str, Any]:
        return Admin(self.server.folder / "run").ask({"do": "status"})

    def liars(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["liars"]
        return found

    def start(self, name: str, tenant: str, **extra: str) -> Talk:
        program = str(self.toolchain.driver_program(name))
        environment = self.server.environment("shm", GPUPOOL_TOKEN=f"token-of-{tenant}", **extra)
        talk = Talk([program], environment)
        said = talk.line()
        if said != "ready":
            raise RuntimeError(f"{name}: {said}")
        return talk

    def policy(self, policy: str) -> None:
        answer = Admin(self.server.folder / "run").ask(
            {"do": "gpu-set", "gpu": 0, "policy": policy}
        )
        if not answer.get("ok"):
            raise RuntimeError(str(answer))

    def lie(
        self, look: Callable[[], object] = bool, patience: float = PATIENCE, **what: Any
    ) -> tuple[float, dict[str, Any]]:
        """Seconds from what the liar said it had done to its end, and how it was found."""
        self.liar.arm(**what)
        answer = ask_for_session(self.server, "token-of-red")
        self.liar.disarm()
        if answer["word"] != "ok":
            raise RuntimeError(f"no session: {answer}")
        wanted = "the liar works: 0" if what.get("works") else "the liar has taken it all: 0"
        self.wait(lambda: wanted in self.server.log.read_text(), wanted)
        began = time.monotonic()

        def is_found() -> bool:
            look()
            return bool(self.liars())

        self.wait(is_found, "the liar was found", patience)
        (found,) = self.liars()
        self.wait(lambda: not alive(int(found["worker_pid"])), "its worker was ended")
        return time.monotonic() - began, found

    def wait(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                log = self.server.log.read_text()[-1500:]
                raise RuntimeError(f"in {patience:g} s it never happened that {what}; log: {log}")
            time.sleep(0.01)

    def close(self) -> None:
        self.liar.end_all()
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def sees(bench: Bench, seconds: float) -> Row:
    """Whether NVML says what is needed here, with the pids of jailed workers."""
    import pynvml

    program = bench.start("driver_slices", "blue")
    program.say("hold")
    program.line()
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    worker = int(bench.status()["sessions"][0]["pid"])
    listed = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)}
    last, stamps, percent = 0, [], []
    for _ in range(40):
        time.sleep(0.25)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(card, last)
        except pynvml.NVMLError as error:
            if error.value not in (0, pynvml.NVML_ERROR_NOT_FOUND):
                raise
            continue
        for sample in samples:
            if sample.pid == worker:
                stamps.append(sample.timeStamp)
                percent.append(sample.smUtil)
            last = max(last, sample.timeStamp)
    looked = bench.status()["gpus"][0]["watch"]
    program.say("free")
    program.line()
    finish(program)
    gaps = sorted(b - a for a, b in zip(stamps, stamps[1:], strict=False))
    return {
        "good": bool(listed.get(worker)) and looked["memory"] == looked["time"] == "on" and gaps,
        "watch": looked,
        "memory_mib": (listed.get(worker) or 0) // MIB,
        "samples": len(stamps),
        "least_gap_ms": gaps[0] / 1000 if gaps else None,
        "median_gap_ms": gaps[len(gaps) // 2] / 1000 if gaps else None,
        "median_percent": sorted(percent)[len(percent) // 2] if percent else None,
    }


class Seen:
    """What NVML says of red's worker meanwhile, and what the server makes of it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._began = self._next = time.monotonic()
        self._last = 0
        #: Of each: the second in which it was read, how old it was then beside the newest of all
        #: processes, and the percentage.
        self.nvml: list[tuple[float, float, int]] = []
        self.others: list[int] = []
        self.tenants: list[tuple[float, dict[str, Any]]] = []
        self._card: Any = None
        with contextlib.suppress(Exception):  # a soft GPU
            import pynvml

            pynvml.nvmlInit()
            self._card = pynvml.nvmlDeviceGetHandleByIndex(0)

    def look(self) -> None:
        """Now and then."""
        if time.monotonic() < self._next:
            return
        self._next += 0.25
        status = self._bench.status()
        at = round(time.monotonic() - self._began, 2)
        (gpu,) = status["gpus"]
        of_red = {s["pid"] for s in status["sessions"] if s["tenant"] == "red"}
        for sample in self._samples():
            percent = int(sample.smUtil)
            if sample.pid in of_red:
                self.nvml.append((at, (self._last - sample.timeStamp) / 1e6, percent))
            else:
                self.others.append(percent)
        if gpu["watch"].get("tenants"):
            self.tenants.append((at, gpu["watch"]["tenants"]))

    def _samples(self) -> list[Any]:
        if self._card is None:
            return []
        import pynvml

        try:
            found = pynvml.nvmlDeviceGetProcessUtilization(self._card, self._last)
        except pynvml.NVMLError:
            return []  # none
        known = [each for each in found if each.timeStamp > self._last]
        self._last = max([self._last, *(each.timeStamp for each in known)])
        return known

    def outside(self) -> float:
        """The greatest part of 5 s in which a tenant was found at work outside its turns."""
        found = [found for _, said in self.tenants for found in said.values() if "span" in found]
        return max((each["outside"] / each["span"] for each in found), default=0.0)

    def row(self) -> Row:
        arbiter = self._bench.status()["gpus"][0]["tenants"]
        named = ("name", "held_ns", "busy_ns", "waited_ns", "turns", "entitled_permille", "workers")
        return {
            "nvml_of_red": self.nvml[-40:],
            "nvml_of_others": self.others[-40:],
            "outside": self.outside(),
            "server_found": self.tenants[-1:],
            "held_back": sorted(
                {said["red"]["held_back"] for _, said in self.tenants if "red" in said}
            ),
            "arbiter": [{key: each.get(key) for key in named} for each in arbiter],
        }


def memory(bench: Bench, seconds: float) -> Row:
    """Memory beside the arbiter, and a neighbour who notices nothing."""
    neighbour = bench.start("driver_tenant", "blue")
    took, found = bench.lie(mib=LIMIT_MIB + BEYOND_MIB)
    neighbour.say("work 5")
    good = neighbour.line() == "worked 5" and found["cause"] == "memory" and took <= 2.0
    finish(neighbour)
    return {"good": good, "seconds": took, "reason": found["reason"]}


def out_of_turn(bench: Bench, seconds: float) -> Row:
    """Kernels while the turn is a neighbour's, whose kernel runs until it is told to stop."""
    bench.policy("fixed")  # a slice of each tenant's is its own; the hardware gives it half
    neighbour = bench.start("driver_slices", "blue")
    neighbour.say("hold")
    neighbour.line()
    seen = Seen(bench)
    try:
        took, found = bench.lie(seen.look, patience=LIAR_PATIENCE, works=16)
    except RuntimeError as error:
        return {"good": False, "error": str(error)[:200], **seen.row()}
    row = seen.row()
    neighbour.say("free")
    good = neighbour.line() == "freed" and found["cause"] == "time"
    finish(neighbour)
    return {"good": good, "seconds": took, "reason": found["reason"], **row}


def short_turns(bench: Bench, seconds: float) -> Row:
    """Kernels in each turn of a neighbour's, and a turn of its own between any two of these."""
    neighbour = bench.start("driver_slices", "blue")
    neighbour.say(f"busy {int(LIAR_PATIENCE * 1000)}")
    seen = Seen(bench)
    try:
        took, found = bench.lie(seen.look, patience=LIAR_PATIENCE, works=16, asks=True)
    except RuntimeError as error:
        return {"good": False, "error": str(error)[:200], **seen.row()}
    row = seen.row()
    return {
        "good": found["cause"] == "time" and found["tenant"] == "red",
        "seconds": took,
        "reason": found["reason"],
        **row,
    }


def owes(bench: Bench, seconds: float) -> Row:
    """Kernels all the time, which may outlive turns as it says: it pays, and owes more and more."""
    share = {"do": "tenant-set", "tenant": "red", "share_permille": 100}
    answer = Admin(bench.server.folder / "run").ask(share)
    if not answer.get("ok"):
        raise RuntimeError(str(answer))
    neighbour = bench.start("driver_slices", "blue")
    neighbour.say(f"busy {int(min(seconds, 120.0) * 1000)}")
    seen = Seen(bench)
    try:
        took, found = bench.lie(seen.look, patience=100.0, works=16, says=True)
    except RuntimeError as error:
        return {"good": False, "error": str(error)[:200], **seen.row()}
    row = seen.row()
    return {"good": found["cause"] == "time", "seconds": took, "reason": found["reason"], **row}


def copies(bench: Bench, seconds: float) -> Row:
    """To the GPU all the time, with a kernel now and then, beside one with work all the time."""
    neighbour = bench.start("driver_slices", "blue")
    neighbour.say("hold")
    neighbour.line()
    copying = bench.start("driver_tenant", "red")
    seen, ends = Seen(bench), time.monotonic() + min(seconds, 20.0)
    good = True
    while good and time.monotonic() < ends:
        seen.look()
        good = take(copying, "flood 8 65536") == "sent"
    row = seen.row()
    neighbour.say("free")
    good = good and neighbour.line() == "freed" and bench.liars() == []
    finish(neighbour)
    finish(copying)
    return {"good": good, "liars": bench.liars(), **row}


def shares(bench: Bench, seconds: float) -> Row:
    """Nobody is ended: what samples find is in its turn."""
    row: Row = {}
    outside = 0.0
    for policy in ("share", "fixed"):
        bench.policy(policy)
        programs = [bench.start("driver_slices", who) for who in ("red", "blue")]
        seen, ends = Seen(bench), time.monotonic() + min(seconds, 60.0)
        for program in programs:
            program.say(f"busy {int(min(seconds, 60.0) * 1000)}")
        while time.monotonic() < ends:
            seen.look()
            time.sleep(0.01)
        kernels = [program.line() for program in programs]
        outside = max(outside, seen.outside())
        row[policy] = {"kernels": kernels, "found": seen.tenants[::4], **seen.row()}
        for program in programs:
            finish(program)
    row["good"] = bench.liars() == [] and outside <= STRAY
    return row


def long_kernels(bench: Bench, seconds: float) -> Row:
    """Kernels that no turn is long enough for, beside one with work all the time: they pay for
    what they have of its turns, and nobody is ended."""
    slow, busy = (bench.start("driver_slices", who) for who in ("red", "blue"))
    spent = min(seconds, 90.0)
    seen, ends = Seen(bench), time.monotonic() + spent
    slow.say(f"long {int(spent * 1000)}")
    busy.say(f"busy {int(spent * 1000)}")
    owed: list[float] = []
    while time.monotonic() < ends and not bench.liars():
        seen.look()
        owed += [seen.tenants[-1][1].get("red", {}).get("owed", 0) / 1e9] if seen.tenants else []
        time.sleep(0.1)
    row = {"owed_most": max(owed, default=0.0), "liars": bench.liars(), **seen.row()}
    if row["liars"]:
        return {"good": False, **row}
    row["kernels"] = [program.line() for program in (slow, busy)]
    for program in (slow, busy):
        finish(program)
    return {"good": True, **row}


def child(bench: Bench, seconds: float) -> Row:
    """Of a worker without a jail, which may start programs."""
    took, found = bench.lie(mib=LIMIT_MIB + BEYOND_MIB, forks=True)
    bench.wait(lambda: not bench.liar.running(), "its child was ended")
    left = bench.liar.running()
    return {"good": not left, "seconds": took, "reason": found["reason"], "left": left}


def honest(bench: Bench, seconds: float) -> Row:
    """A full program, and beside it ones that make contexts and end them, at their limits, while
    another tenant has work all the time."""
    runs = 0
    seen = Seen(bench)
    for policy in ("share", "native"):
        bench.policy(policy)
        full = bench.start("driver_tenant", "red", GPUPOOL_GROUP="full", GPUPOOL_MEMORY="1024MiB")
        while take(full, "take 16").startswith("took"):
            pass
        ends = time.monotonic() + seconds
        reset = str(bench.toolchain.driver_program("driver_reset"))
        environment = bench.server.environment(
            "shm", GPUPOOL_TOKEN="token-of-red", GPUPOOL_MEMORY="1000MiB"
        )
        other = bench.start("driver_slices", "blue")
        other.say(f"busy {int(seconds * 1000)}")
        while time.monotonic() < ends:
            seen.look()
            done = run_program([reset], environment)
            if done.returncode != 0:
                raise RuntimeError(done.explain()[-1500:])
            if not take(full, "work 5").startswith("worked"):
                raise RuntimeError("the full program was ended")
            runs += 1
        other.line()
        finish(other)
        finish(full)
    return {"good": bench.liars() == [], "runs": runs, "liars": bench.liars(), **seen.row()}


def take(program: Talk, what: str) -> str:
    program.say(what)
    return program.line()


def finish(program: Talk) -> None:
    program.say("end")
    done = program.finish()
    if done.returncode != 0:
        raise RuntimeError(done.explain()[-1500:])


PARTS: dict[str, tuple[Callable[[Bench, float], Row], dict[str, str]]] = {
    "sees": (sees, {}),
    "memory": (memory, {}),
    "child": (child, {"confinement": "off"}),
    "honest": (honest, {}),
    "copies": (copies, {}),
    "shares": (shares, {}),
    "long": (long_kernels, {}),
    "time": (out_of_turn, {}),
    "turns": (short_turns, {}),
    "owes": (owes, {}),
}


def perform(name: str, given: argparse.Namespace, folder: Path) -> Row:
    """One part on a server of its own; whatever goes wrong is its row."""
    part, settings = PARTS[name]
    try:
        bench = Bench(folder, given.driver, **settings)
    except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return {"part": name, "good": False, "error": str(error)[-2000:]}
    try:
        row = {"part": name, **part(bench, given.seconds)}
    except Exception as error:  # a part that fails leaves the others to be seen
        log = bench.server.log.read_text()
        kept = "\n".join(
            line for line in log.splitlines() if re.search("watch|liar|warn|err", line)
        )
        row = {"part": name, "good": False, "error": repr(error)[-2000:], "log": kept[-3000:]}
    finally:
        bench.close()
    return {**row, "good": bool(row["good"])}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder for watchdog.json")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--within", type=float, default=400.0, help="seconds, then all is ended")
    parser.add_argument("--driver", default="cuda", help="soft: to try this program itself")
    given = parser.parse_args()
    keep(given.within)
    folder = given.out or Path(tempfile.mkdtemp(prefix="gpw-", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in sorted(given.only, key=list(PARTS).index):
        rows.append(perform(name, given, folder))
        print(json.dumps(rows[-1]), flush=True)
        (folder / "watchdog.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(not all(row["good"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
