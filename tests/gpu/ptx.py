"""The PTX cases on a real GPU: beside the soft GPU, or recorded for the tests.

    python tests/gpu/ptx.py                         compares; exit code 1 if anything differs
    python tests/gpu/ptx.py --record tests/e2e/ptx_h200.json

Both need the driver of a real GPU; comparing needs an installed or built gpupool as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

import ptx_table  # noqa: E402
from gpupool_common import paths  # noqa: E402
from gpupool_common.errors import InstallError  # noqa: E402
from ptx_cases import Case  # noqa: E402
from ptx_file import BadOutput, Outcome, differing, record, run_cases, show  # noqa: E402
from toolchain import Toolchain, ToolchainError  # noqa: E402

Outcomes = dict[str, Outcome]


def native_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}


def soft_environment(folder: Path) -> dict[str, str]:
    """Our driver library under the name that the program asks for.

    Preloaded from its own place as well: a wheel's libraries lie beside it, not beside the link.
    """
    library = paths.find_home().part(paths.SOFT_GPU)
    (folder / "libcuda.so.1").symlink_to(library)
    return {
        **native_environment(),
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(library),
    }


def device() -> tuple[str, str]:
    """Name and driver version of the first GPU; empty where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return "", ""
    if done.returncode != 0 or not done.stdout.strip():
        return "", ""
    name, _, driver = done.stdout.splitlines()[0].partition(",")
    return name.strip(), driver.strip()


def write_recording(path: Path, cases: dict[str, Case], native: Outcomes) -> None:
    name, driver = device()
    cases = {n: case for n, case in cases.items() if not case.error}
    entries = {n: json.dumps(record(case, native[n])) for n, case in cases.items()}
    body = ",\n".join(f"  {json.dumps(n)}: {entry}" for n, entry in entries.items())
    head = f'"gpu": {json.dumps(name)}, "driver": {json.dumps(driver)}'
    path.write_text(f'{{{head}, "cases": {{\n{body}\n}}}}\n', encoding="utf-8")
    refused = [f"{n}: CUDA error {native[n].error}" for n in cases if native[n].error]
    print(f"{len(cases)} cases on {name}, driver {driver}: {path}, {path.stat().st_size} bytes")
    for line in refused:
        print(f"refused  {line}"[:80])


def compare(case: Case, native: Outcome, soft: Outcome, shown: int) -> list[str]:
    """What differs, in lines of 80 columns; nothing if the case agrees."""
    if native.error or soft.error:
        if native.error == soft.error == case.error:
            return []
        if native.error == soft.error:
            return [f"  both refuse it: CUDA error {native.error}"]
        return [f"  CUDA error {native.error} on the GPU, {soft.error} on the soft GPU"]
    lines = []
    threads = differing(case, soft, native)
    for i in threads[:shown]:
        lines.append(f"  {i:3}: {show(case.values[i])}"[:80])
        lines.append(f"       GPU {show(native.rows[i])}; soft {show(soft.rows[i])}"[:80])
    if len(threads) > shown:
        lines.append(f"  … {len(threads)} of {case.threads} threads")
    return lines


def report(cases: dict[str, Case], native: Outcomes, soft: Outcomes, shown: int) -> int:
    wrong = 0
    for name, case in cases.items():
        lines = compare(case, native[name], soft[name], shown)
        if lines:
            wrong += 1
            print(f"{name}"[:80], *lines, sep="\n")
    print(f"{len(cases)} cases: {len(cases) - wrong} agree, {wrong} do not")
    return 1 if wrong else 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="PTX cases on a real GPU")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what the GPU gives")
    parser.add_argument("--cases", nargs="+", default=[], help="only those with this in a name")
    parser.add_argument("--threads", type=int, default=4, help="differing threads to show of each")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu" / "programs")
    parser.add_argument("--driver", choices=("cuda", "soft"), default="cuda", help="soft: a trial")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser.parse_args()


def run(given: argparse.Namespace, cases: dict[str, Case]) -> int:
    binary = Toolchain(given.build.absolute()).driver_program("ptx_bits")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        env = native_environment() if given.driver == "cuda" else soft_environment(Path(one))
        native = run_cases(binary, cases, env, 600.0)
        if given.record:
            write_recording(given.record, cases, native)
            return 0
        soft = run_cases(binary, cases, soft_environment(Path(other)), 600.0)
    return report(cases, native, soft, given.threads)


def main() -> int:
    given = read_options()
    cases = ptx_table.table()
    if given.cases and not given.record:
        cases = {n: c for n, c in cases.items() if any(part in n for part in given.cases)}
    if given.list:
        print("\n".join(cases))
        return 0
    if given.driver == "cuda" and not device()[0]:
        print("tests/gpu/ptx.py: nvidia-smi finds no GPU here; run it on a machine with one")
        return 2
    try:
        return run(given, cases)
    except (BadOutput, ToolchainError, InstallError) as error:
        print(f"tests/gpu/ptx.py: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
