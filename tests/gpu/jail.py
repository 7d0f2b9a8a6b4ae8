"""Workers under the whole jail on a real GPU: what they see, and what it costs.

    python tests/gpu/jail.py [--out DIR] [--turns N] [--best]

A server with --require-confinement (with --best: with what the host allows) for the programs of
this machine runs a driver program and a small PyTorch step, natively, unconfined and jailed, in
turns. The table says the median time of each and its ratio to native; above it are the layers
that are on, and what the jail costs at the start of a worker. The exit code is 1 if a program
fails, if a result differs from the native one, or if a jailed worker sees more than it should.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool.admin import Admin  # noqa: E402
from gpupool.status import ask_status  # noqa: E402
from harness import PoolServer, Result, run_program  # noqa: E402
from toolchain import Toolchain  # noqa: E402

LIMIT = 300.0

STEP = r"""
import hashlib, json, time
import torch
torch.manual_seed(7)
torch.backends.cuda.matmul.allow_tf32 = False
torch.use_deterministic_algorithms(True)
layers = torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
net = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data, target = torch.randn(256, 512).cuda(), torch.randint(0, 10, (256,)).cuda()
def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(data), target)
    loss.backward()
    optimizer.step()
    return loss
for _ in range(5):
    step()
torch.cuda.synchronize()
began = time.perf_counter()
for _ in range(100):
    loss = step()
torch.cuda.synchronize()
ms = 10 * (time.perf_counter() - began)
weights = torch.cat([p.detach().flatten() for p in net.parameters()]).cpu().numpy().tobytes()
print(json.dumps({"result": hashlib.sha256(weights).hexdigest()[:16], "step_ms": ms}))
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder for jail.json")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--best", action="store_true", help="do without what the host forbids")
    return parser.parse_args()


def native(command: list[str]) -> Result:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    return run_program(command, {**env, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, LIMIT)


def pooled(server: PoolServer, command: list[str]) -> Result:
    return server.run(command, "shm", LIMIT, CUBLAS_WORKSPACE_CONFIG=":4096:8")


def torch_step(result: Result) -> tuple[str, float]:
    said = json.loads(result.stdout.strip().splitlines()[-1])
    return str(said["result"]), float(said["step_ms"])


def look_at_worker(server: PoolServer, python: str) -> list[str]:
    """What is wrong with what a worker sees, while a program runs."""
    code = "import torch, time; torch.zeros(1).cuda(); print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [python, "-c", code], env=server.environment("shm"), stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            if program.stdout is None or program.stdout.readline().strip() != "ready":
                return ["no program came to its GPU"]
            (pid, *_) = server.worker_pids()
            return wrong_with(Path(f"/proc/{pid}"))
        finally:
            program.kill()


def wrong_with(process: Path) -> list[str]:
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    wrong = [
        f"{name} is {status[name].strip()}"
        for name in ("CapEff", "CapPrm", "CapBnd")
        if int(status[name], 16)
    ]
    if status["NoNewPrivs"].strip() != "1":
        wrong.append("no_new_privs is not set")
    if process.stat().st_uid == os.geteuid():
        wrong.append("it is the server's user")
    user = int(status["Uid"].split()[0])
    owner = (process / "environ").stat().st_uid  # root's, of a process that is closed to its user
    print(f"PR_SET_DUMPABLE 0 while the driver works: {'yes' if owner != user else 'NO'}")
    if owner == user:
        wrong.append("its memory is open to processes of its user")
    for kind in ("mnt", "pid", "ipc", "net", "uts"):
        if (process / "ns" / kind).stat().st_ino == Path(f"/proc/self/ns/{kind}").stat().st_ino:
            wrong.append(f"it is in the host's {kind} namespace")
    nodes = sorted(path.name for path in (process / "root" / "dev").iterdir())
    print("its /dev:", " ".join(nodes))
    print("its root:", " ".join(sorted(path.name for path in (process / "root").iterdir())))
    cards = [name for name in nodes if name.removeprefix("nvidia").isdecimal()]
    if len(cards) != 1:
        wrong.append(f"it has the nodes of {len(cards)} GPUs")
    if (process / "root" / "root").exists() or (process / "root" / "home").exists():
        wrong.append("it sees folders of the host's users")
    return wrong


class Comparison:
    """The programs, in each way, in turns."""

    def __init__(self, unconfined: PoolServer, jailed: PoolServer, folder: Path) -> None:
        self._ways: dict[str, Callable[[list[str]], Result]] = {
            "native": native,
            "unconfined": partial(pooled, unconfined),
            "jailed": partial(pooled, jailed),
        }
        self._driver = str(Toolchain(folder).driver_program("driver_memory"))
        self._step = folder / "step.py"
        self._step.write_text(STEP)
        self.times: dict[str, dict[str, list[float]]] = {
            name: {way: [] for way in self._ways}
            for name in ("driver program, whole, ms", "PyTorch, whole, ms", "PyTorch, a step, ms")
        }
        self.wrong: list[str] = []

    def turn(self) -> None:
        expected = ""
        for way, run in self._ways.items():
            began = time.perf_counter()
            result = run([self._driver])
            self._note("driver program, whole, ms", way, 1000 * (time.perf_counter() - began))
            if result.returncode != 0:
                self.wrong.append(f"driver program, {way}: {result.explain()[-1500:]}")
            began = time.perf_counter()
            result = run([sys.executable, str(self._step)])
            self._note("PyTorch, whole, ms", way, 1000 * (time.perf_counter() - began))
            if result.returncode != 0:
                self.wrong.append(f"PyTorch, {way}: {result.explain()[-1500:]}")
                continue
            digest, step_ms = torch_step(result)
            self._note("PyTorch, a step, ms", way, step_ms)
            expected = expected or digest
            if digest != expected:
                self.wrong.append(f"PyTorch, {way}: the weights differ from the native ones")

    def _note(self, name: str, way: str, value: float) -> None:
        self.times[name][way].append(value)

    def table(self) -> list[str]:
        lines = [f"{'':28}" + "".join(f"{way:>14}{'ratio':>7}" for way in self._ways)]
        for name, ways in self.times.items():
            medians = {way: statistics.median(ms) for way, ms in ways.items() if ms}
            base = medians.get("native", 0.0)
            cells = [
                f"{medians[way]:14.2f}{(base / medians[way]) if base else 0:7.2f}"
                if way in medians
                else f"{'failed':>14}{'':7}"
                for way in self._ways
            ]
            lines.append(f"{name:28}" + "".join(cells))
        return lines


def start_costs(server: PoolServer) -> list[int]:
    costs = []
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", "import torch; torch.zeros(1).cuda(); print(); input()"],
            env=server.environment("shm"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as program:
            if program.stdout is not None and program.stdout.readline():
                costs += [s["confinement"]["start_us"] for s in server.sessions()]
            program.kill()
    return costs


def main() -> int:
    arguments = parse_arguments()
    if not any(path.startswith("nvidia") for path in os.listdir("/dev")):
        print("skipped: this machine has no /dev/nvidia*")
        return 0
    local = {"data-listen": "none", "devices": "0"}
    unconfined = PoolServer("cuda", **local, confinement="off")
    demand = {"confinement": "best"} if arguments.best else {"require-confinement": ""}
    jailed = PoolServer("cuda", **local, **demand)
    folder = Path(tempfile.mkdtemp(prefix="gpj-"))
    try:
        unconfined.start()
        jailed.start()
        _, status = ask_status(Admin(jailed.folder / "run"))
        layers: dict[str, Any] = status["confinement"]
        for name, state in layers.items():
            print(f"{name:18}{state}")
        comparison = Comparison(unconfined, jailed, folder)
        wrong = look_at_worker(jailed, sys.executable)
        costs = start_costs(jailed)
        if costs:
            print(
                f"the jail at a worker's start: median {statistics.median(costs) / 1000:.1f} ms,"
                f" most {max(costs) / 1000:.1f} ms"
            )
        for _ in range(arguments.turns):
            comparison.turn()
        print("\n".join(comparison.table()))
        wrong += comparison.wrong
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            record = {
                "layers": layers,
                "start_us": costs,
                "times": comparison.times,
                "wrong": wrong,
            }
            (arguments.out / "jail.json").write_text(json.dumps(record, indent=1) + "\n")
        for line in wrong:
            print("WRONG:", line)
        if wrong:
            print(jailed.log.read_text()[-4000:])
        return 1 if wrong else 0
    finally:
        unconfined.close()
        jailed.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
