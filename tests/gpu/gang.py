"""A job on two GPUs at half of each, beside another tenant on each: needs two GPUs.

    python tests/gpu/gang.py --out DIR [--jobs ranks process] [--seconds 4] [--windows]

The job's steps need both GPUs at once: `process` is one process on both (`gang_steps`), `ranks` one
on each that sum gradients by NCCL, as data-parallel training does. Counted are the steps that it
makes alone, then beside the tenants, and what these make, then alone. The job is a group with
turns at the same time on both GPUs (`gang`), or nobody says so (`plain`: ranks are a gang all the
same, as they sum by NCCL, and one process on both GPUs is not). As a gang it has at least 0.45 of
its steps, and each neighbour 0.45 of its own. The exit code is 1 if not.

For each it prints what each GPU's arbiter says of the time together: which part of it each tenant
had the turn (held), had work on the GPU (busy) and waited for a turn, and how many turns. Who has
too much with too large a part held was given it by the arbiter; with half held it works outside of
its turns; a neighbour that has too little and does not wait did not ask. `ending` is the part of
what is held after a turn should have ended: work that ran out, and what another rank waited for.
With `--windows` it says where the time of the gang's windows went (gang_windows.py). All is in
`gang.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gang_windows import describe, read_times, windows
from share_bench import ROOT, admin, clock, read_report

from gpupool_common import paths
from harness import PoolServer, find_nccl
from toolchain import Toolchain

NEIGHBOURS = ("blue", "yellow")
#: Of half of both GPUs: what a change of tenants takes, and the ends of turns.
LEAST = 0.45

#: Of each kernel of a step, about so many microseconds, in so many blocks of so many threads; and
#: the floats that ranks sum behind each. A soft GPU has small ones.
SHAPES = {
    "cuda": {"red": 500, "blue": 700, "yellow": 1300, "grid": ["264", "256"], "floats": 8 << 20},
    "soft": {"red": 1, "blue": 1, "yellow": 2, "grid": ["1", "32"], "floats": 1000},
}

#: Of a tenant in a server's status: both ways of counting its time, which differ by what changes
#: of turns took.
PARTS = {
    "held": "held_ns",
    "busy": "busy_ns",
    "ending": "ending_ns",
    "waited": "waited_ns",
}
COUNTS = ("turns", "launches")

Report = dict[str, Any]


def configuration(folder: Path) -> Path:
    lines = ["gangs = true", "[gpu]", 'policy = "share"', ""]
    for name in ("red", *NEIGHBOURS):
        lines += [f"[tenants.{name}]", f'token = "token-of-{name}"', 'share = "50%"', ""]
    path = folder / "gang.toml"
    path.write_text("\n".join(lines))
    return path


class Trial:
    """One job and its neighbours, from the job's beginning to the neighbours' end."""

    def __init__(self, server: PoolServer, programs: Toolchain, given: argparse.Namespace) -> None:
        self.server, self.given = server, given
        self.steps = str(programs.runtime_program("gang_steps"))
        self.shape: Report = SHAPES[given.driver]
        begin, long = clock() + given.lead, given.seconds
        together = begin + long + given.lead
        self.job = [begin, begin + long, together, together + 2 * long]
        self.others = [*self.job[2:], self.job[3] + 1, self.job[3] + 1 + long]

    def _start(self, tenant: str, way: str, moments: list[float], **asked: str) -> Any:
        words = [self.steps, way, str(self.shape[tenant]), *self.shape["grid"]]
        words += [f"{moment:.6f}" for moment in moments]
        env = self.server.environment("shm", GPUPOOL_TOKEN=f"token-of-{tenant}", **asked)
        env["GANG_STEPS_TIMES"] = str(self._times(tenant, asked.get("CUDA_VISIBLE_DEVICES", "0")))
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True)

    def _start_job(self, kind: str, gang: bool) -> list[Any]:
        asked = {"GPUPOOL_GROUP": f"job-{kind}", "GPUPOOL_SHARE": "50%"} if gang else {}
        if kind == "process":
            return [self._start("red", "2", self.job, GPUPOOL_GPUS="2", **asked)]
        file = self.given.out / f"gang-{os.getpid()}-{gang}.id"
        library = paths.find_home().root / "lib" / "libnccl.so.2"
        ways = [f"{rank},{library},{file},{self.shape['floats']}" for rank in range(2)]
        return [  # each has both GPUs, as torchrun's have, and uses one
            self._start("red", way, self.job, GPUPOOL_GPUS="2", CUDA_VISIBLE_DEVICES=rank, **asked)
            for rank, way in zip("01", ways, strict=True)
        ]

    def _times(self, tenant: str, rank: str = "0") -> Path:
        folder: Path = self.given.out
        return folder / f"gang-{tenant}-{rank}.times"

    def windows(self) -> Report:
        """Of the time together, where each of the gang's windows went."""
        job, *others = (read_times(self._times(name)) for name in ("red", *NEIGHBOURS))
        return windows(job, others, self.job)

    def accounts(self) -> Report:
        """What each GPU's arbiter has of who is there."""
        names = (*PARTS.values(), *COUNTS)
        return {
            f"GPU {gpu['index']} {tenant['name']}": {name: tenant[name] for name in names}
            for gpu in admin(self.server, do="status")["gpus"]
            for tenant in gpu["tenants"]
        }

    def run(self, kind: str, gang: bool) -> Report:
        job = self._start_job(kind, gang)
        sleep_until(self.job[1])
        others = [
            self._start(name, "1", self.others, GPUPOOL_DEVICES=str(place))
            for place, name in enumerate(NEIGHBOURS)
        ]
        sleep_until(self.job[2])
        before = self.accounts()
        sleep_until(self.job[3])
        after, took = self.accounts(), clock() - self.job[2]
        reports = [read_report(process, 60) for process in (*job, *others)]
        if any(report["late"] for report in reports):
            raise RuntimeError("a program was not ready in time; give it a longer --lead")
        steps = [report["steps"] for report in (reports[0], *reports[len(job) :])]
        accounts = differences(before, after, took)
        row = {"steps": steps, "accounts": accounts, "of own": parts(steps)}
        return {**row, "windows": self.windows()} if gang and self.given.windows else row


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - clock()))


def differences(before: Report, after: Report, took: float) -> Report:
    """Parts of the time, and counts, of those who were there all of it."""
    found: Report = {}
    for name in sorted(set(before) & set(after)):
        more = {key: after[name][key] - before[name][key] for key in after[name]}
        row = {part: round(more[key] / took / 1e9, 3) for part, key in PARTS.items()}
        found[name] = {**row, **{key: more[key] for key in COUNTS}}
    return found


def parts(steps: list[list[int]]) -> Report:
    """What each makes beside the others, of what it makes alone in the same time."""
    (job_alone, _, job), *others = steps
    rows = [(job, job_alone), *((together, alone) for together, _, alone in others)]
    names = ("job", *NEIGHBOURS)
    return {
        name: round(together / max(2 * alone, 1), 3)
        for name, (together, alone) in zip(names, rows, strict=True)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="a job's turns on two GPUs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--seconds", type=float, default=4.0, help="that each counts alone")
    parser.add_argument("--lead", type=float, default=6.0, help="seconds for starting")
    parser.add_argument("--driver", choices=tuple(SHAPES), default="cuda", help="of the server")
    parser.add_argument("--jobs", nargs="+", choices=("ranks", "process"), default=["ranks"])
    parser.add_argument("--windows", action="store_true", help="say where their time went")
    parser.add_argument("--turns", nargs="+", choices=("gang", "plain"), default=["gang", "plain"])
    parser.add_argument("--python", default=os.environ.get("GPUPOOL_GPU_PYTHON", sys.executable))
    given = parser.parse_args()
    if given.driver == "cuda" and (count := _cards()) < 2:
        print(f"gang: skipped: two GPUs are needed, this machine has {count}")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    measured = measure(given)
    (given.out / "gang.json").write_text(json.dumps(measured, indent=1))
    gangs = [row["of own"] for name, row in measured.items() if name.endswith("gang")]
    good = all(part >= LEAST for row in gangs for part in row.values())
    print(f"gang: {'ok' if good else 'NOT'} (at least {LEAST} of each one's own)")
    return 0 if good else 1


def measure(given: argparse.Namespace) -> Report:
    two = {"soft-gpus": "2"} if given.driver == "soft" else {"devices": "0,1"}
    if given.driver == "cuda" and (library := find_nccl(given.python)):
        two["nccl"] = library
    measured: Report = {}
    server = PoolServer(given.driver, config=str(configuration(given.out)), **two)
    try:
        server.start()
        programs = Toolchain(given.out / "programs")
        for kind in given.jobs:
            for turns in given.turns:
                row = measured[f"{kind} {turns}"] = Trial(server, programs, given).run(
                    kind, turns == "gang"
                )
                print(f"{kind} {turns}: {json.dumps(row['of own'])}", flush=True)
                for name, account in row["accounts"].items():
                    print(f"    {name:12} {json.dumps(account)}", flush=True)
                for line in describe(row["windows"]) if "windows" in row else ():
                    print(f"    {line}", flush=True)
    finally:
        (given.out / "gang-server.log").write_bytes(server.log.read_bytes())
        server.close()
    return measured


def _cards() -> int:
    from two_cards import cards

    return cards()


if __name__ == "__main__":
    sys.exit(main())
