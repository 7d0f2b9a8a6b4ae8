"""Ranks that are killed, or lose a server: all processes hear of it, and no GPU stays taken.

Of the server where it happens there are two ranks of one job, and a rank of another job whose
second one is on a server that stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fabric import Fabric, missing
from gpupool_common import paths
from harness import PoolServer, Talk, wait_until
from ports import free_port
from toolchain import Toolchain

#: Nobody waits longer for a machine that says nothing.
SILENCE = "2"
STAYS, LOST = "one", "two"
SOFT_GPUS = {STAYS: "1", LOST: "3"}
NO_ERROR = "NCCL error 0, CUDA error 0"
REMOTE_ERROR = "NCCL error 6, CUDA error 0"

StartTalk = Callable[[list[str], dict[str, str]], Talk]


def no_fabric() -> str:
    """Why all of this machine is one host; empty: it can be several."""
    return missing() if os.geteuid() == 0 else "only root may make interfaces"


class Hosts:
    """Two servers and where programs are: hosts of their own, where this machine can have some."""

    def __init__(self, stack: ExitStack) -> None:
        self.fabric: Fabric | None = None
        self.enter: list[str] = []
        self.servers: dict[str, PoolServer] = {}
        if not no_fabric():
            self.fabric = Fabric(sys.executable, STAYS, LOST, "programs")
            stack.callback(self.fabric.close)
        for number, name in enumerate((STAYS, LOST, "programs"), 1):
            address = f"10.77.0.{number}" if self.fabric else "127.0.0.1"
            self.enter = []
            if self.fabric:
                self.fabric.hosts[name].do(f"ip addr add {address}/24 dev fabric0")
                self.enter = self.fabric.hosts[name].enter
            if name in SOFT_GPUS:
                self.servers[name] = self._server(name, address)
                stack.callback(self.servers[name].close)
                self.servers[name].start()

    def _server(self, name: str, address: str) -> PoolServer:
        """Without a pool no lease joins the jails of two servers."""
        settings = {"confinement": "off", "silence-seconds": SILENCE}
        settings |= {"soft-gpus": SOFT_GPUS[name], "data-listen": f"tcp://{address}:*"}
        server = PoolServer(**settings)
        server.prefix = self.enter
        server.url = server.address = f"tcp://{address}:{free_port()}"
        return server


@pytest.fixture(scope="module")
def hosts(home: paths.Home) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack)


class Wire:
    """What the interfaces of the hosts have carried since this was made."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._before = self._read()

    def _read(self) -> Counter[tuple[str, str]]:
        found = Counter[tuple[str, str]]()
        for name, host in self._fabric.hosts.items():
            show = [*host.enter, *["ip", "-s", "-j", "link", "show", "fabric0"]]
            stats = json.loads(subprocess.check_output(show))[0]["stats64"]
            found |= {(name, way): stats[way]["bytes"] for way in ("rx", "tx")}
        return found

    def carried(self) -> tuple[int, int]:
        """Bytes between the servers, and of the programs."""
        now = self._read()
        now.subtract(self._before)
        clients = now["programs", "rx"] + now["programs", "tx"]
        return now[STAYS, "tx"] + now[LOST, "tx"] - now["programs", "rx"], clients


def test_no_bytes_of_a_collective_pass_a_client(
    toolchain: Toolchain, talk: StartTalk, hosts: Hosts, tmp_path: Path
) -> None:
    if hosts.fabric is None:
        pytest.skip(no_fabric())
    wire = Wire(hosts.fabric)
    program = [*hosts.enter, str(toolchain.driver_program("nccl_ranks"))]
    ranks = [
        talk([*program, str(rank), str(tmp_path / "job"), "warm"], server.environment("tcp"))
        for rank, server in enumerate(hosts.servers.values())
    ]
    for rank in ranks:
        result = rank.finish()
        assert result.stdout == "PASS nccl_ranks\n", result.explain()
    between, clients = wire.carried()
    reduced = 2 * 200 * 4000  # both ways: nccl_ranks.c's WARM times COUNT floats
    assert between >= reduced and clients < reduced / 4, (between, clients)


def jobs(
    talk: StartTalk, toolchain: Toolchain, hosts: Hosts, folder: Path
) -> tuple[list[Talk], Talk]:
    """The ranks on the server that will be lost, and the one that is elsewhere."""
    program = [*hosts.enter, str(toolchain.driver_program("nccl_ranks"))]

    def rank(job: str, number: int, where: str, device: int) -> Talk:
        more = {"E2E_DEVICE": str(device), "GPUPOOL_SILENCE": SILENCE}
        command = [*program, str(number), str(folder / job), "ends"]
        return talk(command, hosts.servers[where].environment("tcp", **more))

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


def all_end(hosts: Hosts, lost: list[Talk], other: Talk) -> None:
    assert told(other) == REMOTE_ERROR
    for one in lost:
        assert told(one) != NO_ERROR
    for server in hosts.servers.values():
        wait_until(partial(has_no_worker, server), "all sessions end")


def test_ranks_that_are_killed(
    toolchain: Toolchain, talk: StartTalk, hosts: Hosts, tmp_path: Path
) -> None:
    """One of a job on one host, and one of a job on two: the other one of each is told."""
    (killed, left, far), other = jobs(talk, toolchain, hosts, tmp_path)
    for rank in (killed, far):
        rank.process.kill()
    for rank in (left, other):
        assert told(rank) == REMOTE_ERROR
    for server in hosts.servers.values():
        wait_until(partial(has_no_worker, server), "all sessions end")


def test_a_network_that_is_cut(
    toolchain: Toolchain, talk: StartTalk, hosts: Hosts, tmp_path: Path
) -> None:
    """Nothing ends and nothing is refused: there is no word any more from there."""
    if hosts.fabric is None:
        pytest.skip(no_fabric())
    lost, other = jobs(talk, toolchain, hosts, tmp_path)
    hosts.fabric.cut(LOST)
    all_end(hosts, lost, other)
    hosts.fabric.mend(LOST)


def test_a_server_that_is_killed(
    toolchain: Toolchain, talk: StartTalk, hosts: Hosts, tmp_path: Path
) -> None:
    """With its workers, as a machine ends that loses its power. It is the last test for that."""
    lost, other = jobs(talk, toolchain, hosts, tmp_path)
    hosts.servers[LOST].kill()
    for pid in hosts.servers[LOST].worker_pids():
        os.kill(pid, signal.SIGKILL)
    all_end(hosts, lost, other)
