"""``make demo``: a real CUDA program, first as this machine runs it, then through gpupool;
then a pool of three hosts with two tenants, a program over GPUs of two hosts, and the console.

Ends with the line ``demo: OK``, or says what went wrong and exits with 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pool_demo import run_pool
from showing import fail, show

SOURCES = Path(__file__).resolve().parent
RIGHT = "1048576 of 1048576 results are right"


def find_nvcc() -> list[str]:
    """nvcc and its options: from the PyPI wheels of this Python, or as installed."""
    spec = importlib.util.find_spec("nvidia")
    for base in (spec.submodule_search_locations or []) if spec else []:
        root = Path(base) / "cu13"
        if (root / "bin/nvcc").is_file():
            return [str(root / "bin/nvcc"), f"-I{root}/include", f"-L{root}/lib"]
    found = shutil.which("nvcc")
    if found is None:
        fail("no nvcc; run: pip install --group toolchain")
    return [found]


def compile_program(name: str, work: Path) -> Path:
    """A program, with the static runtime and PTX that every GPU since Turing takes."""
    work.mkdir(parents=True, exist_ok=True)
    program = work / name
    command = [*find_nvcc(), "-cudart", "static", "-Wno-deprecated-gpu-targets"]
    command += ["-gencode", "arch=compute_75,code=compute_75", "-o", str(program)]
    command.append(str(SOURCES / f"{name}.cu"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"nvcc: {done.stdout}{done.stderr}")
    return program


def without_ours() -> dict[str, str]:
    """The environment with nothing of gpupool in it."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GPUPOOL_") and key != "LD_LIBRARY_PATH"
    }


def show_stats(path: Path) -> None:
    """What the client library counted."""
    try:
        stats: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        calls = sum(int(entry["count"]) for entry in stats["calls"].values())
        trips, by_gpu = int(stats["round_trips"]), int(stats["gpu_waits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} does not hold the statistics: {error!r}")
    print("\nWhat the library counted (GPUPOOL_STATS)")
    print(f"    {calls} driver calls, {trips} round trips, {by_gpu} waits that the GPU ended")
    print(f"    {stats['bytes_sent']} bytes sent, {stats['bytes_received']} received")
    busiest = sorted(stats["calls"].items(), key=lambda item: -int(item[1]["count"]))
    for name, entry in busiest[:8]:
        print(f"    {entry['count']:6} {name} ({entry['mode']})")
    if trips < 1:
        fail("no round trip was counted, so the program did not use gpupool")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="a folder to build in")
    parser.add_argument("--stay", action="store_true", help="keep the pool until Enter is pressed")
    given = parser.parse_args()
    work: Path = given.work.absolute()
    program = compile_program("saxpy", work)
    two_hosts = compile_program("two_hosts", work)
    show("The program on this machine, without gpupool", [str(program)], without_ours())
    stats = work / "stats.json"
    stats.unlink(missing_ok=True)
    env = {**os.environ, "GPUPOOL_STATS": str(stats)}
    gpupool = [sys.executable, "-m", "gpupool", "run", "--local", "--log", "info", "--"]
    done = show("The same file through an embedded pool", [*gpupool, str(program)], env)
    if done.returncode != 0 or RIGHT not in done.stdout:
        fail("the program did not compute the right results through gpupool")
    show_stats(stats)
    run_pool(two_hosts, work / "console.png", given.stay)
    print("\ndemo: OK")


if __name__ == "__main__":
    main()
