"""The run directory: what a server must find again after its own restart.

::

    RUN/lock                        held by the server that runs
    RUN/token                       the token, if nobody gave one (mode 0600)
    RUN/pool.json                   what the pool's manager has ordered (mode 0600)
    RUN/admin.sock                  where the operator's commands ask (mode 0600)
    RUN/shm.sock                    where programs get shared memory (shm_socket.py)
    RUN/gpus/INDEX.arbiter          the socket of a GPU's arbiter (arbiter.py)
    RUN/gpus/INDEX.arbiter.aside    that of one of another release
    RUN/gpus/INDEX.json             who may have what of a GPU (gpu.py)
    RUN/gpus/cards.json             what real cards there were (nvml_inventory.py)
    RUN/gpus/soft/INDEX.vN.runlist  who runs on a soft GPU (server/softgpu/runlist.h)
    RUN/jail                        where workers' roots are made; always empty as others see it
    RUN/sessions/ID/meta.json       written by the server when it starts a worker
    RUN/sessions/ID/control.sock, stdout, stderr
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.secret_file import read_secret, replace_secret
from gpupool_common.space import explain
from gpupool_server.config import DEFAULT_TENANT, Settings
from gpupool_server.device_indexes import check_indexes
from gpupool_server.jail_status import Confined
from gpupool_server.sharing import name_allowed, token_allowed

_ID = re.compile(r"[0-9a-f]{12}")


def make_state_dir(settings: Settings, run_dir: Path) -> Path:
    """The folder for what must outlast a reboot, made if it is not there.

    Who chose a run directory and nothing else has everything in it.
    """
    if settings.state_dir is not None:
        path = settings.state_dir
    elif settings.run_dir is not None:
        path = run_dir
    elif os.geteuid() == 0:
        path = Path("/var/lib/gpupool-server")
    else:
        base = os.environ.get("XDG_STATE_HOME", "")
        home = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
        path = home / "gpupool-server"
    _make_private(path, "state", "--state-dir")
    return path


def lasting_dir(settings: Settings, run_dir: Path) -> tuple[Path, str]:
    """The folder for what should outlast a reboot; the run directory, and why, if it cannot."""
    try:
        return make_state_dir(settings, run_dir), ""
    except GpupoolError as error:
        return run_dir, str(error)


@dataclass(frozen=True)
class Meta:
    """What a server writes down about a worker, so that the next one knows it."""

    session: str
    pid: int
    start_time: int
    devices: tuple[int, ...]
    created: float
    client_pid: int
    client_host: str
    program: str
    tenant: str = DEFAULT_TENANT
    group: str | None = None
    #: What gpus.py wrote of its claims; empty: its worker is on no board.
    grant: Mapping[str, Any] = field(default_factory=dict)
    #: The lease of the pool that it is of, and the id of the request that asked for that.
    lease: str | None = None
    request_id: str = ""
    #: What it may have of the host, by name (budgets.py).
    budgets: Mapping[str, int] = field(default_factory=dict)
    #: shm_door.digest_of the word with which its client comes; empty: by the network alone.
    door: str = ""
    #: Its jail.
    confined: Confined = field(default_factory=Confined)

    @classmethod
    def parse(cls, text: str) -> Meta:
        """ValueError if the text is not what :meth:`write` wrote."""
        raw: Any = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("no JSON object")
        try:
            meta = cls(
                session=str(raw["session"]),
                pid=int(raw["pid"]),
                start_time=int(raw["start_time"]),
                devices=check_indexes(tuple(int(index) for index in raw["devices"])),
                created=float(raw["created"]),
                client_pid=int(raw["client_pid"]),
                client_host=str(raw["client_host"]),
                program=str(raw["program"]),
                tenant=str(raw.get("tenant", DEFAULT_TENANT)),
                group=None if raw.get("group") is None else str(raw["group"]),
                grant=dict(raw.get("grant", {})),
                lease=None if raw.get("lease") is None else str(raw["lease"]),
                request_id=str(raw.get("request_id", "")),
                budgets={str(k): int(v) for k, v in dict(raw.get("budgets", {})).items()},
                door=str(raw.get("door", "")),
                confined=Confined.parse(raw.get("confined", {})),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the field {error} is missing or wrong") from None
        if meta.pid <= 1 or _ID.fullmatch(meta.session) is None:
            raise ValueError("the pid or the session is wrong")
        if not name_allowed(meta.tenant) or not name_allowed(meta.group or "none"):
            raise ValueError("the tenant or the group is wrong")
        return meta

    def write(self, path: Path) -> None:
        """Write whole or not at all."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        draft.rename(path)


@dataclass(frozen=True)
class SessionDir:
    """The folder of one session and the names in it."""

    path: Path

    @property
    def session(self) -> str:
        return self.path.name

    @property
    def meta(self) -> Path:
        return self.path / "meta.json"

    @property
    def control(self) -> Path:
        return self.path / "control.sock"

    @property
    def stdout(self) -> Path:
        return self.path / "stdout"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr"

    def remove(self) -> None:
        """Remove the folder and all in it; it is not an error if some of it is gone."""
        shutil.rmtree(self.path, ignore_errors=True)


class RunDir:
    """A run directory that this process has locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _make_private(path)
        self._lock = _take_lock(path)
        try:
            self.sessions = path / "sessions"
            self.gpus = path / "gpus"
            self.soft = self.gpus / "soft"
            _make_private(self.sessions)
            _make_private(self.gpus)
            # workers of any user write there; nobody else gets so far
            self.soft.mkdir(exist_ok=True)
            self.soft.chmod(0o777)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let another server have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def new_session(self) -> SessionDir:
        """Make the folder of a new session under a name never used before."""
        while True:
            folder = SessionDir(self.sessions / secrets.token_hex(6))
            try:
                folder.path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            try:
                os.mkfifo(folder.stdout, 0o600)
                os.mkfifo(folder.stderr, 0o600)
            except OSError:
                shutil.rmtree(folder.path, ignore_errors=True)  # else it is taken for a session
                raise
            return folder

    def old_sessions(self) -> Iterator[SessionDir]:
        """The folders that an earlier server left."""
        for path in sorted(self.sessions.iterdir()):
            if _ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield SessionDir(path)


def own_token(folder: Path) -> tuple[str, Path]:
    """The token kept in a folder, made at the first start."""
    path = folder / "token"
    if not path.exists():
        replace_secret(path, secrets.token_urlsafe(32))
    return read_token(path), path


def read_token(path: Path) -> str:
    """The token in a file; ConfigError if there is none or others may read it."""
    token = read_secret(path, "token file").strip()
    if not token_allowed(token):
        raise ConfigError(
            f"the token file {path} must hold one token of 1 to 256 characters without blanks"
        )
    return token


def _make_private(path: Path, kind: str = "run", option: str = "--run-dir") -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise ConfigError(
            f"the {kind} directory {path} cannot be made: {error.strerror}; choose one: {option}"
        ) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise ConfigError(
            f"the {kind} directory {path} is not a folder of this user; choose another: {option}"
        )
    if info.st_mode & 0o077:
        path.chmod(0o700)


def _take_lock(path: Path) -> int:
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 32).decode("ascii", errors="replace").strip()
        os.close(fd)
        raise GpupoolError(
            f"another gpupool-server (pid {holder or 'unknown'}) uses the run directory {path};"
            " stop it, or choose another with --run-dir"
        ) from None
    try:
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"the run directory cannot be used: {explain(error, path)}") from None
    return fd
