"""A lease over two servers of a pool: its workers reach each other over the interfaces that the
servers' operators have chosen, and no other lease's do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabric import Fabric, missing
from gpupool_common import paths
from harness import PoolServer
from pool_site import Site
from raw_client import ask_for_session
from toolchain import Toolchain

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make interfaces"),
    pytest.mark.skipif(os.geteuid() == 0 and bool(missing()), reason=missing() or "not root"),
]

NETWORK = "fd00:67:71::/64"


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    one = Fabric(sys.executable)
    yield one
    one.close()


def configuration(to: Path, interface: str) -> str:
    to.write_text(f'[collectives.interfaces]\n{interface} = "{NETWORK}"\n')
    return str(to)


@pytest.fixture(scope="module")
def site(
    home: paths.Home,
    toolchain: Toolchain,
    fabric: Fabric,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """Two servers that stand for two hosts: each has an interface of its own on one Ethernet."""
    found = Site(home, toolchain)
    folder = tmp_path_factory.mktemp("site")
    try:
        found.manager.start()
        found.red = found.manager.tenant("red")
        for name in ("one", "two"):
            interface = fabric.attach(f"gp{name}{os.getpid() % 10**7}")
            config = configuration(folder / f"{name}.toml", interface)
            found.add(name, **{"config": config, "data-listen": "none", "no-tcp": ""})
        found.manager.wait_for("one", "two")
        yield found
    finally:
        found.close()


def worker_of(server: PoolServer, token: str) -> int:
    """Of a new session."""
    before = set(server.worker_pids())
    assert ask_for_session(server, token)["word"] == "ok"
    (pid,) = set(server.worker_pids()) - before
    return pid


def layer_of(server: PoolServer, pid: int) -> str:
    """What has become of the profile in a worker's jail."""
    texts = (path.read_text() for path in (server.folder / "run/sessions").glob("*/meta.json"))
    (found,) = [meta["confined"]["layers"] for meta in map(json.loads, texts) if meta["pid"] == pid]
    return str(found["collectives"])


def inside(pid: int, code: str) -> subprocess.Popen[str]:
    """A program in the network of a worker."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "--", sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


OWN = r"""
import socket
for line in open("/proc/net/if_inet6"):
    digits, _, _, _, _, name = line.split()
    if name != "lo":
        print(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
"""
LISTEN = r"""
import socket
with socket.create_server(("::", 7000), family=socket.AF_INET6) as door:
    print("ready", flush=True)
    connection, who = door.accept()
    connection.sendall(who[0].encode())
    connection.close()
"""
CONNECT = r"""
import socket, sys
try:
    with socket.create_connection(("ADDRESS", 7000), timeout=SECONDS) as one:
        print(one.recv(100).decode())
except OSError as error:
    print("nobody:", error)
"""


def said(program: subprocess.Popen[str]) -> str:
    return program.communicate(timeout=120)[0].strip()


def asked(pid: int, address: str, seconds: int) -> str:
    code = CONNECT.replace("ADDRESS", address).replace("SECONDS", str(seconds))
    return said(inside(pid, code))


def test_workers_of_one_lease_reach_each_other_and_those_of_others_do_not(site: Site) -> None:
    leases = [site.ask(gpus=4, share_permille=200, memory_bytes=32 << 20) for _ in range(2)]
    one, two = site.servers["one"], site.servers["two"]
    mine, theirs = (
        [worker_of(server, lease["token"]) for server in (one, two)] for lease in leases
    )
    for server, worker in zip((one, two), mine, strict=True):
        assert layer_of(server, worker) == "on"
    address, other = (said(inside(workers[1], OWN)) for workers in (mine, theirs))
    assert address.startswith("fd00:67:71:") and other.startswith("fd00:67:71:")
    listening = inside(mine[1], LISTEN)
    try:
        assert listening.stdout is not None and listening.stdout.readline() == "ready\n"
        assert asked(theirs[0], address, 2).startswith("nobody:")
        assert asked(mine[0], other, 2).startswith("nobody:")
        assert asked(mine[0], address, 60) == said(inside(mine[0], OWN))
    finally:
        listening.kill()
        listening.communicate()


def test_a_lease_on_one_host_has_no_interface(site: Site) -> None:
    lease = site.ask(gpus=1)
    (where,) = lease["servers"]
    server = site.servers[where["node"]]
    worker = worker_of(server, lease["token"])
    assert said(inside(worker, OWN)) == ""
    assert layer_of(server, worker) == "off: the lease is of this host alone"


def doctor(folder: Path, interface: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpupool_server", "doctor", "--driver", "soft", *more]
    command += ["--config", configuration(folder / "server.toml", interface)]
    command += ["--listen", f"ipc://{folder}/front", "--data-listen", "none"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_doctor_tries_it(fabric: Fabric, tmp_path: Path) -> None:
    interface = fabric.attach(f"gpd{os.getpid() % 10**7}")
    assert "  collectives      on" in doctor(tmp_path, interface).stdout.splitlines()
    without = doctor(tmp_path, "nowhere0")
    assert "  collectives      OFF  the interface nowhere0 is none of this" in without.stdout


def test_a_server_that_must_confine_does_not_start_without(tmp_path: Path) -> None:
    server = PoolServer(
        **{"config": configuration(tmp_path / "server.toml", "nowhere0"), "data-listen": "none"},
        confinement="required",
    )
    with pytest.raises(AssertionError, match=r"'collectives' is off: the interface nowhere0"):
        server.start()
    server.close()
