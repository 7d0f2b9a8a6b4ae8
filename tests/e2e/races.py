"""Client and worker under ThreadSanitizer: programs of many threads, and no report.

`.ci/test.py --only threads` builds what it needs and calls it. The server itself and the
soft GPU are the ordinary ones: Python, which opens them, is no sanitized program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import PoolServer
from toolchain import Toolchain

HERE = Path(__file__).resolve().parent
#: What is the sanitizer's in a build folder, and where it lies in an installation.
PARTS = {
    "lib/libcuda.so.1": "lib/libcuda.so.1",
    "proto/libgpupool_zmq.so": "lib/plugins/libgpupool_zmq.so",
    "proto/libgpupool_tcp.so": "lib/plugins/libgpupool_tcp.so",
    "libexec/gpupool-worker": "libexec/gpupool-worker",
}
COMPILER = ("clang", "-fsanitize=thread", "-g")
#: Each is run over each transport; few operations, because all are ten times as slow.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "driver_random": ("11", "8", "6000", "0"),
    "driver_captures": (),
    "driver_streams": (),
    "driver_events": (),
    "driver_polled": (),
    "driver_waits": (),
    "driver_managed_random": ("100", "9"),
}
ASK_EVERY = 0.1


def install(home: Path, ordinary: Path, sanitized: Path) -> None:
    shutil.copytree(ordinary, home, symlinks=True)
    for source, target in PARTS.items():
        shutil.copy2(sanitized / source, home / target)


#: What a process that had reports ends with.
_COUNT = re.compile(r"^ThreadSanitizer: reported \d+ warnings\n", re.MULTILINE)


class Reports:
    """What the sanitizer writes, a file for each process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[Path, int] = {}

    def new(self) -> str:
        """What came since it was asked last: a report is told with the program that ran."""
        found = []
        for path in sorted(self.folder.iterdir()):
            text = path.read_text(errors="replace")
            found.append(_COUNT.sub("", text[self.told.get(path, 0) :]))
            self.told[path] = len(text)
        return "\n".join(filter(None, found))


@contextlib.contextmanager
def asked(server: PoolServer) -> Iterator[None]:
    """Meanwhile somebody lists the sessions, which workers answer on a thread beside their own."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(ASK_EVERY):
            server.sessions()

    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(ask)
        try:
            yield
        finally:
            over.set()
        asking.result()


def check(server: PoolServer, name: str, binary: Path, transport: str, reports: Reports) -> bool:
    command = [str(binary), *PROGRAMS[name]]
    began = time.monotonic()
    with asked(server):
        result = server.run(command, transport)
    report = reports.new()
    good = result.returncode == 0 and not report
    said = (report.strip() or result.stderr.strip() or result.stdout.strip()).splitlines()
    why = next((line for line in said if line.startswith("SUMMARY: ")), said[-1] if said else "")
    outcome = "no report" if good else f"FAILED with exit code {result.returncode}: {why}"
    print(f"{name} over {transport}, {time.monotonic() - began:.1f} s: {outcome}", flush=True)
    if not good:
        print(f"{result.explain()}\n{report}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="the ordinary installation")
    parser.add_argument("--build", type=Path, required=True, help="with the sanitizer's")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, log = Path(folder) / "home", Path(folder) / "log"
        log.mkdir()
        install(home, wanted.home, wanted.build)
        os.environ["GPUPOOL_HOME"] = str(home)
        os.environ["TSAN_OPTIONS"] = f"log_path={log}/report suppressions={HERE / 'races.supp'}"
        reports = Reports(log)
        toolchain = Toolchain(Path(folder) / "programs")
        binaries = {name: toolchain.driver_program(name, COMPILER) for name in PROGRAMS}
        # in a jail a worker would find neither the suppressions nor the folder of the reports
        server = PoolServer(confinement="off")
        try:
            server.start()
            runs = [(name, t) for name in PROGRAMS for t in ("shm", "tcp", "zmq")]
            good = [check(server, name, binaries[name], t, reports) for name, t in runs]
        finally:
            server.close()
        late = reports.new()  # of workers that ended after their program
        if late:
            print(f"FAILED as the server ended\n{late}")
        return 0 if all(good) and not late else 1


if __name__ == "__main__":
    sys.exit(main())
