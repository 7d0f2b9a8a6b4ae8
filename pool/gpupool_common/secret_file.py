"""Files with a secret in them: nobody but their owner can read them, from the first byte on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpupool_common.errors import ConfigError, GpupoolError

#: No secret of ours is longer.
MOST_BYTES = 4096


def write_secret(path: Path, secret: str) -> None:
    """A new file; one that is there is somebody's, and is left alone."""
    try:
        _write_new(path, secret)
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None


def replace_secret(path: Path, secret: str) -> None:
    """A file as a whole: who reads it meanwhile, or after a crash, finds the old one or this."""
    draft = path.with_suffix(".new")
    try:
        draft.unlink(missing_ok=True)
        _write_new(draft, secret)
        draft.replace(path)
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None


def _write_new(path: Path, secret: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: Path, kind: str, most: int = MOST_BYTES) -> str:
    """The text of a file, which ConfigError calls a ``kind`` if it cannot be used.

    Other users must not be able to read it. Something that is not a file, such as a pipe, has
    no such rights of its own.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(most)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the {kind} {path} cannot be read: {reason}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigError(f"other users may use the {kind} {path}; run: chmod 600 {path}")
    return text
