"""A job on two GPUs at half of each, beside another tenant on each: needs two GPUs.

    python tests/gpu/gang.py --out DIR [--seconds 10] [--driver soft]

Steps of ``gang_steps`` need both GPUs at once. Counted are its steps alone, beside the tenants as
a group, whose turns come at the same time on both GPUs, and as a tenant without a group, whose
turns do not; and what the neighbours do. As a group it has at least 0.45 of its steps, and each
neighbour at least 0.45 of its work. The exit code is 1 if not. What the arbiters say of each a
second before the end (turns, the time that it had, the time that was charged) is in ``gang.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from share_bench import ROOT, admin, clock, read_report

from harness import PoolServer
from toolchain import Toolchain

TENANTS = ("red", "blue", "yellow")
#: Of half of both GPUs: what a change of tenants takes, and the ends of turns.
LEAST = 0.45

#: Microseconds of each kernel of a step: the job's, its neighbours'.
LENGTHS = {"red": 500, "blue": 700, "yellow": 1300}

#: Of a tenant in a server's status: both ways of counting its time, which differ by what changes
#: of turns took.
ACCOUNT = ("turns", "held_ns", "busy_ns", "waited_ns", "launches", "share_permille")

Report = dict[str, Any]


def configuration(folder: Path) -> Path:
    lines = [
        "gangs = true",
        "[gpu]",
        'policy = "share"',
        "",
        "[tenants.red]",
        'token = "token-of-red"',
    ]
    lines += ['share = "50%"', ""]
    for name in TENANTS[1:]:
        lines += [f"[tenants.{name}]", f'token = "token-of-{name}"', 'share = "50%"', ""]
    path = folder / "gang.toml"
    path.write_text("\n".join(lines))
    return path


class Trial:
    """Programs that count in the same seconds."""

    def __init__(self, server: PoolServer, programs: Toolchain, given: argparse.Namespace) -> None:
        self.server, self.given = server, given
        self.steps = str(programs.runtime_program("gang_steps"))
        #: About so many microseconds of each kernel; a soft GPU has small ones.
        soft = given.driver == "soft"
        self.lengths = {"red": 1, "blue": 1, "yellow": 2} if soft else LENGTHS
        self.shape = ["1", "32"] if soft else []

    def _start(self, tenant: str, gpus: int, when: list[str], **asked: str) -> Any:
        words = [self.steps, str(gpus), str(self.lengths[tenant]), *when, *self.shape]
        env = self.server.environment("shm", GPUPOOL_TOKEN=f"token-of-{tenant}", **asked)
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True)

    def accounts(self) -> Report:
        """What each GPU's arbiter has of who is there."""
        return {
            f"{gpu['index']} {tenant['name']}": {name: tenant[name] for name in ACCOUNT}
            for gpu in admin(self.server, do="status")["gpus"]
            for tenant in gpu["tenants"]
        }

    def run(self, job: bool, gang: bool, neighbours: bool) -> dict[str, Any]:
        """The steps of each."""
        begin = clock() + self.given.lead
        when = [f"{begin:.6f}", f"{self.given.seconds:g}"]
        running = {}
        if job:
            asked = {"GPUPOOL_GROUP": "job", "GPUPOOL_SHARE": "50%"} if gang else {}
            running["red"] = self._start("red", 2, when, GPUPOOL_GPUS="2", **asked)
        for place, name in enumerate(TENANTS[1:] if neighbours else ()):
            running[name] = self._start(name, 1, when, GPUPOOL_DEVICES=str(place))
        limit = self.given.lead + self.given.seconds + 120
        time.sleep(max(0.0, begin + self.given.seconds - 1 - clock()))
        accounts = self.accounts()
        reports = {name: read_report(process, limit) for name, process in running.items()}
        return {
            "steps": {name: int(said["steps"]) for name, said in reports.items()},
            "accounts": accounts,
        }


def measure(trial: Trial) -> Report:
    return {
        "alone": trial.run(job=True, gang=True, neighbours=False),
        "neighbours alone": trial.run(job=False, gang=False, neighbours=True),
        "as a gang": trial.run(job=True, gang=True, neighbours=True),
        "without": trial.run(job=True, gang=False, neighbours=True),
    }


def parts(measured: Report, way: str) -> Report:
    """Of what each does alone."""
    alone = {**measured["neighbours alone"]["steps"], **measured["alone"]["steps"]}
    steps = measured[way]["steps"]
    return {name: round(done / max(alone[name], 1), 3) for name, done in steps.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="a job's turns on two GPUs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--lead", type=float, default=6.0, help="seconds for starting")
    parser.add_argument("--driver", default="cuda", help="of the server (soft: to try this)")
    given = parser.parse_args()
    if given.driver == "cuda" and (count := _cards()) < 2:
        print(f"gang: skipped: two GPUs are needed, this machine has {count}")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    two = {"soft-gpus": "2"} if given.driver == "soft" else {"devices": "0,1"}
    server = PoolServer(given.driver, config=str(configuration(given.out)), **two)
    try:
        server.start()
        measured = measure(Trial(server, Toolchain(given.out / "programs"), given))
    finally:
        (given.out / "gang-server.log").write_bytes(server.log.read_bytes())
        server.close()
    found = {way: parts(measured, way) for way in ("as a gang", "without")}
    (given.out / "gang.json").write_text(json.dumps({**measured, "parts": found}, indent=1))
    for way, each in found.items():
        print(f"{way:10} {json.dumps(each)}")
    good = all(part >= LEAST for part in found["as a gang"].values())
    print(f"gang: {'ok' if good else 'NOT'} (at least {LEAST} of each one's own)")
    return 0 if good else 1


def _cards() -> int:
    from two_cards import cards

    return cards()


if __name__ == "__main__":
    sys.exit(main())
