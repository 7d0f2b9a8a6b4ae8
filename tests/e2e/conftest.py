"""Fixtures: the compiler, one server with soft GPUs for all tests, servers of one's own."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from harness import DRIVER, PoolServer, Talk
from pool_site import Site, running_site
from tenants import StartTalk
from toolchain import Toolchain
from users import find_python

HERE = Path(__file__).resolve().parent

#: Whoever runs the tests may have logged in somewhere.
os.environ["GPUPOOL_CONFIG"] = os.devnull


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what expected.toml lists; a `fails` test that passes fails the run.

    On a machine's own GPU only tests marked real_gpu mean anything.
    """
    if DRIVER == "cuda":
        chosen = [item for item in items if item.get_closest_marker("real_gpu")]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
    expected: dict[str, Any] = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    for entry in expected.get("fails", []):
        for item in items:
            if HERE in item.path.parents and entry["test"] in item.nodeid:
                mark = pytest.mark.xfail(reason=entry["reason"], strict=entry.get("always", True))
                item.add_marker(mark)
    for entry in expected.get("skips", []):
        for item in items:
            if HERE in item.path.parents and entry["test"] in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=entry["reason"]))


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """Each program is built once for all processes of a run (pytest-xdist).

    They are kept between runs in GPUPOOL_E2E_CACHE, where that is set.
    """
    kept = os.environ.get("GPUPOOL_E2E_CACHE")
    base = tmp_path_factory.getbasetemp()
    ours = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "programs"
    return Toolchain(Path(kept) if kept else ours)


@pytest.fixture(scope="session")
def home() -> paths.Home:
    found = paths.find_home()
    for part in (paths.CLIENT_LIBRARY, paths.SOFT_GPU, paths.WORKER):
        found.part(part)  # says what to do when it is not built
    return found


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter that other users can run; only root can be those users."""
    try:
        return find_python()
    except LookupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def server(home: paths.Home) -> Iterator[PoolServer]:
    """The server that most tests share; nothing they do may harm it."""
    shared = PoolServer(**{"soft-gpus": "2", "max-sessions": "16"})
    try:
        shared.start()
        yield shared
    finally:
        shared.close()


@pytest.fixture
def make_server(home: paths.Home) -> Iterator[Callable[..., PoolServer]]:
    """Servers of the test's own, started, which it may kill."""
    servers: list[PoolServer] = []

    def make(**settings: str) -> PoolServer:
        servers.append(PoolServer(**settings))
        servers[-1].start()
        return servers[-1]

    yield make
    for made in servers:
        made.close()


@pytest.fixture
def talk() -> Iterator[Callable[[list[str], dict[str, str]], Talk]]:
    """Programs to speak with; those still running at the end are ended."""
    talks: list[Talk] = []

    def start(command: list[str], env: dict[str, str]) -> Talk:
        talks.append(Talk(command, env))
        return talks[-1]

    yield start
    for one in talks:
        one.close()


@pytest.fixture(scope="module")
def standing(home: paths.Home, toolchain: Toolchain) -> Iterator[Site]:
    with running_site(home, toolchain) as found:
        yield found


@pytest.fixture
def site(standing: Site, talk: StartTalk) -> Iterator[Site]:
    """The pool of all tests of a file that leave it whole; each finds it free."""
    yield from standing.lent(talk)


@pytest.fixture
def own(home: paths.Home, toolchain: Toolchain, talk: StartTalk) -> Iterator[Site]:
    """A pool of the test's own, with which it may do what it likes."""
    with running_site(home, toolchain) as found:
        found.talk = talk
        yield found


@pytest.fixture(params=["shm", "tcp", "zmq"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)
