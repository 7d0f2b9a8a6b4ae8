"""Which driver library the workers open: the system's libcuda.so.1 or the soft GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpupool_common import paths
from gpupool_common.errors import InstallError

VARIABLE = "GPUPOOL_DRIVER_LIBRARY"

_PLACES = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)


def checked(path: Path) -> Path:
    """``path`` if a worker may open it; InstallError if it is not a file, or is our own client."""
    if not path.is_file():
        raise InstallError(f"the driver library {path} does not exist")
    try:
        ours = paths.is_client_library(path)
    except OSError as error:
        raise InstallError(f"the driver library {path} cannot be read: {error.strerror}") from None
    if ours:
        raise InstallError(
            f"the driver library {path} is gpupool's own client library, through which a worker"
            f" would only reach itself; name the real one with --driver or {VARIABLE}"
        )
    return path


def _ldconfig() -> Iterator[Path]:
    """What the loader's cache has under libcuda.so.1 for this machine's word size."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.path.exists(program):
            done = subprocess.run([program, "-p"], capture_output=True, text=True, check=False)
            for line in done.stdout.splitlines():
                name, _, target = line.partition(" => ")
                if name.split(" ")[0].strip() == "libcuda.so.1" and "x86-64" in name:
                    yield Path(target.strip())
            return


def find_system(env: Mapping[str, str] | None = None) -> Path | None:
    """The machine's real libcuda.so.1; None if there is none.

    A library that the operator named must be right; of what is found by searching,
    copies of our own are passed over.
    """
    chosen = (os.environ if env is None else env).get(VARIABLE, "")
    if chosen:
        return checked(Path(chosen).absolute())
    for path in (*_ldconfig(), *map(Path, _PLACES)):
        try:
            return checked(path)
        except InstallError:
            continue
    return None


def find_soft(home: paths.Home) -> Path:
    """The soft GPU's library; InstallError if it is not installed."""
    return home.part(paths.SOFT_GPU)
