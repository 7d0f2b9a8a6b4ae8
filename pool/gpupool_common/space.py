"""What is said when the run directory is full."""

from __future__ import annotations

import errno
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)


def no_space(folder: Path, needed: int = 1 << 20) -> str:
    """One line: where, how much, what to do."""
    mebibytes = max(1, -(-needed // (1 << 20)))
    return (
        f"no space left in {folder} ({mebibytes} MiB needed); free some, or set run_dir to a folder"
        " that has more"
    )


def explain(error: OSError, folder: Path) -> str:
    """Why something in ``folder`` could not be made."""
    return no_space(folder) if error.errno in FULL else error.strerror or str(error)
