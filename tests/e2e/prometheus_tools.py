"""Prometheus' own programs, as its package has them: `make prometheus` fetches it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import PATIENCE
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "kubernetes" / "monitoring"

#: Where the Makefile unpacks the package.
_UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"


def tool(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``; without one the test is skipped."""
    folder = os.environ.get("GPUPOOL_PROMETHEUS", str(_UNPACKED))
    found = shutil.which(name, path=os.pathsep.join((folder, os.environ.get("PATH", ""))))
    if found is None:
        pytest.skip(f"there is no {name}: make prometheus fetches it")
    return found


class Prometheus:
    """One that runs in a folder of its own."""

    def __init__(self, folder: Path, configuration: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.log"
        path = folder / "prometheus.yml"
        path.write_text(configuration, encoding="utf-8")
        command = [tool("prometheus"), f"--config.file={path}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
        command += [f"--web.listen-address={self.url.removeprefix('http://')}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers; None while it does not."""
        try:
            answer = httpx.get(
                f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE, trust_env=False
            )
        except httpx.TransportError:
            assert self._process.poll() is None, self.log.read_text()
            return None
        if answer.status_code == 503:  # it is starting
            return None
        assert answer.is_success, f"{path} {parameters}: {answer.text}"
        return answer.json()["data"]

    def until(self, path: str, *, seconds: float = PATIENCE, **parameters: str) -> Iterator[Any]:
        """Its answers, again and again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.ask(path, **parameters)
            if found is not None:
                yield found
            time.sleep(0.2)
        raise AssertionError(f"{path}: {self.ask(path, **parameters)}\n{self.log.read_text()}")

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)


@contextmanager
def running_prometheus(folder: Path, configuration: str) -> Iterator[Prometheus]:
    found = Prometheus(folder, configuration)
    try:
        yield found
    finally:
        found.close()
