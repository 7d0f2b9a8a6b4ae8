"""Databases for the manager's tests: files of SQLite, and a PostgreSQL of the tests' own.

The PostgreSQL server is started once a run, in a folder of its own, on a Unix socket
only, and each test gets an empty database of it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

_USER = "gpupool"
#: Within which it starts or answers; only what hangs runs into it.
_SECONDS = 60.0
#: Files are made and removed by the hundred for each database, which costs least in memory.
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30  # for the servers of several test processes


def find_binaries() -> Path | None:
    """The folder with initdb and postgres; Debian's is on no PATH."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    on_path = shutil.which("initdb")
    places = [*([Path(on_path).parent] if on_path else []), *reversed(packaged)]
    return next((place for place in places if _complete(place)), None)


def _complete(place: Path) -> bool:
    return all(os.access(place / name, os.X_OK) for name in ("initdb", "postgres", "pg_isready"))


class Postgres:
    """A server that ends with the tests, however they end."""

    def __init__(self, binaries: Path, safe: bool = False) -> None:
        """``safe``: what was committed would outlive a power cut, which takes its time."""
        self._binaries = binaries
        self._safe = safe
        place = Path("/tmp") if safe else _place()
        self._folder = Path(tempfile.mkdtemp(prefix="gpt-pg-", dir=place))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:  # as root it refuses to run
            account = _unprivileged()
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(self._folder, account.pw_uid, account.pw_gid)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def prepare(self) -> None:
        """Make its files and start it."""
        initdb = (
            self._binaries / "initdb",
            "-D",
            self._folder / "data",
            "-U",
            _USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        # In a folder that the unprivileged user may enter: initdb looks at where it stands.
        done = subprocess.run(
            initdb, capture_output=True, text=True, timeout=120, cwd=self._folder, **self._as
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr.strip()}")
        self.start()

    def start(self) -> None:
        command = (
            self._binaries / "postgres",
            "-D",
            self._folder / "data",
            "-k",
            self._folder,
            "-c",
            "listen_addresses=",
            "-c",
            f"fsync={'on' if self._safe else 'off'}",
            "-c",
            "max_connections=50",
            *(() if self._safe else ("-c", "max_wal_size=128MB")),
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=_end_with_parent,
                **self._as,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Break all connections and end it; :meth:`start` has everything again."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://{_USER}@/{database}?host={self._folder}"

    async def execute(self, statement: str) -> None:
        """One statement, by the owner of everything."""
        connection = await asyncpg.connect(
            host=str(self._folder), user=_USER, database="postgres", timeout=_SECONDS
        )
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def fetch(self, question: str) -> Any:
        """The one value that answers a question, asked by the owner of everything."""
        connection = await asyncpg.connect(
            host=str(self._folder), user=_USER, database="postgres", timeout=_SECONDS
        )
        try:
            return await connection.fetchval(question)
        finally:
            await connection.close()

    def signal(self, number: signal.Signals) -> None:
        """Stop all of its processes, as a debugger or a frozen container does, or go on."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in (self._process.pid, *map(int, children.read_text().split())):
            os.kill(pid, number)

    async def new_database(self) -> str:
        """The name of an empty one."""
        name = f"test_{next(self._numbers)}"
        await self.execute(f"CREATE DATABASE {name}")
        return name

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"postgres did not start: {self._log.read_text()[-2000:]}")
            asked = (self._binaries / "pg_isready", "-h", self._folder, "-t", "5")
            if subprocess.run(asked, stdout=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.05)


def _place() -> Path:
    """Memory, where there is enough of it."""
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ROOM else Path("/tmp")
    except OSError:
        return Path("/tmp")


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("there is neither a user 'postgres' nor 'nobody'")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here (package 'postgresql')")
    server = Postgres(binaries)
    try:
        server.prepare()
        yield server
    finally:
        server.remove()


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The address of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/pool.db"
        return
    server: Postgres = request.getfixturevalue("postgres")
    name = await server.new_database()
    yield server.url(name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
