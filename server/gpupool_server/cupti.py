"""Where CUPTI is, which records what a GPU does when for profilers and timelines of clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpupool_common.errors import InstallError

_NAMES = ("libcupti.so.13", "libcupti.so.12")
#: In the toolkit; with its wheels nvidia-cuda-cupti and nvidia-cuda-cupti-cu12.
_TOOLKIT = ("/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64")
_WHEELS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")


def _folders() -> Iterator[Path]:
    for entry in sys.path:
        yield from (Path(entry) / wheel for wheel in _WHEELS)
    yield from map(Path, _TOOLKIT)


def find(named: Path | None, kind: str) -> Path | None:
    """What a worker of this driver opens; None: the soft GPU's own, or there is none.

    What the operator named must be there.
    """
    if named is not None:
        if not named.is_file():
            raise InstallError(f"CUPTI's library {named} does not exist (setting cupti)")
        return named
    if kind != "cuda":
        return None
    places = (folder / name for name in _NAMES for folder in _folders())
    return next((path for path in places if path.is_file()), None)
