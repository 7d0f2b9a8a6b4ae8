"""What the user of a program is told by those who run the GPUs: why it ended, what changed."""

from __future__ import annotations

import select
import signal
from pathlib import Path

import pytest

from gpupool.admin import Admin
from harness import Result, Talk, wait_until
from tenants import BLUE, MIB, RED, MakeServer, Pool, StartTalk, configured, tell
from toolchain import Toolchain


@pytest.fixture
def pool(make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path) -> Pool:
    return Pool(configured(make_server, tmp_path, **{"on-stop": "end"}), toolchain, talk)


def gone(program: Talk) -> Result:
    """Let a program whose session was ended find out."""
    assert tell(program, "work 1").startswith("gone "), "its session goes on"
    return program.finish()


def has_said_something(program: Talk) -> bool:
    """Whether there is something on stderr; the library reads its messages when it waits."""
    tell(program, "work 1")
    assert program.process.stderr is not None
    readable, _, _ = select.select([program.process.stderr], [], [], 0)
    return bool(readable)


def only_line(result: Result) -> str:
    (line,) = result.own_lines()
    return line


def test_a_server_that_is_stopped_says_so(pool: Pool, transport: str) -> None:
    program = pool.start(transport, **RED)
    pool.server.kill(signal.SIGTERM)
    line = only_line(gone(program))
    assert "being stopped by its operator; start the program again" in line


def test_limits_that_change_are_told(pool: Pool, transport: str) -> None:
    program = pool.start(transport, **RED)
    Admin(pool.run_dir).ask(
        {"do": "tenant-set", "tenant": "red", "memory_bytes": 16 * MIB, "share_permille": 300}
    )
    assert tell(program, "take 20") == "refused CUDA_ERROR_OUT_OF_MEMORY"
    wait_until(lambda: has_said_something(program), "the program's user was told")
    program.say("end")
    line = only_line(program.finish())
    assert "an operator changed the limits of 'red' on GPU 0: memory 16MiB, share 30%" in line


def test_only_the_sessions_meant_are_told(pool: Pool) -> None:
    blue = pool.start("shm", **BLUE)
    Admin(pool.run_dir).ask({"do": "tenant-set", "tenant": "red", "memory_bytes": 16 * MIB})
    tell(blue, "work 1")
    blue.say("end")
    assert blue.finish().own_lines() == []
