"""RUN/admin.sock as a server has it, whose answers the test chooses."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool.cli import make_app

GIB = 1 << 30
SESSION = "0123456789ab"
OTHER = "ba9876543210"


def tenants() -> list[dict[str, Any]]:
    """One with a limit, and one that has what is left."""
    process = {"pid": 4242, "session": SESSION, "client_pid": 17, "memory_used_bytes": 3 * GIB}
    trainer = {
        "name": "research/train",
        "memory_limit_bytes": 8 * GIB,
        "memory_used_bytes": 3 * GIB,
        "memory_peak_bytes": 4 * GIB,
        "memory_denied": 2,
        "weight": 2,
        "share_permille": 500,
        "ceiling_permille": 800,
        "high_priority": 0,
        "entitled_permille": 667,
        "utilisation_permille": 661,
        "sessions": [SESSION],
        "processes": [{**process, "program": "/usr/bin/python3"}],
    }
    server = {
        "name": "default",
        "memory_limit_bytes": 0,
        "memory_used_bytes": 2 * GIB,
        "high_priority": True,
        "entitled_permille": 333,
        "utilisation_permille": None,
        "sessions": [OTHER],
        "processes": [],
    }
    return [trainer, server]


def status_answer() -> dict[str, Any]:
    trainer, server = tenants()
    common = {"memory_total_bytes": 16 * GIB, "max_inst": 3, "prio_ratio": 90, "hardware": True}
    return {
        "ok": True,
        "version": "9.8.7",
        "host": "gpu-host",
        "something": "of a newer server",
        "gpus": [
            {
                **common,
                "index": 0,
                "name": "NVIDIA H200",
                "uuid": "GPU-1",
                "policy": "weighted",
                "default_memory_bytes": 4 * GIB,
                "free_weight": 1,
                "utilisation_permille": 990,
                "tenants": [trainer, server],
            },
            {
                **common,
                "index": 1,
                "name": "a GPU whose name is far too long for a table",
                "uuid": "GPU-2",
                "policy": "native",
                "default_memory_bytes": None,
                "free_weight": 3,
                "utilisation_permille": None,
                "tenants": [],
            },
        ],
        "sessions": [
            {
                "session": SESSION,
                "program": "python3",
                "client_host": "here",
                "client_pid": 17,
                "devices": [0],
                "memory_bytes": 3 * GIB,
                "created": time.time() - 65,
                "state": "running",
            },
            {"session": OTHER, "program": "serve", "devices": [0, 1], "created": time.time()},
        ],
    }


class FakeAdmin:
    """RUN/admin.sock; ``answers`` makes of a question the bytes to send."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.questions: list[Any] = []
        self.answers: Callable[[Any], bytes] = self.as_server
        self.status = status_answer()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(run_dir / "admin.sock"))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def as_server(self, question: Any) -> bytes:
        answer = self.status if question["do"] == "status" else {"ok": True, "done": 1}
        return json.dumps(answer).encode() + b"\n"

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:
                return
            with asker, contextlib.suppress(ConnectionError):  # who asks may have given up
                self.questions.append(json.loads(asker.makefile("rb").readline()))
                asker.sendall(self.answers(self.questions[-1]))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)
        (self.run_dir / "admin.sock").unlink()


@pytest.fixture
def admin(folder: Path) -> Iterator[FakeAdmin]:
    server = FakeAdmin(folder)
    yield server
    if (folder / "admin.sock").exists():
        server.close()


def command(admin: FakeAdmin, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(make_app(), [*args, "--run-dir", str(admin.run_dir)])
    return result.exit_code, result.stdout, result.stderr


def shown(admin: FakeAdmin, *args: str) -> str:
    code, out, err = command(admin, *args)
    assert (code, err) == (0, "")
    return out
