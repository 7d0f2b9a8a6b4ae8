"""Two managers of one pool: one leads, the other stands by over a PostgreSQL that both have."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import PATIENCE, Result, run_program, wait_until
from manager_databases import Postgres, find_binaries, postgres  # noqa: F401
from manager_process import ManagerProcess
from pool_harness import PoolManager
from toolchain import Toolchain


class Pair:
    """Managers that have had the same state folder, and know each other's database alone."""

    def __init__(self, postgres: Postgres) -> None:  # noqa: F811
        self.postgres = postgres
        self.database = asyncio.run(postgres.new_database())
        self.first, self.second = PoolManager(), PoolManager()
        for manager in (self.first, self.second):
            manager.flags += ("--database", postgres.url(self.database), "--standby")

    def start(self) -> None:
        self.first.start()
        wait_until(lambda: leads(self.first), "the first manager leads")
        # The keys that nodes and leases know the pool by, written down by now.
        wait_until(lambda: self.note("keys") is not None, "the keys were noted")
        self.copy_state()
        self.second.start()

    def copy_state(self) -> None:
        shutil.copytree(self.first.state, self.second.state, dirs_exist_ok=True)

    def note(self, name: str) -> str | None:
        return asyncio.run(self._note(name))

    async def _note(self, name: str) -> str | None:
        import asyncpg

        at = self.postgres.url(self.database)
        connection = await asyncpg.connect(at, timeout=PATIENCE)
        try:
            found: str | None = await connection.fetchval(
                "SELECT value FROM notes WHERE name = $1", name
            )
            return found
        finally:
            await connection.close()

    @property
    def urls(self) -> str:
        return f"{self.first.listen},{self.second.listen}"

    @property
    def joins(self) -> str:
        return f"{self.first.join_url},{self.second.join_url}"

    def close(self) -> None:
        for manager in (self.first, self.second):
            manager.kill(signal.SIGCONT, wait=False)
            manager.close()
        asyncio.run(self.postgres.execute(f"DROP DATABASE {self.database} WITH (FORCE)"))


@pytest.fixture
def pair(postgres: Postgres) -> Iterator[Pair]:  # noqa: F811
    both = Pair(postgres)
    try:
        yield both
    finally:
        both.close()


def ready(manager: ManagerProcess) -> httpx.Response:
    return httpx.get(f"{manager.url}/readyz", timeout=PATIENCE, trust_env=False)


def leads(manager: ManagerProcess) -> bool:
    return ready(manager).status_code == 200


def leases(manager: ManagerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manager.do("GET", "/leases?state=active&state=queued")["items"]
    return found


def gpupool(pair: Pair, token: str, *args: str, **env: str) -> Result:
    """A command that knows both managers."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    variables |= (
        {"GPUPOOL_HOME": os.environ["GPUPOOL_HOME"]} if "GPUPOOL_HOME" in os.environ else {}
    )
    variables |= {"GPUPOOL_POOL": pair.urls, "GPUPOOL_POOL_TOKEN": token, **env}
    return run_program([sys.executable, "-m", "gpupool", *args], variables)


def text_of(manager: ManagerProcess) -> str:
    return " ".join(manager.log.read_text().split())


def test_who_stands_by_takes_over(pair: Pair, toolchain: Toolchain) -> None:
    """Leases, nodes and programs go on; the next program finds the other manager by itself."""
    program = str(toolchain.runtime_program("vector_add"))
    pair.start()
    first, second = pair.first, pair.second
    server = first.server("one", pool=pair.joins)
    server.start()
    try:
        first.wait_for("one")
        red = first.tenant("red")
        ran = gpupool(pair, red, "run", "--", program)
        assert ran.returncode == 0, ran.explain()
        held = first.lease(red, gpus=1, memory_bytes=1 << 30)
        before = leases(first)
        assert [lease["id"] for lease in before] == [held["id"]]

        answer = ready(second)
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:gpupool:problem:standby"
        assert "retry-after" in answer.headers
        health = httpx.get(f"{second.url}/healthz", timeout=PATIENCE, trust_env=False)
        assert health.json()["status"] == "standby"

        first.kill()
        wait_until(lambda: leads(second), "the second manager leads")
        assert [lease["id"] for lease in leases(second)] == [held["id"]]
        second.wait_for("one")
        ran = gpupool(pair, red, "run", "--", program)
        assert ran.returncode == 0, ran.explain()
        shown = gpupool(pair, red, "lease", "list")
        assert held["id"][:12] in shown.stdout, shown.explain()

        first.start()  # and stands by now
        assert ready(first).status_code == 503
        second.kill()
        wait_until(lambda: leads(first), "the first manager leads again")
        assert [lease["id"] for lease in leases(first)] == [held["id"]]
        first.wait_for("one")
    finally:
        server.close()


def test_a_leader_that_was_stopped_writes_nothing_more(pair: Pair) -> None:
    """Its machine froze: another leads when it goes on, and what it was asked for then is a no."""
    pair.start()
    first, second = pair.first, pair.second
    first.tenant("red")
    answers: list[httpx.Response | Exception] = []

    def ask() -> None:
        try:
            answers.append(first.ask("POST", "/tenants", {"name": "green", "quota": {}}))
        except httpx.HTTPError as error:
            answers.append(error)

    first.kill(signal.SIGSTOP, wait=False)
    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: leads(second), "the second manager leads")
    second.do("POST", "/tenants", {"name": "blue", "quota": {}})
    pid = first.pid
    first.kill(signal.SIGCONT, wait=False)
    wait_until(lambda: "another manager owns the database now" in text_of(first), "it gave up")
    asking.join(PATIENCE)
    assert not asking.is_alive()
    (answer,) = answers
    assert isinstance(answer, Exception) or answer.status_code >= 500, answer.text
    names = {row["name"] for row in second.do("GET", "/tenants")["items"]}
    assert {"red", "blue"} <= names and "green" not in names
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), "its process has ended")


def test_old_keys_take_nothing_over(pair: Pair) -> None:
    """Nodes and leases would not know them: it says what to copy, and the pool stays as it is."""
    first, second = pair.first, pair.second
    pair.start()
    noted = pair.note("keys")
    first.do("POST", "/keys/roll", {})
    wait_until(lambda: pair.note("keys") != noted, "another key signs")
    first.kill()
    wait_until(lambda: "lacks the signing key" in text_of(second), "the old keys were noticed")
    status, said = second.fail()
    assert status == 1 and "copy the other manager's state folder here" in said
    shutil.rmtree(second.state)
    status, said = second.fail()
    assert status == 1 and "needs a copy of the other manager's state folder" in said
    pair.copy_state()
    second.start()
    wait_until(lambda: leads(second), "the second manager leads")


def test_no_manager_leads(pair: Pair) -> None:
    """One that stands by is no pool, and says so in a line."""
    pair.start()
    token = pair.first.tenant("red")
    alone = gpupool(pair, token, "lease", "list", GPUPOOL_POOL=pair.second.listen)
    assert alone.returncode == 75
    assert "stands by" in alone.stderr and "name the pool's other manager" in alone.stderr
    status, said = pair.second.fail("--database", f"sqlite:///{pair.second.folder}/x.db")
    assert status == 2 and "'standby': is only used with a PostgreSQL 'database'" in said


def test_a_backup_is_the_pool(pair: Pair) -> None:
    """Dumped while the manager works; restored elsewhere it has all that was written by then."""
    binaries = find_binaries()
    assert binaries is not None
    pair.start()
    first = pair.first
    red = first.tenant("red")
    quotas = first.do("GET", "/tenants/red/quota")
    dump = subprocess.run(
        [binaries / "pg_dump", "--dbname", pair.postgres.url(pair.database), "--no-owner"],
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    ).stdout
    first.kill()
    pair.second.kill()
    restored = asyncio.run(pair.postgres.new_database())
    subprocess.run(
        [
            binaries / "psql",
            "--dbname",
            pair.postgres.url(restored),
            "--quiet",
            "-v",
            "ON_ERROR_STOP=1",
        ],
        input=dump,
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    first.flags = tuple(
        pair.postgres.url(restored) if "postgresql:" in f else f for f in first.flags
    )
    first.start()
    wait_until(lambda: leads(first), "the restored pool has a manager")
    assert first.do("GET", "/tenants/red/quota") == quotas
    assert first.ask("GET", "/leases", token=red).status_code == 200
    first.kill()
    asyncio.run(pair.postgres.execute(f"DROP DATABASE {restored} WITH (FORCE)"))
