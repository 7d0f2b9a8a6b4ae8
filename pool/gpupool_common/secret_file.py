"""Files with a secret in them: nobody but their owner can read them, from the first byte on."""

from __future__ import annotations

import os
from pathlib import Path

from gpupool_common.errors import GpupoolError


def write_secret(path: Path, secret: str) -> None:
    """A new file; one that is there is somebody's, and is left alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secret + "\n")
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None
