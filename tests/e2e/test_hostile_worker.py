"""Somebody's own code in the place of a worker: tries what docs/security.md says it cannot."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PEER_KEY, TOKEN, PoolServer, wait_until
from raw_client import ask_for_session
from tenants import MakeServer, Pool, StartTalk, end, tell
from toolchain import Toolchain

HOSTILE = Path(__file__).resolve().parent / "hostile"

#: What refuses each attack: one of these layers of the jail is enough. An attack without one is
#: refused by nothing but the rights of a user that is not root.
REFUSED_BY = {
    "process-list": {"pid", "proc"},
    "process-server-memory": {"pid", "uid"},
    "process-neighbour-memory": {"pid", "uid"},
    "process-server-environment": {"pid", "uid"},
    "process-neighbour-trace": {"pid", "uid"},
    "process-server-signal": {"pid", "uid"},
    "process-neighbour-signal": {"pid", "uid"},
    "process-parent-signal": {"pid", "uid"},
    "file-secrets": {"root"},
    "file-environment": {"environment"},
    "file-neighbour-session": {"root"},
    "file-server-log": {"root"},
    "file-program": {"root"},
    "file-homes": {"root"},
    "file-shared-memory": {"root"},
    "file-devices": {"devices"},
    "file-make-device": {"capabilities"},
    "file-descriptors": {"descriptors"},
    "file-kernel-settings": {"proc", "uid"},
    "socket-front-end": {"net"},
    "socket-other-port": {"net"},
    "socket-listen": {"net"},
    "socket-raw": {"capabilities"},
    "socket-admin": {"root"},
    "socket-neighbour-control": {"root"},
    "socket-arbiter": {"root"},
    "socket-abstract": {"net"},
    "socket-system": {"root"},
    "kernel-is-root": {"uid"},
    "kernel-become-root": {"no-new-privs", "capabilities"},
    "kernel-capabilities": {"capabilities"},
    "kernel-new-privileges": {"no-new-privs"},
    "kernel-mount": {"capabilities"},
    "kernel-mount-tree": {"capabilities"},
    "kernel-namespaces": {"seccomp"},
    "kernel-join-namespace": {"capabilities"},
    "kernel-change-root": {"capabilities"},
    "kernel-modules": {"capabilities", "seccomp"},
    "kernel-bpf": {"seccomp"},
    "kernel-perf": {"seccomp"},
    "kernel-keys": {"seccomp"},
    "kernel-io-uring": {"seccomp"},
    "kernel-page-faults": {"seccomp"},
    "kernel-file-handles": {"capabilities", "seccomp"},
    "kernel-reboot": {"capabilities"},
    "kernel-clock": {"capabilities", "seccomp"},
    "kernel-host-name": {"capabilities"},
    "resource-processes": {"seccomp"},
    "resource-shell": {"root", "seccomp"},
    "resource-disk": {"root"},
    "resource-real-time": {"capabilities"},
    "resource-priority": {"capabilities"},
    "resource-core-file": {"rlimits"},
    "exec": set[str](),  # the worker itself forbids it, once it runs
}

_REPORT = re.compile(r"attack ([a-z-]+) (succeeded|refused) ")


@pytest.fixture
def listening() -> Iterator[tuple[int, str]]:
    """Somebody else on this machine: a port and an abstract socket."""
    name = f"gpupool-test-{os.getpid()}"
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as named:
        port.bind(("127.0.0.1", 0))
        port.listen()
        named.bind("\0" + name)
        named.listen()
        yield int(port.getsockname()[1]), name


@pytest.fixture
def shared() -> Iterator[str]:
    """A file in /dev/shm of somebody else's."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="gpupool-test-") as file:
        yield Path(file.name).name


def compiled(to: Path, targets: dict[str, str | int]) -> Path:
    """The hostile program, aimed at these; it needs no library of the machine's."""
    header = to / "aim.h"
    lines = [
        f"#define TARGET_{name} " + (str(value) if isinstance(value, int) else f'"{value}"')
        for name, value in targets.items()
    ]
    header.write_text("\n".join(lines) + "\n")
    program = to / "hostile"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-static"]
    sources = [str(path) for path in sorted(HOSTILE.glob("*.c"))]
    subprocess.run(["cc", *flags, "-include", header, "-o", program, *sources], check=True)
    program.chmod(0o755)
    return program


def layers_on(server: PoolServer) -> set[str]:
    """As the server said at its start."""
    match = re.search(r"workers are confined.* on='?([a-z,-]+)", server.log.read_text())
    return set(match[1].split(",")) if match else set()


def aim(
    server: PoolServer, neighbour: dict[str, object], listening: tuple[int, str], shared: str
) -> dict[str, str | int]:
    run = server.folder / "run"
    port, name = listening
    version = subprocess.run(
        [server.home.part(paths.WORKER), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "VERSION": version.stdout.strip(),
        "SERVER": server.pid or 0,
        "NEIGHBOUR": int(str(neighbour["pid"])),
        "NEIGHBOUR_SESSION": str(neighbour["session"]),
        "RUN": str(run),
        "LOG": str(server.log),
        "DRIVER": str(server.home.part(paths.SOFT_GPU)),
        "SECRETS": str(PEER_KEY),
        "TOKEN": TOKEN,
        "SHARED": shared,
        "PORT": int(server.url.rpartition(":")[2]),
        "OTHER_PORT": port,
        "ADMIN": str(run / "admin.sock"),
        "ABSTRACT": name,
    }


#: What nothing refuses where there is no jail and the server is root: the attacks are real.
WITHOUT_A_JAIL = {
    *("process-list", "process-server-memory", "process-neighbour-memory"),
    *("process-server-environment", "process-neighbour-signal", "file-secrets"),
    *("file-neighbour-session", "file-server-log", "file-program"),
    *("file-shared-memory", "socket-front-end", "socket-other-port", "socket-listen"),
    *("socket-admin", "socket-neighbour-control", "socket-arbiter", "socket-abstract"),
    "kernel-is-root",
    *("kernel-capabilities", "kernel-new-privileges", "kernel-change-root"),
    *("resource-processes", "resource-shell", "resource-disk", "exec"),
}


class Attack:
    """A server whose next worker is the hostile program, and a neighbour that works on."""

    def __init__(
        self, make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, folder: Path
    ) -> None:
        folder.chmod(0o755)  # a worker's user is another
        self._worker = folder / "gpupool-worker"
        self._folder = folder
        self._make = make_server
        self._toolchain, self._talk = toolchain, talk

    def run(
        self, listening: tuple[int, str], shared: str, **settings: str
    ) -> tuple[dict[str, str], set[str]]:
        """What became of each attack, and the layers that were on."""
        shutil.copy(paths.find_home().part(paths.WORKER), self._worker)
        settings |= {"soft-gpus": "2", "worker": str(self._worker), "data-listen": "none"}
        server = self._make(**settings)
        pool = Pool(server, self._toolchain, self._talk)
        neighbour = pool.start("shm")
        assert tell(neighbour, "work 3") == "worked 3"
        (session,) = pool.ask(do="status")["sessions"]
        os.replace(compiled(self._folder, aim(server, session, listening, shared)), self._worker)
        assert ask_for_session(server)["word"] != "ok"
        wait_until(lambda: "attacks over" in server.log.read_text(), "it tried everything")
        assert tell(neighbour, "work 3") == "worked 6"
        end(neighbour)
        return dict(_REPORT.findall(server.log.read_text())), layers_on(server)


@pytest.fixture
def attack(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> Attack:
    return Attack(make_server, toolchain, talk, tmp_path)


def test_a_hostile_program_in_a_workers_place(
    attack: Attack, listening: tuple[int, str], shared: str
) -> None:
    found, on = attack.run(listening, shared)
    assert found.keys() == REFUSED_BY.keys()
    wrong = {
        name: sorted(layers & on)
        for name, layers in REFUSED_BY.items()
        if layers & on and found[name] != "refused"
    }
    assert not wrong, f"succeeded though these layers are on: {wrong}"
    if missing := {"root", "pid", "uid", "net", "capabilities", "no-new-privs"} - on:
        pytest.skip(f"this machine allows no layers {', '.join(sorted(missing))}")


@pytest.mark.skipif(os.geteuid() != 0, reason="the attacks that need root are not refused by it")
def test_the_same_program_without_a_jail(
    attack: Attack, listening: tuple[int, str], shared: str
) -> None:
    """An attack that cannot succeed would prove nothing."""
    found, on = attack.run(listening, shared, confinement="off")
    assert not on
    assert {name for name in WITHOUT_A_JAIL if found[name] != "succeeded"} == set()
