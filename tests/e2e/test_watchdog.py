"""Code in a worker's place that uses the driver beside the arbiter, and honest programs at their
limit: the watchdog ends the one and never the other."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from gpupool_server.arbiter import find_opener
from harness import alive, wait_until
from liar_worker import Liar
from pool_harness import PoolManager
from raw_client import ask_for_session
from tenants import BLUE, MIB, RED, MakeServer, Pool, StartTalk, configured, end, operator, tell
from toolchain import Toolchain

#: More looks in less time than by default.
WATCH = "\n[watch]\ninterval_ms = 100\ntime_seconds = 2\n"

#: red may have 64 MiB.
TOO_MUCH = 96


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[Liar]:
    made = Liar(tmp_path)
    yield made
    made.end_all()


MakePool = Any


@pytest.fixture
def make_pool(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path, liar: Liar
) -> MakePool:
    def make(**settings: str) -> Pool:
        settings |= {"worker": str(liar.worker), "data-listen": "none", "soft-gpus": "1"}
        return Pool(configured(make_server, tmp_path, WATCH, **settings), toolchain, talk)

    return make


def liars(pool: Pool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pool.ask(do="status")["liars"]
    return found


def looks(pool: Pool) -> int:
    return int(pool.ask(do="status")["gpus"][0]["watch"]["looks"])


def lie(pool: Pool) -> str:
    """A session of red's, whose worker is the liar."""
    answer = ask_for_session(pool.server, RED["GPUPOOL_TOKEN"])
    assert answer["word"] == "ok", answer
    return answer["session"]


def ended(pool: Pool, session: str, cause: str) -> dict[str, Any]:
    """What the server says of the liar, once it has ended it."""
    wait_until(lambda: bool(liars(pool)), "the liar was found")
    (found,) = liars(pool)
    assert (found["session"], found["cause"], found["tenant"]) == (session, cause, "red")
    wait_until(lambda: not alive(found["worker_pid"]), "its worker was ended")
    wait_until(lambda: pool.account("red").get("workers", 0) == 0, "its seat was free")
    log = pool.server.log.read_text()
    assert "ended a liar" in log and session in log
    return found


def test_memory_beside_the_arbiter(make_pool: MakePool, liar: Liar) -> None:
    pool = make_pool()
    neighbour = pool.start("shm", **BLUE)
    assert tell(neighbour, "work 3") == "worked 3"
    liar.arm(mib=TOO_MUCH)
    session = lie(pool)
    found = ended(pool, session, "memory")
    assert "96MiB of GPU 0's memory and may have 64MiB" in found["reason"]
    assert "has asked for 0B" in found["reason"]
    assert tell(neighbour, "work 3") == "worked 6"
    shown = pool.cli("smi", "--json")
    assert [each["session"] for each in json.loads(shown.stdout)["liars"]] == [session]
    liar.disarm()
    assert pool.run("shm", "driver_vmm", **RED).returncode == 0  # the tenant may come again
    end(neighbour)


def test_kernels_outside_of_turns(make_pool: MakePool, liar: Liar, talk: StartTalk) -> None:
    pool = make_pool()
    pool.ask(do="gpu-set", gpu=0, policy="fixed")  # a fifth is red's; its slices would be longer
    neighbour = talk(pool.program("driver_slices"), pool.server.environment("shm", **BLUE))
    assert neighbour.line() == "ready"
    assert tell(neighbour, "hold") == "holds"
    liar.arm(works=1)
    session = lie(pool)
    found = ended(pool, session, "time")
    assert "outside its turns" in found["reason"]
    assert tell(neighbour, "free") == "freed"
    end(neighbour)


def test_a_liar_may_have_turns_as_well(make_pool: MakePool, liar: Liar) -> None:
    """It is as well seated as any worker; `tests/gpu/watchdog.py --only turns` plays it to its end,
    as on a card the log of turns counts."""
    pool = make_pool()
    liar.arm(asks=True)
    session = lie(pool)
    wait_until(lambda: pool.account("red").get("turns", 0) > 0, "it had its turn")
    assert "the liar takes its seat: 0" in pool.server.log.read_text()
    assert session in [each["session"] for each in pool.ask(do="status")["sessions"]]


def test_the_log_of_turns(make_pool: MakePool, talk: StartTalk) -> None:
    """What it says of two programs adds up to what their accounts say."""
    pool = make_pool()
    environment = pool.server.environment
    programs = [
        talk(pool.program("driver_slices"), environment("shm", **who)) for who in (RED, BLUE)
    ]
    assert [program.line() for program in programs] == ["ready", "ready"]
    opener = find_opener(paths.find_home())
    assert opener is not None
    board = opener(pool.server.folder / "run" / "gpus" / "0.arbiter")
    for program in programs:
        program.say("busy 1000")
    assert all(program.line().startswith("kernels ") for program in programs)
    log, snapshot = board.turns(0), board.snapshot()
    while board.turns(0).turns != log.turns:  # they have no work, and one keeps its turn
        log, snapshot = board.turns(0), board.snapshot()
    assert log.first == 0 and all(a.ended_ns <= b.began_ns for a, b in pairwise(log.turns))
    assert {account.name for account in snapshot.tenants} == {"red", "blue"}
    for account in snapshot.tenants:
        turns = [turn for turn in log.turns if turn.tenant == account.name]
        held = sum(turn.ended_ns - turn.began_ns for turn in turns)
        assert turns and account.held_ns is not None
        if log.now.tenant == account.name:  # until a moment later
            assert account.turns == len(turns) + 1
            assert account.held_ns >= held + snapshot.now_ns - log.now.began_ns
        else:
            assert (account.turns, account.held_ns) == (len(turns), held)
    board.close()
    for program in programs:
        end(program)


def test_without_turns_only_memory_is_watched(
    make_pool: MakePool, liar: Liar, talk: StartTalk
) -> None:
    pool = make_pool()
    assert pool.cli("gpu", "set", "0", "--policy", "native").returncode == 0
    neighbour = talk(pool.program("driver_slices"), pool.server.environment("shm", **BLUE))
    assert neighbour.line() == "ready"
    assert tell(neighbour, "hold") == "holds"
    liar.arm(works=1)
    lie(pool)
    wait_until(lambda: "the liar works: 0" in pool.server.log.read_text(), "it worked")
    before = looks(pool)
    wait_until(lambda: looks(pool) > before + 40, "it was looked at for long")
    assert liars(pool) == []
    assert tell(neighbour, "free") == "freed"
    end(neighbour)


def test_kernels_that_needed_no_turn_when_they_began(make_pool: MakePool, talk: StartTalk) -> None:
    pool = make_pool()
    assert pool.cli("gpu", "set", "0", "--policy", "weak").returncode == 0
    programs = [
        talk(pool.program("driver_slices"), pool.server.environment("shm", **who))
        for who in (RED, BLUE)
    ]
    for program in programs:
        assert program.line() == "ready"
        assert tell(program, "hold") == "holds"
    assert pool.cli("gpu", "set", "0", "--policy", "weighted").returncode == 0
    before = looks(pool)
    wait_until(lambda: looks(pool) > before + 60, "they were looked at for long")
    assert liars(pool) == []
    for program in programs:
        assert tell(program, "free") == "freed"
        end(program)


@pytest.mark.skipif(os.geteuid() != 0, reason="workers without a jail are the server's user's")
def test_memory_of_a_child(make_pool: MakePool, liar: Liar) -> None:
    """Without a jail a worker may start programs: what these have is its own."""
    pool = make_pool(confinement="off")
    liar.arm(mib=TOO_MUCH, forks=True)
    session = lie(pool)
    found = ended(pool, session, "memory")
    assert "96MiB" in found["reason"]

    wait_until(lambda: liar.running() == [], "its child was ended as well")


@pytest.mark.parametrize("policy", ["share", "native"])
def test_an_honest_program_at_its_limit(make_pool: MakePool, policy: str) -> None:
    pool = make_pool()
    assert pool.cli("gpu", "set", "0", "--policy", policy).returncode == 0
    full = pool.start("shm", **RED, GPUPOOL_GROUP="full", GPUPOOL_MEMORY="40MiB")
    taken = 0
    while tell(full, "take 2") == "took 2":
        taken += 2
    assert taken >= 32
    before = looks(pool)
    for _ in range(1000):
        made = pool.run("shm", "driver_reset", **RED, GPUPOOL_MEMORY="16MiB")
        assert made.returncode == 0, made.explain()
        assert tell(full, "work 3").startswith("worked")
        assert tell(full, "take 2").startswith("refused")
        assert tell(full, "give") == "gave" and tell(full, "take 2") == "took 2"
        if looks(pool) > before + 30:
            break
    else:
        pytest.fail("the watchdog did not look")
    assert liars(pool) == []
    end(full)


def test_it_may_only_say_so(make_pool: MakePool, liar: Liar, tmp_path: Path) -> None:
    pool = make_pool()
    pool.server.kill()
    with (tmp_path / "server.toml").open("a") as config:
        config.write('mode = "log"\n')
    pool.server.start()
    liar.arm(mib=TOO_MUCH)
    session = lie(pool)
    wait_until(lambda: "it is not ended (watch.mode)" in pool.server.log.read_text(), "it was said")
    assert liars(pool) == []
    assert session in [each["session"] for each in pool.ask(do="status")["sessions"]]


@pytest.fixture
def manager() -> Iterator[PoolManager]:
    started = PoolManager()
    started.start()
    yield started
    started.close()


class Events:
    """What ``gpupool events --json`` says, from the moment that it watches."""

    def __init__(self, manager: PoolManager, talk: StartTalk) -> None:
        command = [sys.executable, "-m", "gpupool", "events", "--json", "--pool", manager.url]
        self._talk = talk(command, {**operator(), "GPUPOOL_POOL_TOKEN": manager.admin})
        self._heard = threading.Event()
        self._found: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        made = 0
        while not self._heard.wait(0.2):
            made += 1
            manager.tenant(f"seen-{made}")

    def _read(self) -> None:
        assert self._talk.process.stdout is not None
        for line in self._talk.process.stdout:
            self._found.append(json.loads(line))
            self._heard.set()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self._found if event["kind"] == kind]


def test_the_pool_is_told(manager: PoolManager, liar: Liar, talk: StartTalk) -> None:
    red = manager.tenant("red")
    settings = {"worker": str(liar.worker), "data-listen": "none", "soft-gpus": "1"}
    server = manager.server("one", manager.join_token("one"), **settings)
    server.start()
    try:
        manager.wait_for("one")
        lease = manager.lease(red, memory_bytes=64 * MIB, share_permille=500)
        events = Events(manager, talk)
        liar.arm(mib=TOO_MUCH)
        answer = ask_for_session(server, lease["token"])
        assert answer["word"] == "ok", answer
        wait_until(lambda: bool(events.of("session.liar")), "the pool was told")
        (event,) = events.of("session.liar")
        assert (event["object"], event["tenant"]) == (answer["session"], "red")
        assert (event["lease"], event["node"]) == (lease["id"], "one")
        assert event["cause"] == "memory" and "64MiB" in event["reason"]
        (audited,) = manager.do("GET", "/audit?action=session.liar")["items"]
        assert audited["object"] == answer["session"]
    finally:
        server.close()
