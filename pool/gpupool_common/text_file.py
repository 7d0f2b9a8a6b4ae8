"""Short files that somebody else has written: settings, tokens, passwords."""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: No settings and no secret of anybody are longer.
MOST_BYTES = 1024 * 1024


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """All of a file; OSError if it is longer than ``most`` bytes: a device may have no end."""
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return found.decode("utf-8-sig")  # editors may begin with a mark
