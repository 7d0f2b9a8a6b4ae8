"""Tenants for the tests of sharing: a server that has some, and programs that obey them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpupool.admin import Admin
from harness import DRIVER, PATIENCE, PoolServer, Result, Talk, run_program, wait_until
from toolchain import Toolchain
from warm_start import run

MIB = 1 << 20

#: Quotas are so many times larger on a machine's own GPU, whose contexts take half a GiB.
SCALE = 32 if DRIVER == "cuda" else 1

#: red and blue have quotas; whoever has the server's own token has none.
CONFIG = f"""
[tenants.red]
token = "token-of-red"
memory = "{64 * SCALE}MiB"
share = "50%"
ceiling = "80%"
weight = 4
sessions = 4

[tenants.blue]
token = "token-of-blue"
memory = "{32 * SCALE}MiB"
share = "30%"
weight = 1
"""

RED = {"GPUPOOL_TOKEN": "token-of-red"}
BLUE = {"GPUPOOL_TOKEN": "token-of-blue"}

MakeServer = Callable[..., PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]


def configured(
    make_server: MakeServer, folder: Path, more: str = "", **settings: str
) -> PoolServer:
    """A server of the test's own that knows red and blue; ``more`` is added to its file."""
    path = folder / "server.toml"
    path.write_text(CONFIG + more)
    return make_server(config=str(path), **settings)


def tell(program: Talk, text: str) -> str:
    """Its answer to one line (programs/driver_tenant.c)."""
    program.say(text)
    return program.line()


def info(program: Talk) -> tuple[int, int]:
    """Free and total memory, as cuMemGetInfo has them."""
    words = tell(program, "info").split()
    return int(words[1]), int(words[3])


def end(program: Talk) -> None:
    program.say("end")
    result = program.finish()
    assert result.returncode == 0 and "PASS" in result.stdout, result.explain()


class Pool:
    """A server with tenants, as an operator and as a tenant's user see it."""

    def __init__(self, server: PoolServer, toolchain: Toolchain, talk: StartTalk) -> None:
        self.server = server
        self.run_dir = server.folder / "run"
        self._toolchain = toolchain
        self._talk = talk

    def program(self, name: str, *arguments: str) -> list[str]:
        return [str(self._toolchain.driver_program(name)), *arguments]

    def start(self, transport: str, /, **request: str) -> Talk:
        """A program that obeys, once it has its session."""
        program = self._talk(
            self.program("driver_tenant"), self.server.environment(transport, **request)
        )
        assert program.line() == "ready"
        return program

    def run(self, transport: str, name: str, /, *arguments: str, **request: str) -> Result:
        env = self.server.environment(transport, **request)
        return run_program(self.program(name, *arguments), env)

    def ask(self, **question: Any) -> dict[str, Any]:
        return Admin(self.run_dir).ask(question)

    def told(self) -> dict[str, Any]:
        """The status, once all workers have said how they are: one that was not run for two
        seconds is shown without its own figures."""
        status: dict[str, Any] = {}

        def complete() -> bool:
            status.update(self.ask(do="status"))
            return not any("trouble" in session for session in status["sessions"])

        wait_until(complete, "all workers said how they are")
        return status

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpupool", *words, "--run-dir", str(self.run_dir)]

    def cli(self, *words: str) -> Result:
        """A command of the operator's, to its end."""
        done = run(self.command(*words), PATIENCE, operator())
        return Result(done.returncode, done.stdout, done.stderr)

    def account(self, name: str) -> dict[str, Any]:
        """A tenant or group on the board of GPU 0; empty if it is not there."""
        tenants = self.ask(do="status")["gpus"][0]["tenants"]
        found: list[dict[str, Any]] = [each for each in tenants if each["name"] == name]
        return found[0] if found else {}

    def session_of(self, program: Talk) -> dict[str, Any]:
        """The session of a program."""
        listed: list[dict[str, Any]] = self.told()["sessions"]
        found = [each for each in listed if each["client_pid"] == program.process.pid]
        assert len(found) == 1, listed
        return found[0]

    def worker_of(self, program: Talk) -> int:
        """The worker that serves it."""
        return int(self.session_of(program)["pid"])


def operator() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def most_resident(pid: int) -> int:
    """The most bytes that a process has ever had in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no VmHWM")
