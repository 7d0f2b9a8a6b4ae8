"""The file of the socket at which programs of this machine get shared memory.

Whoever may write to a folder above it could put a socket of theirs in its place, and would be
told the words of sessions. So none may but root and the server's own user.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from gpupool_common import paths
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_server.config import Settings

#: Where a server of root's listens, if nobody says otherwise: its run directory is its own.
FOR_ALL = Path("/run/gpupool-shm/server.sock")

BACKLOG = 1024


def socket_path(settings: Settings) -> Path | None:
    """Where to listen; None: there is no shared memory."""
    if settings.shm_listen == "none":
        return None
    if settings.shm_listen != "auto":
        return Path(settings.shm_listen)
    if settings.run_dir is None and os.geteuid() == 0:
        return FOR_ALL
    return (settings.run_dir or paths.default_run_dir()) / "shm.sock"


def listen(path: Path) -> socket.socket:
    """Listen where every user may connect, as far as the folders let them; ConfigError."""
    try:
        _make_folder(path.parent)
        _check_folders(path.parent)
        _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {path}: {error.strerror}; choose another place: --shm-listen"
        ) from None
    return listener


def _make_folder(folder: Path) -> None:
    if folder.exists():
        return
    folder.mkdir(parents=True)
    folder.chmod(0o755)  # whatever the umask: others are to get through it


def _check_folders(folder: Path) -> None:
    own = (0, os.geteuid())
    for each in dict.fromkeys((folder, *folder.parents, *folder.resolve().parents)):
        info = each.stat()
        shared = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
        if info.st_uid not in own or shared or (each == folder and info.st_mode & stat.S_IWOTH):
            raise ConfigError(
                f"cannot listen in {folder}: others may write to {each} and take the socket's"
                " place; choose a folder that only root and the server can write to: --shm-listen"
            )


def _remove_stale(path: Path) -> None:
    """What a server that was killed left is removed; what is in use, or no socket, is not."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode):
        raise GpupoolError(f"cannot listen at {path}: a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # its queue is full: somebody listens
            pass
    raise GpupoolError(
        f"cannot listen at {path}: another process does; choose another place: --shm-listen"
    )
