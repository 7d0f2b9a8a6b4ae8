"""Where NCCL is, by which the workers of a job make collectives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpupool_common import paths
from gpupool_common.errors import InstallError

_NAME = "libnccl.so.2"
#: Of the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13.
_WHEEL = "nvidia/nccl/lib"
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")


def _folders() -> Iterator[Path]:
    yield from (Path(entry) / _WHEEL for entry in sys.path)
    yield from map(Path, _SYSTEM)


def find(named: Path | None, kind: str) -> Path | None:
    """What a worker of this driver opens; None: there is none.

    What the operator named must be there. A soft GPU has one of its own.
    """
    if named is not None:
        if not named.is_file():
            raise InstallError(f"NCCL's library {named} does not exist (setting nccl)")
        return named
    if kind != "cuda":
        soft = paths.find_home().root / paths.SOFT_NCCL
        return soft if soft.is_file() else None
    return next((path for folder in _folders() if (path := folder / _NAME).is_file()), None)
