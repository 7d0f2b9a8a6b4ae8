"""Fixtures: a short folder, a fake installation, a server without and with its socket."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from command_harness import front, start_server  # noqa: F401
from fake_admin import admin  # noqa: F401
from filled_manager import filled_manager  # noqa: F401
from gpupool_common.paths import PLUGINS, Home
from gpupool_server import inventory
from gpupool_server.device import Device
from gpupool_server.front_end import RequestHandler
from gpupool_server.gpus import Gpus
from gpupool_server.jail import Jail
from gpupool_server.rundir import RunDir
from gpupool_server.server import Server
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.tenants import Tenants
from gpupool_server.worker import Build
from link_end import make_end  # noqa: F401
from link_host import host, make_peer  # noqa: F401
from manager_databases import database, postgres  # noqa: F401
from manager_rest import rest  # noqa: F401
from server_harness import (
    TOKEN,
    FakeBoards,
    MakeOffice,
    MakeServer,
    Office,
    compile_driver,
    make_home,
    make_settings,
)

# A run must depend neither on what an earlier one wrote beside the sources nor on how fast
# the machine is.
settings.register_profile(
    "gpupool",
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gpupool")


@pytest.fixture(autouse=True)
def _plain_logs() -> None:
    """Commands that an earlier test ran in this process have set up its log."""
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _own_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GPUPOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GPUPOOL_CONFIG", os.devnull)  # whoever runs this may have logged in


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="gpt-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


#: What a soft GPU reads and the fake driver does not.
OF_A_SERVER = ("GPUPOOL_SOFT_SEED", "GPUPOOL_SOFT_TIME")


@pytest.fixture(scope="session", autouse=True)
def probed_once() -> Iterator[None]:
    """To list devices a driver has a process of its own: here one for all that say the same."""
    probe, known = inventory.probe_devices, dict[object, tuple[Device, ...]]()

    def probe_once(library: Path, env: Mapping[str, str]) -> tuple[Device, ...]:
        reads = frozenset(item for item in env.items() if item[0] not in OF_A_SERVER)
        key = (library.read_bytes() if library.is_file() else library, reads)
        if key not in known:
            known[key] = probe(library, env)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "probe_devices", probe_once)
        yield


@pytest.fixture
def home(folder: Path, driver: Path) -> Home:
    return make_home(folder / "home", driver)


@pytest_asyncio.fixture
async def make_office(folder: Path, home: Home) -> AsyncIterator[MakeOffice]:
    """Builds offices; ``worker=`` and every other setting can be changed.

    ``boards=False``: as with a worker of a release that knows no boards.
    """
    offices: list[Office] = []
    boards = FakeBoards()

    async def make(**changes: object) -> Office:
        opener = boards if changes.pop("boards", True) else None
        settings = make_settings(folder, **changes)
        run_dir = RunDir(folder / "run")
        program = settings.worker or home.part("libexec/gpupool-worker")
        listed = inventory.take(settings, home)
        tenants = Tenants.load(TOKEN, settings)
        gpus = Gpus(settings, listed, tenants, run_dir.gpus, opener)
        supervisor = SessionSupervisor(
            settings,
            listed,
            run_dir,
            program,
            home.root / PLUGINS,
            gpus,
            Jail(settings, listed, home, program, run_dir.path),
        )
        handler = RequestHandler(settings, gpus, listed, supervisor, Build(wire=3, oldest=2))
        offices.append(Office(settings, run_dir, supervisor, handler, gpus, boards))
        return offices[-1]

    yield make
    for office in offices:
        await office.supervisor.close()
        office.run_dir.close()


@pytest_asyncio.fixture
async def make_server(folder: Path, home: Home) -> AsyncIterator[MakeServer]:
    """Starts whole servers in this process."""
    servers: list[Server] = []

    async def make(**changes: object) -> Server:
        server = Server(make_settings(folder, **changes), home)
        servers.append(server)
        await server.start()
        return server

    yield make
    for server in servers:
        await server.close()
