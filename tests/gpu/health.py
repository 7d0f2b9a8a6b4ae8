"""What a real card tells the server's metrics: its sensors, and the XID error of a program's fault.

    python tests/gpu/health.py [--out DIR]

A server with metrics on the loopback runs a program whose kernel writes to an address that is
none. NVML is to tell of the XID error that this is (31, or 13), which must be counted and must not
put the GPU aside. Then the GPU is put aside by hand: no session opens there, until it is opened
again. The exit code is 1 if anything of this is not so. `--soft` holds all but NVML's part against
a soft GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool.admin import Admin  # noqa: E402
from harness import PoolServer  # noqa: E402
from ports import free_port  # noqa: E402
from toolchain import Toolchain  # noqa: E402

LIMIT = 300.0
#: The driver tells of an error some time after the program was told.
XID_SECONDS = 30.0
OF_PROGRAMS = ("13", "31")
SENSORS = (
    "temperature_celsius",
    "power_watts",
    "memory_used_bytes",
    "utilization_ratio",
    "sm_clock_hertz",
    "energy_joules_total",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder for health.json")
    parser.add_argument("--soft", action="store_true", help="a soft GPU, without NVML")
    return parser.parse_args()


def scrape(where: str) -> dict[str, float]:
    """Series of GPU 0 by their name, those of XIDs by their number."""
    with urllib.request.urlopen(f"{where}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith("gpupool_gpu_") and 'gpu="0"' in line:
            name = line.partition("{")[0].removeprefix("gpupool_gpu_")
            number = line.partition('xid="')[2].partition('"')[0]
            found[f"{name}:{number}" if number else name] = float(line.rpartition(" ")[2])
    return found


def xids(series: dict[str, float]) -> dict[str, float]:
    return {k.partition(":")[2]: v for k, v in series.items() if ":" in k and v}


def check_sensors(where: str, wrong: list[str]) -> dict[str, float]:
    series = scrape(where)
    wrong += [f"the card does not say {name}" for name in SENSORS if name not in series]
    for name, least, most in (("temperature_celsius", 5, 110), ("power_watts", 1, 2000)):
        if name in series and not least < series[name] < most:
            wrong.append(f"{name} is {series[name]}")
    return series


def check_fault(server: PoolServer, where: str, fault: str, wrong: list[str]) -> dict[str, float]:
    result = server.run([fault], "shm", LIMIT)
    if "PASS driver_fault" not in result.stdout:
        wrong.append(f"the program with a fault: {result.explain()}")
    deadline = time.monotonic() + XID_SECONDS
    while not xids(scrape(where)) and time.monotonic() < deadline:
        time.sleep(0.5)
    series = scrape(where)
    if not set(xids(series)) & set(OF_PROGRAMS):
        wrong.append(f"NVML told of {xids(series) or 'no XID error'} within {XID_SECONDS:g} s")
    if series.get("sick") != 0:
        wrong.append("a program's own mistake has put the GPU aside")
    return xids(series)


def check_aside(server: PoolServer, good: str, wrong: list[str]) -> None:
    admin = Admin(server.folder / "run")
    admin.ask({"do": "gpu-aside", "gpu": 0, "reason": "a test"})
    refused = server.run([good], "shm", LIMIT)
    if refused.returncode == 0 or "GPU 0 is put aside: a test at" not in refused.stderr:
        wrong.append(f"a session on a GPU that is aside: {refused.explain()}")
    admin.ask({"do": "gpu-open", "gpu": 0})
    result = server.run([good], "shm", LIMIT)
    if result.returncode != 0:
        wrong.append(f"after it was opened again: {result.explain()}")


def main() -> int:
    arguments = parse_arguments()
    where = f"http://127.0.0.1:{free_port()}"
    toolchain = Toolchain(ROOT / "build" / "gpu-programs")
    fault, good = (
        str(toolchain.driver_program(name)) for name in ("driver_fault", "driver_memory")
    )
    kind = "soft" if arguments.soft else "cuda"
    server = PoolServer(kind, **{"metrics-listen": where, "devices": "0"})
    wrong: list[str] = []
    told: dict[str, object] = {}
    try:
        server.start()
        if arguments.soft:
            told["series"] = scrape(where)
        else:
            told["series"] = check_sensors(where, wrong)
            told["xids"] = check_fault(server, where, fault, wrong)
        check_aside(server, good, wrong)
        print(json.dumps(told, indent=1))
        for line in wrong:
            print("WRONG:", line)
        if wrong:
            print(server.log.read_text()[-4000:])
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            record = {**told, "wrong": wrong}
            (arguments.out / "health.json").write_text(json.dumps(record, indent=1) + "\n")
        return 1 if wrong else 0
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
