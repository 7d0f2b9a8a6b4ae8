"""A CURVE key pair that lasts: made once, kept in a file that only its owner reads."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from gpupool_common.errors import ConfigError, GpupoolError, InstallError

NAME = "curve.key"

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Keys:
    """Both as 64 hexadecimal digits."""

    public: str
    secret: str = field(repr=False)


def load_keys(folder: Path) -> Keys:
    """The key pair of a folder, made there at the first start; ConfigError says what is wrong."""
    path = folder / NAME
    if not zmq.has("curve"):
        raise InstallError("this libzmq cannot encrypt; install pyzmq's wheel, whose libzmq can")
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    _make(path)
    return _read(path)


def _make(path: Path) -> None:
    public, secret = zmq.curve_keypair()
    text = f"{z85.decode(public).hex()}\n{z85.decode(secret).hex()}\n"
    draft = path.with_suffix(".new")
    try:
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError as error:
        raise GpupoolError(f"the key file {path} cannot be written: {error.strerror}") from None


def _read(path: Path) -> Keys:
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read(4096).split("\n")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        lines, mode = [], stat.S_IFREG
    if mode & 0o077:
        raise ConfigError(f"other users may use the key file {path}; run: chmod 600 {path}")
    if len(lines) != 3 or not all(map(_HEX.fullmatch, lines[:2])) or lines[2] or not _fit(*lines):
        raise ConfigError(
            f"the key file {path} holds no key pair; restore it, or remove it for a new one,"
            " which others must be told"
        )
    return Keys(lines[0], lines[1])


def _fit(public: str, secret: str, _: str) -> bool:
    """Whether they are a pair."""
    found = zmq.curve_public(z85.encode(bytes.fromhex(secret)))
    return bool(z85.decode(found).hex() == public)
