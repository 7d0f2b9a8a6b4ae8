"""A program on each instance of GPUs that MIG divides, natively and through the pool.

    python tests/gpu/mig.py --out DIR

Divide a GPU first (`nvidia-smi -i 0 -mig 1; nvidia-smi mig -i 0 -cgi 19,19 -C`): where none is,
there is nothing to do. Workers are in jails, as root's are. The exit code is 1 if a program sees
another device than natively, fails on it, or an instance is not served.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from two_cards import native_environment  # noqa: E402

from gpupool_server.nvml_inventory import Listed, nvml_devices  # noqa: E402
from harness import PoolServer, run_program  # noqa: E402
from toolchain import Toolchain  # noqa: E402


def served(server: PoolServer) -> list[dict[str, Any]]:
    """The devices that the server shows."""
    command = [sys.executable, "-m", "gpupool", "info", "--json"]
    env = {**server.environment(""), "PYTHONPATH": str(ROOT / "pool")}
    result = run_program(command, env)
    if result.returncode != 0:
        raise SystemExit(f"mig: {result.explain()}")
    return list(json.loads(result.stdout)[0]["devices"])


def compare(server: PoolServer, device: dict[str, Any], programs: list[Path]) -> int:
    """How many programs differ on a device, or fail."""
    native = {**native_environment(), "CUDA_VISIBLE_DEVICES": device["uuid"]}
    failed = 0
    for program in programs:
        alone = run_program([str(program)], native)
        pooled = server.run([str(program)], GPUPOOL_DEVICES=str(device["index"]))
        same = alone.returncode == pooled.returncode == 0 and alone.stdout == pooled.stdout
        failed += not same
        print(f"mig: {device['name']}: {program.name}: {'same' if same else 'DIFFERS'}")
        if not same:
            print(f"natively: {alone.explain()}\npooled: {pooled.explain()}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    given = parser.parse_args()
    listed = nvml_devices() or Listed((), {})
    instances = {device.uuid for device in listed.devices if device.instance is not None}
    if not instances:
        print("mig: skipped: no GPU of this machine is divided")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    toolchain = Toolchain(given.out / "programs")
    programs = [toolchain.driver_program(name) for name in ("driver_visible", "driver_memory")]
    server = PoolServer("cuda")
    try:
        server.start()
        devices = served(server)
        missing = instances - {device["uuid"] for device in devices}
        print(f"mig: not served: {', '.join(sorted(missing)) or 'none'}")
        failed = len(missing) + sum(compare(server, device, programs) for device in devices)
        print("\n".join(line for line in server.log.read_text().splitlines() if "confined" in line))
    finally:
        server.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
