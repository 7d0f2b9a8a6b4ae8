"""The wheel in user lands of other distributions: their C library, their loader, their Python.

`make test-lands` makes these (.ci/lands.py). A server with soft GPUs stands outside of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import target_wheels
from harness import PoolServer, Result, run_program
from toolchain import Toolchain

LANDS = Path(os.environ.get("GPUPOOL_LANDS", ""))
pytestmark = [
    pytest.mark.skipif("GPUPOOL_LANDS" not in os.environ, reason="no user lands; make test-lands"),
    pytest.mark.timeout(900),
]

TARGET = "x86_64-glibc"
PATIENCE = 300.0
OLDEST = (3, 11)
#: Where a land has what all of them share, the server's folder, and its own environment.
SHARED, SERVER, OWN = "/mnt", "/srv", "/opt/gpupool"

#: $1: the land; what follows goes to these places in it, and then the command.
ENTER = """
root=$1 shared=$2 server=$3; shift 3
mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" &&
mount --bind "$shared" "$root/mnt" && mount --bind "$server" "$root/srv" && exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Land:
    root: Path
    shared: Path
    server: PoolServer
    python: tuple[int, int]

    def run(self, *command: str, **env: str) -> Result:
        """Run a command in it, in a mount namespace that ends with it."""
        enter = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(self.root)]
        enter += [str(self.shared), str(self.server.folder), *command]
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return run_program(
            enter, {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", **env}, PATIENCE
        )

    def client(self, url: str = "") -> dict[str, str]:
        given = self.server.environment("")
        return {
            "GPUPOOL_SERVER": url or given["GPUPOOL_SERVER"],
            "GPUPOOL_TOKEN": given["GPUPOOL_TOKEN"],
        }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, toolchain: Toolchain) -> Path:
    """The wheel and its dependencies, the unpacked wheel, and a program."""
    folder = tmp_path_factory.mktemp("lands")
    target_wheels.unpack(TARGET, folder / "unpacked")
    libraries = folder / "unpacked/gpupool/lib"
    target_wheels.build_hello(TARGET, folder / "hello", libraries, toolchain)
    shutil.copy(target_wheels.wheel_of(TARGET), folder)
    if (LANDS / "wheels").is_dir():
        shutil.copytree(LANDS / "wheels", folder / "wheels")
    return folder


@pytest.fixture(
    scope="module",
    params=sorted(path.parents[1] for path in LANDS.glob("*/etc/os-release")),
    ids=lambda path: path.name,
)
def land(request: pytest.FixtureRequest, shared: Path, server: PoolServer) -> Land:
    found = Land(request.param, shared, server, (0, 0))
    said = found.run("python3", "--version")
    assert said.returncode == 0, said.explain()
    major, minor = re.fullmatch(r"Python (\d+)\.(\d+)\.\S+\n", said.stdout).groups()  # type: ignore[union-attr]
    return Land(request.param, shared, server, (int(major), int(minor)))


@pytest.fixture(scope="module")
def installed(land: Land) -> Land:
    """With the wheel in an environment of its own Python, by its own pip."""
    if land.python < OLDEST:
        pytest.skip("its Python is too old for the launcher")
    shutil.rmtree(land.root / OWN[1:], ignore_errors=True)
    done = land.run("python3", "-m", "venv", OWN)
    assert done.returncode == 0, done.explain()
    wheels = f"{SHARED}/wheels/{land.python[0]}.{land.python[1]}"
    done = install(land, "--no-index", "--find-links", wheels)
    assert done.returncode == 0, done.explain()
    return land


def install(land: Land, *how: str) -> Result:
    (wheel,) = land.shared.glob("gpupool-*.whl")
    return land.run(f"{OWN}/bin/pip", "install", *how, f"{SHARED}/{wheel.name}")


@pytest.mark.parametrize("transport", ["shm", "tcp", "zmq"])
def test_a_program_runs_with_the_unpacked_wheel(land: Land, transport: str) -> None:
    env = land.client(f"unix://{SERVER}/run/shm.sock" if transport == "shm" else "")
    env |= {"LD_LIBRARY_PATH": f"{SHARED}/unpacked/gpupool/lib", "GPUPOOL_LOG": "info"}
    result = land.run(f"{SHARED}/hello", **env, GPUPOOL_TRANSPORT=transport)
    assert result.returncode == 0 and result.stdout.startswith("PASS on "), result.explain()
    assert f"over {transport}," in result.stderr, result.explain()


def test_info_shows_the_server(installed: Land) -> None:
    done = installed.run(f"{OWN}/bin/gpupool", "info", "--json", **installed.client())
    assert done.returncode == 0, done.explain()
    (answer,) = json.loads(done.stdout)
    assert answer["devices"], done.explain()


@pytest.mark.parametrize("how", ["server", "local"])
def test_the_launcher_runs_a_program(installed: Land, how: str) -> None:
    """By a server outside, and by one of its own, whose soft GPU is the land's as well."""
    ask = ["--local"] if how == "local" else []
    env = {} if how == "local" else installed.client()
    done = installed.run(f"{OWN}/bin/gpupool", "run", *ask, "--", f"{SHARED}/hello", **env)
    assert done.returncode == 0 and "PASS on " in done.stdout, done.explain()


def test_an_older_python_is_told_which_it_needs(land: Land) -> None:
    """A pip that knows the wheel's platform (20.3) names the Python, an older one no reason."""
    if land.python >= OLDEST:
        pytest.skip("its Python is new enough")
    if not (land.root / OWN[1:]).exists():
        made = land.run("python3", "-m", "venv", OWN)
        assert made.returncode == 0, made.explain()
    done = install(land, "--no-deps")
    why = ">=3.11" if land.python >= (3, 9) else "is not a supported wheel on this platform"
    assert done.returncode != 0 and why in done.stderr, done.explain()
