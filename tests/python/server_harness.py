"""What the tests of the Python side share beside fixtures."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from gpupool_common import protocol
from gpupool_common.paths import Home
from gpupool_server.board import (
    Account,
    Board,
    BoardError,
    BoardGpu,
    Grant,
    Member,
    Seat,
    Snapshot,
    Turn,
    TurnLog,
)
from gpupool_server.config import Settings
from gpupool_server.front_end import RequestHandler
from gpupool_server.gpus import Gpus
from gpupool_server.rundir import RunDir
from gpupool_server.server import Server
from gpupool_server.sessions import SessionSupervisor

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOKEN = "the-token-of-the-tests"


class FakeBoard:
    """A board in this process's memory that keeps board.h's contract, without any time."""

    def __init__(self) -> None:
        self.gpu: BoardGpu | None = None
        self.grants: dict[str, Grant] = {}
        self.members: dict[int, Member] = {}
        self.busy_ns: dict[str, int] = {}
        self.denied: dict[str, int] = {}
        self.held_ns: dict[str, int] = {}
        self.log: list[Turn] = []
        self.charged: list[tuple[str, int, str]] = []
        self.knows_turns = True
        self.dead: set[int] = set()
        self.now_ns = 0
        self.closed = False

    def set_gpu(self, gpu: BoardGpu) -> None:
        if not (1 <= gpu.max_inst <= 25 and 20 <= gpu.prio_ratio <= 99):
            raise BoardError(errno.EINVAL, "set_gpu")
        self.gpu = gpu

    def used(self, name: str) -> int:
        return sum(m.memory_used for m in self.members.values() if m.tenant == name)

    def put(self, name: str, grant: Grant) -> None:
        if not 1 <= grant.share <= grant.ceiling <= 1000 or not 0 <= grant.weight <= 25:
            raise BoardError(errno.EINVAL, f"put {name} {grant}")
        if name not in self.grants and len(self.grants) == 64:
            raise BoardError(errno.ENOSPC, f"put {name}")
        if 0 < grant.memory < self.used(name) and not grant.forced:
            raise BoardError(errno.EBUSY, f"put {name}")
        self.grants[name] = grant

    def remove(self, name: str) -> None:
        if name not in self.grants:
            raise BoardError(errno.ENOENT, f"remove {name}")
        if any(member.tenant == name for member in self.members.values()):
            raise BoardError(errno.EBUSY, f"remove {name}")
        del self.grants[name]

    def seat(self, name: str) -> Seat:
        if name not in self.grants:
            raise BoardError(errno.ENOENT, f"seat {name}")
        page = os.memfd_create("page")
        return Seat(0, name, page, os.eventfd(0))

    def started(self, seat: Seat, pid: int) -> None:
        self.leave(seat)

    def leave(self, seat: Seat) -> None:
        os.close(seat.page)
        os.close(seat.bell)

    def orphans(self) -> dict[int, Seat]:
        return {}

    def adopt(self, orphans: dict[int, Seat]) -> None:
        assert not orphans

    def reap(self, pid: int) -> int:
        return int(self.members.pop(pid, None) is not None)

    def join(self, pid: int, name: str, used: int = 0) -> None:
        """What a worker does."""
        assert name in self.grants, name
        self.members[pid] = Member(pid, name, used, 0)

    def snapshot(self) -> Snapshot:
        assert self.gpu is not None
        for pid in self.dead:
            self.members.pop(pid, None)
        accounts = tuple(self._account(name) for name in self.grants)
        return Snapshot(self.gpu, accounts, tuple(self.members.values()), self.now_ns)

    def turns(self, since: int) -> TurnLog:
        if not self.knows_turns:
            raise BoardError(errno.ENOSYS, "turns")
        turns = tuple(self.log[since:])
        return TurnLog(self.now_ns, since, turns, Turn("", self.now_ns, self.now_ns))

    def charge(self, name: str, ns: int, whose: str) -> None:
        if name not in self.grants:
            raise BoardError(errno.ENOENT, f"charge {name}")
        self.charged.append((name, ns, whose))

    def _account(self, name: str) -> Account:
        grant = self.grants[name]
        return Account(
            name=name,
            memory_limit=grant.memory,
            weight=grant.weight,
            share=grant.share,
            ceiling=grant.ceiling,
            high_priority=grant.high_priority,
            memory_used=self.used(name),
            memory_peak=self.used(name),
            memory_denied=self.denied.get(name, 0),
            busy_ns=self.busy_ns.get(name, 0),
            waited_ns=2 * self.busy_ns.get(name, 0),
            turns=3,
            launches=4,
            bytes_copied=5,
            copy_ns=6,
            members=sum(m.tenant == name for m in self.members.values()),
            entitled=1000,
            due=grant.share,
            held_ns=self.held_ns.get(name),
        )

    def close(self) -> None:
        self.closed = True


class FakeBoards:
    """The boards of a machine by their files: they outlive the servers of a test."""

    def __init__(self) -> None:
        self.by_name: dict[str, FakeBoard] = {}

    def __call__(self, path: Path) -> Board:
        path.touch(mode=0o600)
        return self.by_name.setdefault(path.name, FakeBoard())

    def of(self, index: int) -> FakeBoard:
        return self.by_name[f"{index}.arbiter"]


@dataclass
class Office:
    """A handler and what stands behind it, without a socket before it."""

    settings: Settings
    run_dir: RunDir
    supervisor: SessionSupervisor
    handler: RequestHandler
    gpus: Gpus
    boards: FakeBoards


MakeOffice = Callable[..., Awaitable[Office]]
MakeServer = Callable[..., Awaitable[Server]]


def write_worker(path: Path, mode: str, owner: int | None = None) -> Path:
    """A worker program at ``path`` that behaves as ``mode`` says, while ``owner`` lives."""
    script = f'exec {sys.executable} -E -S {HERE / "fake_worker.py"} "$@"'
    environment = f"FAKE_WORKER={mode} FAKE_WORKER_OWNER={owner or os.getpid()}"
    path.write_text(f"#!/bin/sh\n{environment} {script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def make_home(folder: Path, driver: Path, mode: str = "good") -> Home:
    """An installed tree whose worker and driver are the fake ones."""
    for part in ("lib/driver", "lib/plugins", "libexec"):
        (folder / part).mkdir(parents=True)
    (folder / "lib/libcuda.so.1").write_bytes(b"\x7fELF no library GPUPOOL_SERVER\0")
    (folder / "lib/driver/libgpupool_softgpu.so").write_bytes(driver.read_bytes())
    write_worker(folder / "libexec/gpupool-worker", mode)
    return Home(folder, "the tests made it")


def make_settings(folder: Path, **changes: object) -> Settings:
    """Settings for a server whose files are all in ``folder``."""
    values: dict[str, object] = {
        "listen": f"ipc://{folder}/front.sock",
        "data_listen": "tcp://127.0.0.1:*",
        "run_dir": folder / "run",
        "driver": "soft",
        "soft_gpus": 2,
        "token": TOKEN,
        "on_stop": "end",
        "worker_start_seconds": 60,
        **changes,
    }
    return Settings.model_validate(values)


def hello_fields(**changes: str | None) -> dict[str, str]:
    """The fields of a hello that is in order, with changes; None leaves a field out."""
    fields: dict[str, str | None] = {
        "wire": "3",
        "token": TOKEN,
        "pid": str(os.getpid()),
        "program": "test",
        "host": "here",
        "boot-id": "0",
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return {key: value for key, value in fields.items() if value is not None}


def hello(**changes: str | None) -> bytes:
    """The bytes of such a hello."""
    return protocol.encode("hello", hello_fields(**changes))


def refused(answer: bytes) -> tuple[str, str]:
    """Code and message of an answer, which must be a refusal."""
    message = protocol.decode(answer)
    assert message.word == "refused", answer
    assert set(message.fields) == {"code", "message"}
    assert message.fields["code"] in protocol.REFUSAL_CODES
    return message.fields["code"], message.fields["message"]


def accepted(answer: bytes) -> dict[str, str]:
    """The fields of an answer, which must be ok."""
    message = protocol.decode(answer)
    assert message.word == "ok", answer
    return dict(message.fields)


def process_lives(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds; the test's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.02)


def compile_driver(folder: Path) -> Path:
    """The fake driver library, built with the C compiler that the project needs anyway."""
    target = folder / "libfakedriver.so"
    source = HERE / "fake_driver.c"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", target, source], check=True
    )
    return target
