"""Whatever a session takes too much of, it alone is refused, and its neighbour works on.

Each test floods one budget beside a victim. Counts and results are compared, never times.
"""

from __future__ import annotations

import errno
import os
import struct
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE, Talk, wait_until
from ports import free_port
from raw_client import NUMBERS, RawClient, ask_for_session, connected, with_context
from tenants import BLUE, MIB, RED, MakeServer, Pool, StartTalk, configured, end, tell
from toolchain import Toolchain

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
WHERE = f"http://127.0.0.1:{free_port()}"

#: So much that a session works, and a flood is over soon. Copies of a session over shared memory
#: go through 48 MiB that are pinned.
TIGHT = {
    "max-sessions": "24",
    "session-host-memory": "64MiB",
    "session-pinned-memory": "80MiB",
    "session-shares": "20",
    "session-log-lines": "100",
    "session-disk": "16MiB",
    "metrics-listen": WHERE,
}
ARENA = 48 * MIB


class Scene(Pool):
    """A server with tight budgets, a victim (red), and whoever attacks (blue)."""

    worked = 0

    def begin(self) -> None:
        self.victim = self.start("shm", **RED)

    def still_works(self) -> None:
        """The victim makes progress, and its results are right."""
        assert tell(self.victim, "work 20") == f"worked {self.worked + 20}"
        self.worked += 20
        for name, each in self.budgets("red").items():
            assert each["refused"] == 0, f"the victim was refused {name}"

    def budgets(self, tenant: str) -> dict[str, Any]:
        found: dict[str, Any] = self.told()["budgets"].get(tenant, {})
        return found

    def hoard(self, transport: str = "shm") -> Talk:
        program = self._talk(
            self.program("driver_hoard"), self.server.environment(transport, **BLUE)
        )
        assert program.line() == "ready"
        return program

    def metric(self, name: str, *labels: str) -> float:
        with urllib.request.urlopen(f"{WHERE}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = (
            line.rpartition(" ")[2]
            for line in lines
            if line.startswith(name + "{") and all(label in line for label in labels)
        )
        return float(value)


@pytest.fixture
def scene(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> Iterator[Scene]:
    scene = Scene(configured(make_server, tmp_path, **TIGHT), toolchain, talk)
    scene.begin()
    scene.still_works()
    yield scene
    scene.still_works()
    end(scene.victim)


def test_pinned_memory(scene: Scene) -> None:
    attacker = scene.hoard()
    has, error = tell(attacker, "pinned 100 4096").removeprefix("has ").split(", ")
    assert error == OUT_OF_MEMORY and int(has) == (80 * MIB - ARENA) // (4 * MIB)
    scene.still_works()
    kept = scene.budgets("blue")["pinned_memory"]
    assert kept["used"] == 80 * MIB and kept["refused"] == 1
    # The session goes on, and has again what it gives back.
    assert tell(attacker, "work") == "works" and tell(attacker, "free") == "freed"
    wait_until(lambda: scene.budgets("blue")["pinned_memory"]["used"] == ARENA, "it was given back")
    assert tell(attacker, "pinned 1 4096") == "has 1, CUDA_SUCCESS"
    log, said = scene.server.log, "of the 80 MiB of pinned memory that it may have"
    wait_until(lambda: said in log.read_text(), "it was said")  # by the worker, to the server
    assert log.read_text().count("session-pinned-memory") == 1, "one line, however often"
    end(attacker)


def test_memory_that_is_pinned_at_once(scene: Scene) -> None:
    """One file of memory as large as all machines together: nothing of it is pinned."""
    attacker = scene.hoard()
    assert tell(attacker, f"pinned 1 {1 << 30}") == f"has 0, {OUT_OF_MEMORY}"
    assert tell(attacker, "work") == "works"
    end(attacker)


def test_shares(scene: Scene) -> None:
    """Each is a mapping of the worker's, of which a process has only so many."""
    attacker = scene.hoard()
    assert tell(attacker, "pinned 100 4") == f"has 19, {OUT_OF_MEMORY}"
    kept = scene.budgets("blue")["shares"]
    assert (kept["used"], kept["refused"]) == (20, 1)
    assert tell(attacker, "work") == "works"
    end(attacker)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_images_that_stay_loaded(scene: Scene, transport: str) -> None:
    """The driver keeps a copy of each that it has loaded."""
    attacker = scene.hoard(transport)
    has, error = tell(attacker, "modules 100 4096").removeprefix("has ").split(", ")
    assert error == OUT_OF_MEMORY and 8 <= int(has) <= 16, error
    scene.still_works()
    assert int(has) * 4 * MIB < scene.budgets("blue")["host_memory"]["used"] <= 64 * MIB
    assert tell(attacker, "free") == "freed"
    wait_until(lambda: scene.budgets("blue")["host_memory"]["used"] < 16 * MIB, "it came back")
    assert tell(attacker, "modules 1 4096") == "has 1, CUDA_SUCCESS"
    end(attacker)


def refused_images(client: RawClient, count: int) -> None:
    """Images that no session may have: the worker says so each time."""
    fixed = struct.pack("<IIQQII", 32, 0, 1 << 50, 0, 8, 8)
    body = fixed + bytes(32) + bytes(8)
    for _ in range(0, count, 500):
        client.send([client.message(NUMBERS["gp_image_put"], body, flags=0) for _ in range(500)])


def test_log_lines(scene: Scene) -> None:
    with connected(scene.server, token="token-of-blue") as attacker:
        with_context(attacker)
        refused_images(attacker, 3000)  # it reads no answers, so not all are looked at

        def flooded() -> bool:
            kept = scene.budgets("blue")["log_lines"]
            return bool(kept["refused"] > 100)

        wait_until(flooded, "lines were dropped")
        scene.still_works()
        session = attacker.session["session"]
        labels = (f'session="{session}"', 'tenant="blue"', 'resource="log_lines"')
        assert scene.metric("gpupool_session_budget_refused_total", *labels) > 100
        assert scene.metric("gpupool_session_budget_limit", *labels) == 100
    wait_until(lambda: "lines were dropped" in scene.server.log.read_text(), "it was said")
    lines = scene.server.log.read_text().splitlines()
    of_worker = [line for line in lines if session in line and "an image of" in line]
    assert 0 < len(of_worker) <= 100


def test_sessions_whose_programs_never_come(scene: Scene) -> None:
    # At once, and few: a worker waits for ten seconds, and all are to wait together.
    with ThreadPoolExecutor(10) as threads:
        asked = [
            threads.submit(ask_for_session, scene.server, token="token-of-blue") for _ in range(10)
        ]
        answers = [each.result() for each in asked]
    refused = [each for each in answers if each["word"] == "refused"]
    assert len(answers) - len(refused) == 6, "a quarter of max_sessions"
    assert {each["code"] for each in refused} == {"busy"}
    kept = scene.budgets("blue")["pending"]
    assert (kept["used"], kept["limit"]) == (6, 6) and kept["refused"] >= 4
    # Another tenant's programs begin all the same.
    assert scene.run("shm", "driver_memory", **RED).returncode == 0


def test_one_tenant_does_not_take_all_sessions(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> None:
    """Red is said to have 4; blue, of whom nothing is said, leaves a quarter to others."""
    server = configured(make_server, tmp_path, **{"max-sessions": "8"})
    pool = Pool(server, toolchain, talk)
    clients = []
    for _ in range(6):
        clients.append(connected(server, token="token-of-blue"))
        with_context(clients[-1])
    refused = ask_for_session(server, token="token-of-blue")
    assert (refused["code"], "6 of 6 sessions" in refused["message"]) == ("over-quota", True)
    kept = pool.ask(do="status")["budgets"]["blue"]["sessions"]
    assert (kept["used"], kept["limit"]) == (6, 6) and kept["refused"] > 0
    program = pool.start("shm", **RED)
    assert tell(program, "work 3") == "worked 3"
    end(program)
    for client in clients:
        client.__exit__(None, None, None)


def test_pinned_memory_of_a_tenant(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> None:
    """Its sessions share it: each is given what is left, and none begins without some."""
    config = tmp_path / "server.toml"
    config.write_text('[tenants.blue]\ntoken = "token-of-blue"\npinned_memory = "120MiB"\n')
    server = make_server(config=str(config), **{"session-pinned-memory": "80MiB"})
    pool = Scene(server, toolchain, talk)
    first, second = pool.hoard(), pool.hoard()
    assert tell(first, "pinned 100 4096") == f"has 8, {OUT_OF_MEMORY}"
    # 40 MiB are left for the second: not enough for the memory of its copies, which works without.
    assert tell(second, "pinned 100 4096") == f"has 10, {OUT_OF_MEMORY}"
    assert tell(second, "work") == "works"
    refused = ask_for_session(server, token="token-of-blue")
    assert (refused["word"], refused["code"]) == ("refused", "over-quota"), refused
    assert "120MiB of pinned memory" in refused["message"]
    kept = pool.budgets("blue")["pinned_memory"]
    assert (kept["used"], kept["limit"]) == (120 * MIB, 120 * MIB)
    for program in (first, second):
        end(program)


def test_a_worker_has_so_many_descriptors(scene: Scene) -> None:
    """In a jail; where there is none the layer says so."""
    shown = scene.session_of(scene.victim)
    if "rlimits" in shown["confinement"]["off"]:
        pytest.skip("workers have no limits of their own here")
    text = Path(f"/proc/{shown['pid']}/limits").read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("Max open files"))
    assert int(line.split()[4]) <= 8192


def fill(folder: Path, owner: os.stat_result) -> tuple[int, str]:
    """Write there for ever, as the folder's owner would; how much went in, and what ended it."""
    written, path = 0, folder / "flood"
    path.touch()
    os.chown(path, owner.st_uid, owner.st_gid)
    with path.open("wb", buffering=0) as file:
        try:
            while written < 64 * MIB:
                written += file.write(bytes(64 << 10))
        except OSError as error:
            return written, errno.errorcode[error.errno or 0]
    return written, ""


def test_disk(scene: Scene) -> None:
    """What a tenant's driver may write is its own: the cache of what it compiles, and /tmp."""
    attacker = scene.hoard()
    (shown,) = (s for s in scene.told()["sessions"] if s["tenant"] == "blue")
    if os.geteuid() != 0 or "root" in shown["confinement"]["off"]:
        pytest.skip("only root sees the files of a worker, and only in a jail it has its own")
    inside = Path(f"/proc/{shown['pid']}/root")
    before = shown["budgets"]["disk"]
    assert (before["limit"], before["used"] < MIB) == (16 * MIB, True)
    ends = [fill(inside / name, (inside / name).stat()) for name in ("cache", "tmp")]
    assert [why for _, why in ends] == ["ENOSPC", "ENOSPC"]
    assert 15 * MIB < sum(count for count, _ in ends) <= 16 * MIB
    assert 15 * MIB < scene.budgets("blue")["disk"]["used"] <= 16 * MIB
    log = scene.server.log.read_text()
    assert log.count("has filled the disk that its session may have") == 1, "once, who asks twice"
    # It is the session's alone: the victim can write, and the attacker can still work.
    scene.still_works()
    assert scene.budgets("red")["disk"]["used"] < MIB
    assert tell(attacker, "work") == "works"
    for name in ("cache", "tmp"):
        (inside / name / "flood").unlink()
    assert scene.budgets("blue")["disk"]["used"] < MIB
    end(attacker)


def test_open_files_are_shown(scene: Scene) -> None:
    kept = scene.session_of(scene.victim)["budgets"]
    if "open_files" not in kept:
        pytest.skip("workers have no limits of their own here")
    assert 3 < kept["open_files"]["used"] < kept["open_files"]["limit"] <= 8192


def test_top_shows_it(scene: Scene) -> None:
    attacker = scene.hoard()
    tell(attacker, "pinned 100 4096")
    shown = scene.cli("top", "--once")
    assert shown.returncode == 0, shown.explain()
    head, red = (
        next(line.split() for line in shown.stdout.splitlines() if line.startswith(name))
        for name in ("tenant", "red ")
    )
    (blue,) = (line.split() for line in shown.stdout.splitlines() if line.startswith("blue  "))
    assert head[0] == "tenant" and head[-1] == "refused" and red[1] == "1/4"
    assert (blue[1], blue[-1]) == ("1/18", "1"), shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    end(attacker)
