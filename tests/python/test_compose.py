"""The pool of docker/compose.yaml, without containers: its commands in its order, until they agree.

Every command line, environment and health check is taken from the file. Only what a container
would change is put in: names of hosts become ports of this machine's loopback, volumes and
secrets become folders, and the database is the tests' PostgreSQL.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gpupool_common import paths
from manager_databases import Postgres
from ports import free_port

pytestmark = pytest.mark.timeout(240)

DOCKER = Path(__file__).resolve().parents[2] / "docker"
PROGRAMS = {
    "gpupool": "gpupool",
    "gpupool-manager": "gpupool_manager",
    "gpupool-server": "gpupool_server",
}
PATIENCE = 60.0

#: What was built; for the tests themselves such variables are unset.
HOME = {key: value for key, value in os.environ.items() if key == "GPUPOOL_HOME"}


class Compose:
    """What ``docker compose up`` does with the file, as far as processes go."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
        ports = {name: free_port() for name in ("manager:7780", "manager:7781", "server:7700")}
        self.places = {
            **{f"//{name}": f"//127.0.0.1:{port}" for name, port in ports.items()},
            **{f"//0.0.0.0:{name[-4:]}": f"//127.0.0.1:{port}" for name, port in ports.items()},
            "postgresql://gpupool@database/gpupool": database,
            "/usr/local/share/gpupool": str(DOCKER),
            "/run/secrets": str(folder / "secrets"),
        }
        #: Where the images have it on their own: a health check does not name it.
        self.manager = f"127.0.0.1:{ports['manager:7780']}"
        self.run_dir = folder / "run"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._make_programs()

    def _make_programs(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        for name, module in {**PROGRAMS, "python": ""}.items():
            start = f"{shlex.quote(sys.executable)} {f'-m {module}' if module else ''}"
            (programs / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            (programs / name).chmod(0o755)

    def fill(self, service: str, text: str) -> str:
        places = dict(self.places)
        for volume in self.services[service].get("volumes", []):
            name, path = volume.split(":")[:2]
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
            places[path] = str(self.folder / name)
        for old, new in places.items():
            text = text.replace(old, new)
        return text

    def environment(self, service: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        env |= HOME
        env["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        given = self.services[service].get("environment", {})
        return env | {key: self.fill(service, value) for key, value in given.items()}

    def start(self, service: str, *command: str) -> subprocess.Popen[bytes]:
        what = self.services[service]
        words = [*command, *what.get("entrypoint", []), *what.get("command", [])]
        if service == "server":
            words.append(f"--run-dir={self.run_dir}")
        with self.log(service).open("ab") as log:
            self.running[service] = subprocess.Popen(
                [self.fill(service, word) for word in words],
                env=self.environment(service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        return self.running[service]

    def once(self, service: str, *command: str) -> str:
        """What it says, once it has ended well."""
        status = self.start(service, *command).wait(PATIENCE)
        said = self.log(service).read_text()
        assert status == 0, f"{service} ended with {status}:\n{said}"
        return said

    def is_healthy(self, service: str) -> bool:
        kind, *check = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD"
        own = {"manager": [self.manager], "server": [f"--run-dir={self.run_dir}"]}
        done = subprocess.run(
            [self.fill(service, word) for word in check] + own[service],
            env=self.environment(service),
            capture_output=True,
            timeout=PATIENCE,
        )
        return done.returncode == 0

    def wait_until_healthy(self, service: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.is_healthy(service):
            assert self.running[service].poll() is None, self.log(service).read_text()
            assert time.monotonic() < end, f"never healthy:\n{self.log(service).read_text()}"
            time.sleep(0.2)

    def log(self, service: str) -> Path:
        return self.folder / f"{service}.log"

    def stop(self, service: str) -> int:
        self.running[service].send_signal(signal.SIGTERM)
        return self.running[service].wait(PATIENCE)

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait(PATIENCE)


@pytest.fixture
async def compose(folder: Path, postgres: Postgres) -> Any:
    home = paths.find_home(HOME)
    for part in (paths.CLIENT_LIBRARY, paths.SOFT_GPU, paths.WORKER):
        home.part(part)  # says what to do when it is not built
    (folder / "secrets").mkdir(mode=0o700)
    (folder / "secrets" / "database-password").write_text("the one of the test\n")
    made = Compose(folder, postgres.url(await postgres.new_database()))
    yield made
    made.close()


def _waits_for(services: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            yield name, other, how["condition"]


def test_the_pool_comes_up_by_itself_and_a_program_uses_it(compose: Compose) -> None:
    assert set(_waits_for(compose.services)) == {
        ("manager", "database", "service_healthy"),
        ("setup", "manager", "service_healthy"),
        ("server", "setup", "service_completed_successfully"),
        ("client", "server", "service_healthy"),
    }
    compose.start("manager", "gpupool-manager")
    compose.wait_until_healthy("manager")
    compose.once("setup")
    compose.start("server", "gpupool-server")
    compose.wait_until_healthy("server")
    said = compose.once("client", "gpupool")
    assert said.splitlines()[-1] == "example: 2 devices: OK"

    # Stopped as `docker compose down` does, and up again with the volumes as they are.
    assert compose.stop("server") == 0 and not compose.is_healthy("server")
    assert compose.stop("manager") == 0 and not compose.is_healthy("manager")
    compose.start("manager", "gpupool-manager")
    compose.wait_until_healthy("manager")
    compose.once("setup")
    compose.start("server", "gpupool-server")
    compose.wait_until_healthy("server")
    assert compose.once("client", "gpupool").count("example: 2 devices: OK") == 2

    logs = "".join(compose.log(name).read_text() for name in compose.running)
    for token in (compose.folder / "tokens").glob("*.token"):
        assert token.read_text().strip() not in logs
    assert "the one of the test" not in logs
