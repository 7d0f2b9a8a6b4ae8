"""Whether UCX works on this host, and what it carries: no GPU is needed.

    python tests/gpu/rdma.py [--rounds 5] [--seconds 1] [--ucx LIBRARY] [--out DIR]

Says which UCX is found and which devices it sees, then has two processes of this host speak to each
other through gpupool's transports: over our TCP and ZeroMQ, for comparison, and over UCX with its
own tcp and with each RDMA device in turn. A figure is the median of the rounds, in which all take
turns. Between two hosts run a program instead (docs/rdma.md). The exit code is 1 if a device that
UCX sees does not carry, 77 if there is no UCX.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server"):
    sys.path.insert(0, str(folder))

from gpupool_server import ucx  # noqa: E402

LIMIT = 120.0
NO_UCX = 77
VERBS = Path("/sys/class/infiniband")


@dataclass
class Way:
    """One transport, with what it is told."""

    name: str
    url: str
    env: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)
    trouble: str = ""

    def run(self, program: Path, plugins: Path, seconds: float) -> None:
        done = subprocess.run(
            [str(program), str(plugins), self.url, str(seconds)],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode != 0:
            self.trouble = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "ended"
            return
        said = json.loads(done.stdout)
        for name in ("round_trip_us", "gb_s"):
            self.figures.setdefault(name, []).append(float(said[name]))

    def row(self) -> str:
        if self.trouble:
            return f"{self.name:24}{self.trouble}"
        middle = [statistics.median(self.figures[n]) for n in ("round_trip_us", "gb_s")]
        return f"{self.name:24}{middle[0]:12.1f}{middle[1]:12.2f}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--ucx", type=Path, help="libucp.so.0, if it is not found")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--out", type=Path, help="a folder for rdma.json")
    return parser.parse_args()


def build(folder: Path) -> tuple[Path, Path]:
    """The program, and the folder of plug-ins."""
    subprocess.run(["cmake", "--build", folder, "--target", "bench_transports"], check=True)
    program = next(folder.rglob("bench_transports"))
    return program, next(folder.rglob("libgpupool_ucx.so")).parent


def seen(library: Path) -> list[str]:
    """Network devices that UCX lists, as it names them."""
    info = library.resolve().parent.parent / "bin" / "ucx_info"
    if not info.is_file():
        return [f"{path.name}:1" for path in sorted(VERBS.glob("*"))]
    done = subprocess.run(
        [str(info), "-d"],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.resolve().parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    found = re.findall(r"Transport: (\S+)\n#\s+Device: (\S+)", done.stdout)
    return sorted(
        {device for transport, device in found if transport.startswith(("rc", "dc", "ud"))}
    )


def ways(library: Path, devices: list[str]) -> list[Way]:
    here = {ucx.VARIABLE: str(library)}
    found = [Way("tcp (plain)", "plain://127.0.0.1:*"), Way("zmq", "tcp://127.0.0.1:*")]
    found.append(Way("ucx tcp/lo", "ucx://127.0.0.1:*", here))
    for device in devices:
        own = {"GPUPOOL_UCX_NET_DEVICES": device, "GPUPOOL_UCX_TLS": "rc,dc,ud"}
        found.append(Way(f"ucx {device}", "ucx://127.0.0.1:*", {**here, **own}))
    return found


def main() -> int:
    asked = arguments()
    library = ucx.find(asked.ucx)
    if library is None:
        print("skipped: there is no UCX here; pip install libucx-cu12 has its tcp, and the")
        print("system's (DOCA-OFED, HPC-X) has InfiniBand and RoCE")
        return NO_UCX
    program, plugins = build(asked.build)
    devices = seen(library)
    print(f"UCX: {library}")
    cards = sorted(path.name for path in VERBS.glob("*"))
    print(f"RDMA devices of this host: {', '.join(cards) or 'none'}")
    print(f"of these UCX uses: {', '.join(devices) or 'none'}")
    if cards and not devices:
        print("(UCX of PyPI is built without verbs: name the system's by --ucx)")
    each = ways(library, devices)
    for _ in range(asked.rounds):
        for way in each:
            way.run(program, plugins, asked.seconds)
    print(f"{'':24}{'there, back':>12}{'1 MiB':>12}\n{'':24}{'us':>12}{'GB/s':>12}")
    print(*(way.row() for way in each), sep="\n")
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        figures = {way.name: way.figures or way.trouble for way in each}
        (asked.out / "rdma.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if any(way.trouble for way in each if way.url.startswith("ucx")) else 0


if __name__ == "__main__":
    sys.exit(main())
