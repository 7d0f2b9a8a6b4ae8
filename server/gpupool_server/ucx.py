"""Where UCX is, by which workers speak to clients over RDMA."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gpupool_common.errors import InstallError

_NAME = "libucp.so.0"
#: Of the wheels libucx-cu12 and libucx-cu13.
_WHEEL = "libucx/lib"
_SYSTEM = (
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)

#: Where a worker finds it; and what its settings begin with, which the operator gives the server.
VARIABLE, PREFIX = "GPUPOOL_UCX_LIBRARY", "GPUPOOL_UCX_"

#: What UCX opens beside its libraries: its transports, but for those of GPU memory.
_PARTS = "ucx/libuct_*.so.0"
_LEFT_OUT = ("libuct_cuda", "libuct_rocm", "libuct_ze")


def find(named: Path | None) -> Path | None:
    """The library that a worker opens; None: there is none. A worker looks at its release."""
    if named is not None:
        if not named.is_file():
            raise InstallError(f"UCX's library {named} does not exist (setting ucx_library)")
        return named
    folders = [*(Path(entry) / _WHEEL for entry in sys.path), *map(Path, _SYSTEM)]
    return next((path for folder in folders if (path := folder / _NAME).is_file()), None)


def files(library: Path) -> Iterator[Path]:
    """What a worker loads because of it, without what those need."""
    yield library
    for part in sorted(library.resolve().parent.glob(_PARTS)):
        if not part.name.startswith(_LEFT_OUT):
            yield part


def environment(library: Path) -> dict[str, str]:
    """What a worker needs to find it, and how it is to be set."""
    own = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    return {**own, VARIABLE: str(library)}
