"""CUDA_VISIBLE_DEVICES natively and through the pool: each list must show the same devices.

    python tests/gpu/visible.py --out DIR

Needs a GPU; with two it says more. The exit code is 1 if any list differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from two_cards import cards, native_environment  # noqa: E402

from harness import PoolServer, Result, run_program  # noqa: E402
from toolchain import Toolchain  # noqa: E402

LISTS = (
    *("0", "1", "0,1", "1,0", "", "-1", "NoDevFiles", "0,-1,1", "0,,1", ",0", "0,0", "1,0,1"),
    *(" 0", "0 ,1", "+1", "01", "0x1", "1st,0th", "0.5", "9", "0,9", "9,9", "0,9,9", "0;1"),
    *("99999999999999999999", "4294967296", "GPU-", "GPU", "MIG-", "0,GPU-"),
)


def of_uuids(uuids: list[str]) -> list[str]:
    """Lists that name these devices by their UUIDs."""
    first, last = uuids[0], uuids[-1]
    more = [first, last, first[:12], first.upper(), f"gpu{first[3:]}", first[4:]]
    more += [f"{first}0", f"{first},0", f"0,{first}", f"{first},{first}", f"{last},{first}"]
    return [*more, f"{first},{first[:12]}", f"{last},GPU-none,{first}", f"MIG-{first}/1/0"]


def seen(result: Result) -> list[str]:
    """The devices' UUIDs, or how it ended."""
    return [*result.stdout.splitlines(), str(result.returncode)]


def main() -> int:
    parser = argparse.ArgumentParser(description="CUDA_VISIBLE_DEVICES as natively")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    given = parser.parse_args()
    if (count := cards()) == 0:
        print("visible: skipped: this machine has no GPU")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    program = [str(Toolchain(given.out / "programs").driver_program("driver_visible"))]
    native = {**native_environment(), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    native.pop("CUDA_VISIBLE_DEVICES", None)
    uuids = run_program(program, native, 60).stdout.splitlines()[:-1]
    server = PoolServer("cuda", devices=",".join(map(str, range(count))))
    failed = 0
    try:
        server.start()
        for text in (*LISTS, *of_uuids(uuids)):
            local = seen(run_program(program, {**native, "CUDA_VISIBLE_DEVICES": text}, 60))
            ours = seen(server.run(program, CUDA_VISIBLE_DEVICES=text))
            failed += local != ours
            print(f"{text!r:46} {'ok' if local == ours else f'NOT: {ours}, natively {local}'}")
    finally:
        server.close()
    print(f"visible: {failed} lists differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
