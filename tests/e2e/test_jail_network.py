"""The network of a jailed worker: none, unless its client needs ZeroMQ."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PoolServer, Talk
from jail_harness import PYTHON
from test_jail import confinement
from toolchain import Toolchain

StartTalk = Callable[[list[str], dict[str, str]], Talk]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make every layer")

TRY = r"""
import errno, socket, sys
for address in (("192.0.2.1", 9), ("127.0.0.1", int(sys.argv[1]))):
    try:
        socket.create_connection(address, 2)
    except OSError as error:
        print(errno.errorcode[error.errno or 0])
"""


def reached_from(pid: int, port: int) -> list[str]:
    """What becomes of connections to another machine and to this one, in its network."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", PYTHON, "-c", TRY, str(port)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def links_of(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def held_over(
    server: PoolServer, talk: StartTalk, toolchain: Toolchain, way: str
) -> tuple[Talk, int, str]:
    """A program with a session, its worker, and what is said of its layer `net`."""
    before = set(server.worker_pids())
    program = talk([str(toolchain.runtime_program("hold"))], server.environment(way))
    assert program.line() == "ready"
    (worker,) = set(server.worker_pids()) - before
    (session,) = (each for each in server.sessions() if each["pid"] == worker)
    return program, worker, str(session["confinement"]["net"])


def test_a_worker_serves_tcp_without_a_network(
    server: PoolServer, talk: StartTalk, toolchain: Toolchain
) -> None:
    """One over ZeroMQ is in the host's beside it, though both are of one tenant."""
    port = int(server.url.rpartition(":")[2])
    other, over_zmq, net = held_over(server, talk, toolchain, "zmq")
    assert net.startswith("off: ") and "ZeroMQ" in net
    ours, its = (os.readlink(f"/proc/{pid}/ns/net") for pid in (os.getpid(), over_zmq))
    assert its == ours  # of which the tests beside this one make and remove links
    program, worker, net = held_over(server, talk, toolchain, "tcp")
    assert net == "on"
    assert links_of(worker) == {"lo"}
    assert reached_from(worker, port) == ["ENETUNREACH", "ECONNREFUSED"]
    assert confinement(server)["net"] == "on"
    for one in (program, other):
        one.say("go")
        assert one.line().startswith("step")
        one.close()
