"""Control groups of workers on a host that delegates: what the kernel makes of the limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from gpupool_server import cgroups
from gpupool_server.cgroups import CONTROLLERS, Cgroups
from gpupool_server.config import load_settings
from harness import PATIENCE, PoolServer, wait_until
from jail_harness import Starter
from tenants import MakeServer, StartTalk
from toolchain import Toolchain
from users import SERVER, UsersServer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may delegate")

MIB = 1 << 20


def hierarchy() -> Path | None:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found = [Path(line.split()[1]) for line in mounts if line.split()[2] == "cgroup2"]
    return found[0] if found else None


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that is delegated to the tests, with nothing in it."""
    root = hierarchy()
    if root is None:
        pytest.skip("no cgroup v2 is mounted here")
    made = root / f"gpupool-tests-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"{root} gives nobody here a group: {error.strerror}")
    try:
        given = (made / "cgroup.controllers").read_text().split()
        if lacking := [name for name in CONTROLLERS if name not in given]:
            pytest.skip(f"the layer cgroup: {root} has no {', '.join(lacking)} to give")
        yield made
    finally:
        for group in sorted(made.glob("*/"), reverse=True):
            remove(group)
        made.rmdir()


def remove(group: Path) -> None:
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
    group.rmdir()


@pytest.fixture
def starter(tmp_path: Path, home: paths.Home) -> Iterator[Starter]:
    one = Starter(tmp_path, home)
    yield one
    one.close()


def group_of(folder: Path, memory: int = 0) -> Path:
    groups = Cgroups(load_settings(None, {"cgroup": str(folder)}))
    made, why = groups.make("test", memory)
    assert made is not None, why
    return made


def events(group: Path, file: str) -> dict[str, int]:
    lines = (group / file).read_text().splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def test_memory_ends_who_takes_more(
    folder: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "OVERHEAD", 64 * MIB)
    group = group_of(folder, memory=32 * MIB)
    within = starter.look("print(len(bytearray(48 << 20)))", f"cgroup {group}")
    assert within.report.layers["cgroup"] == "on" and within.seen() == 48 * MIB
    beyond = starter.look("bytearray(b'x') * (192 << 20); print(1)", f"cgroup {group}")
    assert beyond.wait() == -signal.SIGKILL
    assert events(group, "memory.events")["oom_kill"] >= 1
    # What is in /dev/shm and /tmp of the jail is charged to it, too.
    code = "open('/dev/shm/x', 'wb').write(bytes(192 << 20)); print(1)"
    assert starter.look(code, f"cgroup {group}").wait() == -signal.SIGKILL


def test_no_more_threads_than_it_may_have(
    folder: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "PROCESSES", 16)
    group = group_of(folder, memory=1 << 30)
    code = (
        "import threading\n"
        "stop, made = threading.Event(), []\n"
        "try:\n"
        "    for _ in range(100):\n"
        "        made.append(threading.Thread(target=stop.wait))\n"
        "        made[-1].start()\n"
        "except RuntimeError:\n"
        "    made.pop()\n"
        "stop.set()\n"
        "print(len(made))"
    )
    assert starter.look(code, f"cgroup {group}").seen() == 15
    assert events(group, "pids.events")["max"] >= 1


def worker_group(folder: Path, server: PoolServer) -> tuple[Path, int]:
    (pid,) = server.worker_pids()
    (group,) = folder.glob("gpupool-*")
    assert (group / "cgroup.procs").read_text().split() == [str(pid)]
    return group, pid


def test_every_layer_is_on_and_required(
    folder: Path, make_server: MakeServer, talk: StartTalk, toolchain: Toolchain
) -> None:
    server = make_server(
        **{"data-listen": "none", "cgroup": str(folder), "confinement": "required"}
    )
    program = talk([str(toolchain.runtime_program("hold"))], server.environment("shm"))
    assert program.line() == "ready"
    group, _ = worker_group(folder, server)
    budget: dict[str, Any] = {}

    def told() -> bool:
        budget.update(server.sessions()[0]["budgets"])
        return "host_memory" in budget

    wait_until(told, "its worker said what it may have")
    kept = sum(budget[name]["limit"] for name in ("host_memory", "pinned_memory"))
    assert int((group / "memory.max").read_text()) == kept + cgroups.OVERHEAD
    assert (group / "pids.max").read_text() == f"{cgroups.PROCESSES}\n"
    swap = group / cgroups.SWAP
    assert not swap.exists() or swap.read_text() == "0\n"
    assert (group / "cpu.weight").read_text() == f"{cgroups.WEIGHT}\n"
    program.close()
    wait_until(lambda: not group.exists(), "the group went with its worker", PATIENCE)


def test_a_plain_users_server_with_a_folder_of_its_own(
    folder: Path, python: str, talk: StartTalk, toolchain: Toolchain
) -> None:
    """As systemd delegates it: the server is in a group below, and owns the files that count."""
    own = folder / "server"
    own.mkdir()
    for at in (folder, own):
        for path in (at, at / "cgroup.procs", at / "cgroup.subtree_control", at / "cgroup.threads"):
            os.chown(path, SERVER, SERVER)
    server = UsersServer(python, **{"data-listen": "none", "cgroup": str(folder)})
    server.prefix = ["sh", "-c", f'echo $$ > {own}/cgroup.procs; exec "$@"', "sh", *server.prefix]
    try:
        server.start()
        program = talk([server.program(toolchain, "driver_tenant")], server.environment("shm"))
        assert program.line() == "ready"
        group, pid = worker_group(folder, server)
        assert os.stat(group).st_uid == SERVER == os.stat(f"/proc/{pid}").st_uid
        assert (group / "pids.max").read_text() == f"{cgroups.PROCESSES}\n"
        program.close()
        wait_until(lambda: not group.exists(), "the group went with its worker", PATIENCE)
    finally:
        server.close()
