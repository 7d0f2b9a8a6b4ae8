"""Ranks that lose a server: all of their processes hear of it, and no GPU stays taken.

Of each server that is lost there are two ranks of one job, and a rank of another job whose second
one is on a server that stays.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fabric import Fabric, missing
from harness import PoolServer, Talk, wait_until
from ports import free_port
from toolchain import Toolchain

#: Nobody waits longer for a machine that says nothing.
SILENCE = "2"
STAYS, LOST = "one", "two"
SOFT_GPUS = {STAYS: "1", LOST: "3"}
NO_ERROR = "NCCL error 0, CUDA error 0"
REMOTE_ERROR = "NCCL error 6, CUDA error 0"

Servers = dict[str, PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]


def server(name: str, **more: str) -> PoolServer:
    """Without a pool no lease joins the jails of two servers."""
    settings = {"soft-gpus": SOFT_GPUS[name], "confinement": "off", "silence-seconds": SILENCE}
    return PoolServer(**{**settings, **more})


def jobs(
    talk: StartTalk, servers: Servers, program: list[str], folder: Path
) -> tuple[list[Talk], Talk]:
    """The ranks on the server that will be lost, and the one that is elsewhere."""

    def rank(job: str, number: int, where: str, device: int) -> Talk:
        more = {"E2E_DEVICE": str(device), "GPUPOOL_SILENCE": SILENCE}
        command = [*program, str(number), str(folder / job), "ends"]
        return talk(command, servers[where].environment("tcp", **more))

    inside = [rank("inside", number, LOST, number) for number in (0, 1)]
    across = [rank("across", 0, STAYS, 0), rank("across", 1, LOST, 2)]
    for one in inside + across:
        assert one.line() == "ready"
    return [*inside, across[1]], across[0]


def told(rank: Talk) -> str:
    """What its error was."""
    result = rank.finish()
    *_, error, passed = result.stdout.splitlines()
    assert passed == "PASS nccl_ranks", result.explain()
    return error


def has_no_worker(server: PoolServer) -> bool:
    return server.worker_pids() == []


def all_end(servers: Servers, lost: list[Talk], other: Talk) -> None:
    assert told(other) == REMOTE_ERROR
    for one in lost:
        assert told(one) != NO_ERROR
    for each in servers.values():
        wait_until(partial(has_no_worker, each), "all sessions end")


def test_a_server_that_is_killed(toolchain: Toolchain, talk: StartTalk, tmp_path: Path) -> None:
    """With its workers, as a machine ends that loses its power."""
    with ExitStack() as stack:
        servers = {name: server(name) for name in SOFT_GPUS}
        for each in servers.values():
            stack.callback(each.close)
            each.start()
        program = str(toolchain.driver_program("nccl_ranks"))
        lost, other = jobs(talk, servers, [program], tmp_path)
        servers[LOST].kill()
        for pid in servers[LOST].worker_pids():
            os.kill(pid, signal.SIGKILL)
        all_end(servers, lost, other)
        assert servers[STAYS].sessions() == []


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    one = Fabric(sys.executable, STAYS, LOST, "programs")
    yield one
    one.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make interfaces")
@pytest.mark.skipif(os.geteuid() == 0 and bool(missing()), reason=missing() or "not root")
def test_a_network_that_is_cut(
    toolchain: Toolchain, talk: StartTalk, fabric: Fabric, tmp_path: Path
) -> None:
    """Nothing ends and nothing is refused: there is no word any more from there."""
    with ExitStack() as stack:
        servers = {}
        for number, (name, host) in enumerate(fabric.hosts.items(), 1):
            address = f"10.77.0.{number}"
            host.do(f"ip addr add {address}/24 dev fabric0")
            if name not in SOFT_GPUS:
                continue
            each = servers[name] = server(name, **{"data-listen": f"tcp://{address}:*"})
            stack.callback(each.close)
            each.prefix = host.enter
            each.url = each.address = f"tcp://{address}:{free_port()}"
            each.start()
        program = [*fabric.hosts["programs"].enter, str(toolchain.driver_program("nccl_ranks"))]
        lost, other = jobs(talk, servers, program, tmp_path)
        fabric.cut(LOST)
        all_end(servers, lost, other)
