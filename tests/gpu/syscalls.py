"""Which system calls the driver makes, and which of them a worker's list lacks.

    python tests/gpu/syscalls.py --out FILE [--driver cuda|soft] [--home STAGE] [--only PART ...]

Parts: `native` runs the programs of syscall_programs.py on the driver itself, under
libexec/gpupool-learn, less what Python calls without a driver; `pool` runs them, PyTorch programs
and, on two GPUs, copies between two workers through a server whose workers are watched: this is
what a list of workers must have. FILE gets lines `CALL KEY COUNT`, by part. A program that fails
is named on stderr, and what it called is counted all the same; the exit code is then 1. Works
without a real GPU (--driver soft), where PyTorch is left out.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e", HERE):
    sys.path.insert(0, str(folder))

from syscall_programs import PROGRAMS  # noqa: E402

LIST = ROOT / "server" / "syscalls" / "workers.list"
TORCH = ("tensors", "autograd", "pinned", "streams", "graph", "memory_info", "compiled", "fft")
TWO_GPUS = ("copies", "ordering", "training")
LIMIT = 150.0

Calls = Counter[tuple[str, str]]


def read_counts(path: Path) -> Calls:
    """What was learned, once the last that is watched has ended."""
    found: Calls = Counter()
    with path.open("a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        for line in file:
            call, key, count = line.split()
            found[call, key] += int(count)
    return found


def listed() -> set[str]:
    if not LIST.is_file():
        return set()
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


class Learner:
    def __init__(self, home: Path, driver: str, python: str, folder: Path) -> None:
        self.home = home
        self.driver = driver
        self.python = python
        self.folder = folder
        self.learn = home / "libexec" / "gpupool-learn"
        self.failed: list[str] = []

    def program(self, name: str) -> list[str]:
        return [self.python, str(HERE / "syscall_programs.py"), name]

    def say(self, what: str, code: int, text: str) -> None:
        words = " ".join(text.split())
        print(f"{what}: {'ok' if code == 0 else f'exit code {code}'} {words[-300:]}", flush=True)
        if code != 0:
            self.failed.append(f"{what}: {words[-300:]}".encode("ascii", "replace").decode())

    def native(self) -> Calls:
        found: Calls = Counter()
        library = "libcuda.so.1"
        if self.driver == "soft":
            library = str(self.home / "lib" / "driver" / "libgpupool_softgpu.so")
        for name in PROGRAMS:
            found += self.watched(f"native {name}", [*self.program(name), "--library", library])
        without = self.watched("native nothing", self.program("nothing"))
        return Counter({call: count for call, count in found.items() if call not in without})

    def watched(self, what: str, command: list[str]) -> Calls:
        counts = self.folder / f"{what.replace(' ', '-')}.counts"
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        try:
            done = subprocess.run(
                [str(self.learn), str(counts), "--", *command],
                env=env,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            self.say(what, done.returncode, done.stderr)
        except subprocess.TimeoutExpired:
            self.say(what, 124, f"it ran longer than {LIMIT:g} s")
            return Counter()
        return read_counts(counts)

    def watched_worker(self, counts: Path) -> Path:
        """A program that becomes the worker, watched."""
        real = self.home / "libexec" / "gpupool-worker"
        program = self.folder / "watched-worker"
        program.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && exec {real} --version\n'
            f'exec {self.learn} {counts} -- {real} "$@"\n',
            encoding="utf-8",
        )
        program.chmod(0o755)
        return program

    def pool(self) -> Calls:
        counts = self.folder / "workers.counts"
        os.environ["GPUPOOL_HOME"] = str(self.home)
        from harness import PoolServer

        settings = {"soft-gpus": "2", "max-sessions": "16"}
        settings |= {"worker": str(self.watched_worker(counts)), "confinement": "off"}
        if self.driver == "cuda" and visible_gpus() > 1:
            settings["devices"] = "0,1"
        server = PoolServer(driver=self.driver, **settings)
        try:
            server.start()
            self.run_clients(server)
        finally:
            server.close()
        time.sleep(0.2)  # who was started last may not hold the lock yet
        return read_counts(counts)

    def run_clients(self, server: object) -> None:
        from harness import PoolServer

        assert isinstance(server, PoolServer)
        commands = {name: self.program(name) for name in PROGRAMS}
        if self.driver == "cuda":
            script = str(HERE / "torch_programs.py")
            commands |= {name: [self.python, script, name, "--steps", "3"] for name in TORCH}
            script = str(HERE / "two_cards_programs.py")
            if visible_gpus() > 1:
                commands |= {name: [self.python, script, name] for name in TWO_GPUS}
        for name, command in commands.items():
            for way in ("shm", "tcp", "zmq"):
                result = server.run(command, way, LIMIT)
                self.say(f"{way} {name}", result.returncode, result.stderr)


def visible_gpus() -> int:
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


def report(parts: dict[str, Calls], failed: list[str]) -> str:
    """Every part's counts; a line that begins with `lacks` is not in the list."""
    known = listed()
    lines = [f"# {os.uname().release} {os.uname().machine}"]
    lines += [f"# failed: {what}" for what in failed]
    for part, calls in parts.items():
        lines.append(f"# part {part}")
        lines += [f"{call} {key} {count}" for (call, key), count in sorted(calls.items())]
    lacking = {call for calls in parts.values() for call, _ in calls} - known
    lines += [f"# lacks {call}" for call in sorted(lacking)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", choices=("cuda", "soft"), default="cuda")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "stage")
    parser.add_argument("--only", nargs="+", choices=("native", "pool"), default=["native", "pool"])
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gp-learn-"))
    learner = Learner(given.home.absolute(), given.driver, given.python, folder)
    parts: dict[str, Calls] = {}
    for part in given.only:
        parts[part] = learner.native() if part == "native" else learner.pool()
        text = report(parts, learner.failed)
        given.out.write_text(text, encoding="ascii")
    print(text)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if learner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
