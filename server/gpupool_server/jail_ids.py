"""User ids for workers: one that no other living worker of this host has.

The claims are files in a folder that all servers of the host share, each with the process that
holds the id: so they outlast a server's restart, and a claim whose process is gone is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gpupool_common.errors import ConfigError
from gpupool_server.process import start_time
from gpupool_server.worker import WorkerError

FOLDER = Path("/run/gpupool-uids")


class Uids:
    """The claims of one range."""

    def __init__(self, first: int, last: int, folder: Path = FOLDER) -> None:
        self._first, self._last = first, last
        self._folder = folder
        self._next = first
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            info = folder.lstat()
        except OSError as error:
            raise ConfigError(f"user ids cannot be claimed in {folder}: {error.strerror}") from None
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise ConfigError(f"user ids cannot be claimed in {folder}: others may write there")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _held(self, uid: int) -> bool:
        try:
            pid, start = (self._folder / str(uid)).read_text(encoding="ascii").split()
            return start_time(int(pid)) == int(start)
        except FileNotFoundError:
            return False
        except ValueError:
            return False  # whoever wrote it died over it
        except OSError:
            return True  # nobody knows

    def _write(self, uid: int, pid: int) -> None:
        draft = self._folder / f"{uid}.new"
        draft.write_text(f"{pid} {start_time(pid) or 0}\n", encoding="ascii")
        draft.rename(self._folder / str(uid))

    def claim(self) -> int:
        """An id, this process's until :meth:`give` names a worker; WorkerError if none is left."""
        size = self._last - self._first + 1
        with self._locked():
            for step in range(size):
                uid = self._first + (self._next - self._first + step) % size
                if not self._held(uid):
                    self._write(uid, os.getpid())
                    self._next = uid + 1
                    return uid
        raise WorkerError(
            f"all {size} user ids {self._first}-{self._last} are taken by workers; give a wider"
            " range: --jail-uids"
        )

    def give(self, uid: int, pid: int) -> None:
        """The id is that of the process from now on."""
        with self._locked():
            self._write(uid, pid)

    def release(self, uid: int) -> None:
        """The process that had the id has ended."""
        with contextlib.suppress(OSError), self._locked():
            (self._folder / str(uid)).unlink(missing_ok=True)
