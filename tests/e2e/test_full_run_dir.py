"""A run directory without space: one clear error, no signal, and what runs goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import PATIENCE, PoolServer, Talk, wait_until
from tenants import end, tell
from toolchain import Toolchain


def may_mount() -> bool:
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


pytestmark = pytest.mark.skipif(
    not may_mount(), reason="making a small file system of its own takes root's rights"
)


@pytest.fixture
def make_small() -> Iterator[Callable[[str], PoolServer]]:
    """Servers whose run directory has so much room; not started."""
    servers: list[PoolServer] = []

    def make(size: str) -> PoolServer:
        server = PoolServer()
        run = server.folder / "run"
        run.mkdir(mode=0o700)
        mount = f'mount -t tmpfs -o size={size},mode=700 none "$0" && exec "$@"'
        server.prefix = ["unshare", "-m", "sh", "-c", mount, str(run)]
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.close()


def inside(server: PoolServer) -> Path:
    """The run directory as the server sees it: it is in a mount namespace of its own."""
    assert server.pid is not None
    return Path(f"/proc/{server.pid}/root{server.folder / 'run'}")


def fill(run: Path) -> Path:
    """Take all the space that is left."""
    path = run / "filler"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, bytes(4096))
    finally:
        os.close(fd)
    return path


@pytest.mark.parametrize("size", ["4k", "8k", "40k"])
def test_a_start_without_space(
    make_small: Callable[[str], PoolServer],
    toolchain: Toolchain,
    talk: Callable[[list[str], dict[str, str]], Talk],
    size: str,
) -> None:
    """The boards are in their arbiters' memory: a server starts, and says what a session lacks."""
    server = make_small(size)
    server.start()
    filler = fill(inside(server))
    command = [str(toolchain.driver_program("driver_tenant"))]
    refused = talk(command, server.environment("tcp")).finish()
    assert refused.returncode == 1
    (line,) = refused.own_lines()
    assert "no space left in" in line and "free some" in line, line
    filler.unlink()


def test_it_fills_up_while_programs_run(
    make_small: Callable[[str], PoolServer],
    toolchain: Toolchain,
    talk: Callable[[list[str], dict[str, str]], Talk],
) -> None:
    server = make_small("1m")
    server.start()
    command = [str(toolchain.driver_program("driver_tenant"))]
    env = server.environment("tcp")
    program = talk(command, env)
    assert program.line() == "ready"
    filler = fill(inside(server))
    refused = talk(command, env).finish()
    assert refused.returncode == 1
    (line,) = refused.own_lines()
    assert "no space left in" in line and "free some" in line, line
    assert tell(program, "work 20") == "worked 20"
    assert tell(program, "take 8") == "took 8"
    filler.unlink()
    after = talk(command, env)
    assert after.line() == "ready"
    assert tell(after, "work 3") == "worked 3"
    end(after)
    end(program)
    wait_until(lambda: server.sessions() == [], "they were forgotten", PATIENCE)
