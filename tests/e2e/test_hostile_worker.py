"""Somebody's own code in the place of a worker: tries what docs/security.md says it cannot."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from gpupool_server.image_store import ImageStore
from gpupool_server.jail_status import LAYERS
from harness import PEER_KEY, TOKEN, PoolServer, wait_until
from raw_client import ask_for_session
from tenants import MakeServer, Pool, StartTalk, end, tell
from toolchain import Toolchain
from users import UsersServer

HOSTILE = Path(__file__).resolve().parent / "hostile"

#: No layer of the jail: gpupool's processes close themselves to all that may not trace everybody
#: (proto/wire/closed_memory.h).
CLOSED = "closed-memory"

#: What refuses each attack: one of these layers of the jail is enough. An attack without one is
#: refused by nothing but the rights of a user that is not root.
REFUSED_BY = {
    "process-list": {"proc"},
    "process-server-memory": {"pid", "uid", CLOSED},
    "process-neighbour-memory": {"pid", "uid", CLOSED},
    "process-server-environment": {"pid", "uid", CLOSED},
    "process-neighbour-trace": {"pid", "uid", "seccomp", CLOSED},
    "process-neighbour-vm": {"pid", "uid", "seccomp", CLOSED},
    "process-neighbour-mem": {"pid", "uid", CLOSED},
    "process-neighbour-files": {"pid", "uid", CLOSED},
    "process-neighbour-descriptor": {"pid", "uid", "seccomp", CLOSED},
    "process-server-signal": {"pid", "uid"},
    "process-neighbour-signal": {"pid", "uid"},
    "process-parent-signal": {"pid", "uid"},
    "file-secrets": {"root"},
    "file-images": {"root", "uid"},
    "file-others-images": {"root", "uid"},
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
    on = set(match[1].split(",")) if match else set[str]()
    if "capabilities" in on or server.prefix:
        on.add(CLOSED)
    return on


#: What an image is called that is kept.
IMAGE = "a" * 64


def kept_image(run: Path, tenant: str) -> Path:
    """The folder of a tenant, with an image in it, as the server makes them."""
    folder = ImageStore(run / "images", 1 << 30).folder_of(None, tenant)
    (folder / IMAGE).write_bytes(b"image")
    (folder / IMAGE).chmod(0o644)
    return folder


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
        "IMAGES": str(kept_image(run, "default")),
        "OTHERS_IMAGES": str(kept_image(run, "another")),
        "IMAGE": IMAGE,
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
    *("process-server-environment", "process-neighbour-signal", "process-neighbour-trace"),
    *("process-neighbour-vm", "process-neighbour-mem", "process-neighbour-files"),
    *("process-neighbour-descriptor", "file-secrets", "file-images", "file-others-images"),
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
        return self.on(self._make(**settings), listening, shared)

    def on(
        self, server: PoolServer, listening: tuple[int, str], shared: str
    ) -> tuple[dict[str, str], set[str]]:
        """The same on a server that has started."""
        pool = Pool(server, self._toolchain, self._talk)
        neighbour = pool.start("shm")
        assert tell(neighbour, "work 3") == "worked 3"
        (session,) = pool.ask(do="status")["sessions"]
        worker = Path(server.settings["worker"])
        os.replace(compiled(self._folder, aim(server, session, listening, shared)), worker)
        assert ask_for_session(server)["word"] != "ok"
        wait_until(lambda: "attacks over" in server.log.read_text(), "it tried everything")
        assert tell(neighbour, "work 3") == "worked 6"
        end(neighbour)
        return dict(_REPORT.findall(server.log.read_text())), layers_on(server)


def refused_as_promised(found: dict[str, str], on: set[str]) -> None:
    """Every attack was tried, and refused if one of its layers was on."""
    assert found.keys() == REFUSED_BY.keys()
    wrong = {
        name: sorted(layers & on)
        for name, layers in REFUSED_BY.items()
        if layers & on and found[name] != "refused"
    }
    assert not wrong, f"succeeded though these layers are on: {wrong}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that workers' users get to, with a jail's root or without."""
    with tempfile.TemporaryDirectory(prefix="gpe-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def attack(
    make_server: MakeServer,
    toolchain: Toolchain,
    talk: StartTalk,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Attack:
    """On a server that was started, not forked: what it has in its environment is looked for."""
    monkeypatch.delenv("PYTEST_VERSION")
    return Attack(make_server, toolchain, talk, folder)


def test_a_hostile_program_in_a_workers_place(
    attack: Attack, listening: tuple[int, str], shared: str
) -> None:
    found, on = attack.run(listening, shared)
    refused_as_promised(found, on)
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


#: Put in the place of gpupool-jail: one layer is off, as on a host that forbids it.
WITHOUT_LAYER = """#!{python} -IS
import os, sys
given, layer = int(sys.argv[2]), {layer!r}
text = os.fdopen(given, "rb", closefd=False).read()
lines = [line for line in text.splitlines() if not line.startswith({drop!r})]
less = os.memfd_create("less")
os.write(less, b"".join(line + b"\\n" for line in [*lines, b"off " + layer + b" for a test"]))
os.lseek(less, 0, os.SEEK_SET)
os.dup2(less, given)
os.execv({jail!r}, [{jail!r}, *sys.argv[1:]])
"""

#: The lines of a description that a layer's absence contradicts.
OWN_LINES = {"uid": (b"uid ", b"gid "), "seccomp": (b"seccomp ",)}


#: What goes with a layer, and what is off in these tests anyway.
WITH_IT = {
    "mount": ("mount", "root", "devices", "proc"),
    "root": ("root", "devices", "proc"),
}
NOT_HERE = ("user-namespace", "cgroup", "collectives")


def home_without(layer: str, folder: Path) -> Path:
    """An installation whose jails have one layer less."""
    home = folder / "home"
    shutil.copytree(paths.find_home().root, home)
    program = home / "libexec" / "gpupool-jail"
    jail = program.rename(program.with_name("gpupool-jail-whole"))
    drop = (*OWN_LINES.get(layer, ()), b"off " + layer.encode() + b" ")
    program.write_text(
        WITHOUT_LAYER.format(
            python=os.path.realpath(sys.executable),
            layer=layer.encode(),
            drop=drop,
            jail=str(jail),
        )
    )
    program.chmod(0o755)
    return home


@pytest.mark.skipif(os.geteuid() != 0, reason="without root more than one layer is off")
@pytest.mark.parametrize(
    "layer", ["pid", "ipc", "net", "uts", "mount", "root", "rlimits", "uid", "seccomp"]
)
def test_a_jail_that_lacks_one_layer(
    attack: Attack,
    listening: tuple[int, str],
    shared: str,
    layer: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What only that layer refuses may succeed; all else is still refused."""
    whole = paths.find_home()
    monkeypatch.setenv("GPUPOOL_HOME", str(home_without(layer, folder)))
    assert paths.find_home() != whole
    found, on = attack.run(listening, shared)
    assert layer not in on
    assert set(LAYERS) - on == {*WITH_IT.get(layer, (layer,)), *NOT_HERE}
    refused_as_promised(found, on)


#: What one worker can do to another of the same user where both see each other's processes.
SAME_USER = {"process-list", "process-neighbour-signal", "process-server-signal"}


def test_workers_of_one_user_without_a_jail(
    python: str, attack: Attack, listening: tuple[int, str], shared: str
) -> None:
    """A server of a plain user's on a host that allows nothing: the workers' own doing is left."""
    server = UsersServer(python, **{"soft-gpus": "2", "confinement": "off", "data-listen": "none"})
    try:
        worker = server.folder / "worker" / "gpupool-worker"
        worker.parent.mkdir(mode=0o755)
        shutil.copy(paths.find_home().part(paths.WORKER), worker)
        server.settings["worker"] = str(worker)
        server.start()
        found, on = attack.on(server, listening, shared)
        assert on == {CLOSED}
        refused_as_promised(found, on)
        others = {name for name in found if name.startswith("process-")} - SAME_USER
        assert {name for name in others if found[name] == "succeeded"} == {"process-parent-signal"}
    finally:
        server.close()
