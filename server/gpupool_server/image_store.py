"""Images that programs have loaded, kept for sessions to come: files of each tenant by hash.

::

    STATE/images/TENANT/HASH        TENANT is a digest of who it is, HASH the image's name

(:mod:`gpupool_server.image_name`), or what clients of releases before call it.

The server alone writes there, and writes what it has hashed itself. A file is never changed, only
replaced or removed, so that workers can map it. They may read the folder of their own tenant:
nobody learns, by an answer or by how long it takes, what another tenant has.

All together have ``limit`` bytes. Where one more does not fit, the file goes that was used longest
ago of the tenant that has most: who has less than its part loses nothing to others. What nobody has
used for :data:`UNUSED_SECONDS` goes anyhow, with folders that are empty then: else tenants that
have gone, or are of a pool that has another address now, would keep their parts for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpupool_server.image_name import ImageName

FOLDER = "images"
MOST_BYTES = 1 << 32  #: of one image, as proto/wire/fatbin.h has it
PIECE = 1 << 20
UNUSED_SECONDS = 30 * 24 * 3600.0

_HASH = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[0-9a-f]{32}")
_F_GET_SEALS = 1034
_DRAFT = ".new"


class ImageError(Exception):
    """An image is not kept."""


@dataclass(frozen=True)
class _File:
    path: Path
    size: int
    used: float


def _files(folder: Path) -> list[_File]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(info.st_mode):
                    found.append(_File(Path(entry.path), info.st_size, info.st_mtime))
    return found


class ImageStore:
    """The files. :meth:`keep` is for one thread at a time; the rest is quick."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self.limit = limit
        #: What all of them have, as was seen last.
        self.bytes = 0

    def tidy(self) -> None:
        """Remove what an earlier server was writing, and what is too much by now.

        OSError if something cannot be removed.
        """
        for folder in self._owners():
            for file in _files(folder):
                if _HASH.fullmatch(file.path.name) is None:
                    file.path.unlink(missing_ok=True)
        self._make_room(None, 0)

    def folder_of(self, pool: str | None, tenant: str) -> Path:
        """The folder of a tenant of this server's, or of a pool's, made if it is not there.

        OSError if it cannot be made.
        """
        folder = self._folder / owner_of(pool, tenant)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)  # for workers of any user; nobody else gets so far
        os.utime(folder)
        return folder

    def used(self, folder: Path, name: str) -> None:
        """A worker has loaded it."""
        if _HASH.fullmatch(name):
            with contextlib.suppress(OSError):
                os.utime(folder / name, follow_symlinks=False)

    def keep(self, folder: Path, name: str, size: int, source: int) -> None:
        """Keep what is in a worker's file, if it is what its name says; ImageError or OSError."""
        if _HASH.fullmatch(name) is None or not 0 < size <= min(MOST_BYTES, self.limit):
            raise ImageError(f"an image of {size} bytes does not fit")
        if _is_whole(folder / name, size):  # of many processes that start at once, all offer it
            self.used(folder, name)
            return
        _check_source(source, size)
        # What is there is damaged, or the worker lies: what has the hash replaces it, or it stays.
        self._make_room(folder, size, folder / name)
        draft = folder / f"{name}{_DRAFT}"
        draft.unlink(missing_ok=True)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o644), "wb", buffering=0) as file:
                os.fchmod(file.fileno(), 0o644)
                if name not in _copy(source, size, file.fileno()):
                    raise ImageError("an image is not what its hash says")
            draft.rename(folder / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _owners(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return [path for path in self._folder.iterdir() if _OWNER.fullmatch(path.name)]
        return []

    def _forget_unused(self, keeps: Path | None) -> None:
        """``keeps``: a folder in which one comes, so it stays."""
        before = time.time() - UNUSED_SECONDS
        for folder in self._owners():
            for file in _files(folder):
                if file.used < before:
                    file.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty, or its tenant comes just now
                if folder != keeps and folder.stat().st_mtime < before:
                    folder.rmdir()

    def _make_room(self, folder: Path | None, size: int, instead: Path | None = None) -> None:
        """For a file of ``size`` bytes in a folder, in the place of another that may be there."""
        self._forget_unused(folder)
        files = {
            owner: [file for file in _files(owner) if file.path != instead]
            for owner in self._owners()
        }
        has = {owner: sum(file.size for file in own) for owner, own in files.items()}
        if folder is not None:
            has[folder] = has.get(folder, 0) + size
        for own in files.values():
            own.sort(key=lambda file: file.used, reverse=True)
        while sum(has.values()) > self.limit:
            owner = max((each for each in files if files[each]), key=has.__getitem__)
            oldest = files[owner].pop()
            oldest.path.unlink(missing_ok=True)
            has[owner] -= oldest.size
        self.bytes = sum(has.values())


def owner_of(pool: str | None, tenant: str) -> str:
    """The name of a tenant's folder: a pool's tenant is not ours of the same name."""
    return hashlib.sha256(f"{pool or ''}\0{tenant}".encode()).hexdigest()[:32]


def _is_whole(path: Path, size: int) -> bool:
    """Whether it is kept, and was not damaged."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size != size:
                return False
            return path.name in _names_of(file, size)
    except OSError:
        return False


def _names_of(file: BinaryIO, size: int) -> tuple[str, ...]:
    name = ImageName(size)
    while piece := file.read(PIECE):
        name.add(piece)
    return name.names()


def _check_source(source: int, size: int) -> None:
    """Only files of memory have seals: reading from them waits for nobody."""
    try:
        fcntl.fcntl(source, _F_GET_SEALS)
    except OSError:
        raise ImageError("an image came in something that is no file of memory") from None
    info = os.fstat(source)
    if not stat.S_ISREG(info.st_mode) or info.st_size < size:
        raise ImageError("an image came in a file that is too short")


def _copy(source: int, size: int, target: int) -> tuple[str, ...]:
    """The names of what was written, which is what was read: the worker may change it meanwhile."""
    name = ImageName(size)
    at = 0
    while at < size:
        piece = os.pread(source, min(PIECE, size - at), at)
        if not piece:
            raise ImageError("an image was cut short")
        name.add(piece)
        at += len(piece)
        while piece:
            piece = piece[os.write(target, piece) :]
    return name.names()
