"""A server with a tenant for every role, its programs, and the rows that were measured."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from harness import PoolServer  # noqa: E402
from toolchain import Toolchain  # noqa: E402

TENANTS = [f"t{number:02}" for number in range(1, 26)]
GIB = 1 << 30
MS, US = 1000, 1  # lengths of kernels: a chunk of work is about a microsecond

Job = tuple[str, list[str]]  # a tenant, and arguments
Report = dict[str, Any]


def clock() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def configuration(folder: Path) -> Path:
    lines = ["[gpu]", 'policy = "weighted"', "max_inst = 25", ""]
    for name in TENANTS:
        lines += [f"[tenants.{name}]", f'token = "token-of-{name}"', "weight = 25"]
        lines += ["high_priority = true", ""]
    path = folder / "server.toml"
    path.write_text("\n".join(lines))
    return path


def admin(server: PoolServer, **question: Any) -> dict[str, Any]:
    """What a server answers to an operator."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(30)
        peer.connect(str(server.folder / "run" / "admin.sock"))
        peer.sendall(json.dumps(question).encode() + b"\n")
        answer: dict[str, Any] = json.loads(peer.makefile().readline())
    if "error" in answer:
        raise RuntimeError(f"{question}: {answer['error']}")
    return answer


@dataclass
class Bench:
    """The server, its programs, and the rows measured so far."""

    out: Path
    python: str
    server: PoolServer
    toolchain: Toolchain
    way: str
    seconds: float
    rows: list[Report] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)

    def admin(self, **question: Any) -> dict[str, Any]:
        return admin(self.server, **question)

    def policy(self, policy: str, **settings: Any) -> None:
        self.admin(do="gpu-set", gpu=0, policy=policy, **settings)

    def weights(self, *weights: int) -> None:
        for name, weight in zip(TENANTS, weights, strict=False):
            self.admin(do="tenant-set", tenant=name, weight=weight)

    def tenants(self) -> dict[str, dict[str, Any]]:
        status = self.admin(do="status")
        return {tenant["name"]: tenant for tenant in status["gpus"][0]["tenants"]}

    def environment(self, tenant: str, **extra: str) -> dict[str, str]:
        if tenant == "native":
            return {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")} | extra
        token = {"GPUPOOL_TOKEN": f"token-of-{tenant}"}
        return self.server.environment(self.way, **token, **extra)

    def start(self, tenant: str, command: Sequence[str], **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            list(command),
            env=self.environment(tenant, **extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def together(
        self,
        command: Sequence[str],
        jobs: Sequence[tuple[str, Sequence[str]]],
        lead: float,
        seconds: float,
        while_running: Callable[[float], None] | None = None,
        **extra: str,
    ) -> list[Report]:
        """Run jobs side by side, all counting in the same seconds; `lead` is for starting.

        {start} and {seconds} in the arguments are replaced; `extra` is for the environment.
        """
        start = clock() + lead
        said = {"start": f"{start:.6f}", "seconds": f"{seconds:g}"}
        running = [
            self.start(tenant, [*command, *(text.format_map(said) for text in arguments)], **extra)
            for tenant, arguments in jobs
        ]
        if while_running is not None:
            while_running(start)
        return [read_report(process, lead + seconds + 120) for process in running]

    def work(
        self, jobs: Sequence[tuple[str, int]], seconds: float = 0, lead: float = 4.0, **kind: Any
    ) -> list[int]:
        """Chunks of work done by (tenant, chunks per kernel)."""
        program = str(self.toolchain.runtime_program("work"))
        arguments = [(name, [str(chunks), "{start}", "{seconds}"]) for name, chunks in jobs]
        reports = self.together([program], arguments, lead, seconds or self.seconds, **kind)
        return [report["chunks"] for report in reports]

    def images(self, jobs: Sequence[tuple[str, str, int]], lead: float) -> list[float]:
        """Images per second of ResNet-50 by (tenant, train or infer, batch)."""
        script = [self.python, str(HERE / "share_programs.py")]
        arguments = [(name, [kind, str(n), "{start}", "{seconds}"]) for name, kind, n in jobs]
        reports = self.together(script, arguments, lead, self.seconds)
        if any(report["late"] for report in reports):
            raise RuntimeError("a program was not ready in time; give it a longer lead")
        return [float(report["images"]) for report in reports]

    def row(self, section: str, asked: str, got: str, good: bool, **figures: Any) -> None:
        self.rows.append({"section": section, "asked": asked, "got": got, "ok": good, **figures})
        (self.out / "shares.json").write_text(json.dumps(self.rows, indent=1))
        print(f"{section:9} {asked[:34]:34} {got[:28]:28} {'ok' if good else 'NOT'}", flush=True)


def read_report(process: subprocess.Popen[str], patience: float) -> Report:
    try:
        said, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError("a program did not end") from None
    if process.returncode != 0:
        raise RuntimeError(f"a program failed: {said[-300:]}{errors[-600:]}")
    report: Report = json.loads(said.strip().splitlines()[-1])
    return report
