"""Arbiters that die, and servers that die beside them; workers that lie to both."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness import alive, wait_until
from tenants import BLUE, MIB, RED, MakeServer, Pool, StartTalk, configured, end, info, tell
from toolchain import Toolchain

REFUSED = "refused CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def pool(make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path) -> Pool:
    return Pool(configured(make_server, tmp_path), toolchain, talk)


def arbiter_of(pool: Pool) -> int:
    """The arbiter of GPU 0; 0 between the old one and the new one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().split(b"\0")
            mine = os.readlink(folder / "fd" / line[2].decode())
            owned = mine in sockets_of(pool)
        except (OSError, IndexError):
            continue
        if line[0].endswith(b"gpupool-arbiter") and owned:
            return int(folder.name)
    return 0


def sockets_of(pool: Pool) -> set[str]:
    """What listens at the place of GPU 0's arbiter, as /proc/PID/fd calls it."""
    place = str(pool.run_dir / "gpus" / "0.arbiter")
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {f"socket:[{row[6]}]" for row in rows if row[-1] == place and row[3] == "00010000"}


def test_an_arbiter_that_dies_is_started_anew(pool: Pool, transport: str) -> None:
    """Workers come over to the next with what they have; it outlives its server."""
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "48MiB"}
    program = pool.start(transport, **asked)
    assert tell(program, "take 32") == "took 32"

    def back() -> bool:
        account = pool.account("red/g")
        return bool(
            account and account["workers"] == 1 and account["memory_used_bytes"] >= 32 * MIB
        )

    before = arbiter_of(pool)
    assert before
    for stop in (signal.SIGKILL, signal.SIGSTOP):  # it ends, it does not answer
        os.kill(before, stop)
        wait_until(lambda was=before: arbiter_of(pool) not in (0, was), "there was another")  # type: ignore[misc]
        wait_until(back, "the session was on the new board with all that it has")
        assert tell(program, "work 5").startswith("worked")
        assert tell(program, "take 32") == REFUSED
        assert info(program)[1] == 48 * MIB
        before = arbiter_of(pool)
    pool.server.kill()
    assert tell(program, "work 5").startswith("worked")
    assert arbiter_of(pool) == before, "it outlives its server"
    pool.server.start()
    wait_until(back, "the next server found it")
    assert arbiter_of(pool) == before
    assert pool.run("shm", "driver_vmm", **BLUE).returncode == 0
    end(program)


def test_arbiters_that_end_again_and_again(pool: Pool) -> None:
    program = pool.start("shm", **RED)
    worker = pool.worker_of(program)
    for _ in range(4):
        if not alive(worker):
            break
        before = arbiter_of(pool)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda was=before: arbiter_of(pool) not in (0, was), "there was another")  # type: ignore[misc]
    wait_until(lambda: not alive(worker), "the sessions there were ended")
    program.say("work 1")
    assert program.line().startswith("gone")
    assert any("keeps failing" in line for line in program.finish().own_lines())
    assert pool.run("shm", "driver_vmm", **BLUE).returncode == 0


def test_an_arbiter_ends_with_its_server_and_its_workers(pool: Pool) -> None:
    program = pool.start("shm", **RED)
    arbiter = arbiter_of(pool)
    pool.server.kill()
    assert tell(program, "work 5").startswith("worked")
    assert alive(arbiter)
    end(program)
    wait_until(lambda: not alive(arbiter), "the arbiter had nobody left")
