"""Where the compiled parts of gpupool are, and the run directory.

The compiled parts are in one of three places, tried in this order: ``GPUPOOL_HOME`` (a folder
into which ``cmake --install`` has installed), the installed package itself, and, in a checkout
of the sources, ``build/stage``. All have the same layout::

    lib/libcuda.so.1                    what a client loads
    lib/libcupti.so.12, .13             what its profilers load
    lib/libnccl.so.2                    what its collectives are called by
    lib/plugins/libgpupool_*.so         transports that need a library
    lib/driver/libgpupool_softgpu.so    the soft GPU, a driver for the worker
    lib/driver/libsoftnccl.so.2         a small NCCL on the soft GPU
    libexec/gpupool-worker
    libexec/gpupool-arbiter             whose turn it is on a GPU
    share/systemd/*.service             units for systemd
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool_common.errors import InstallError

CLIENT_LIBRARY = "lib/libcuda.so.1"
NVML_LIBRARY = "lib/libnvidia-ml.so.1"
#: Programs find their own by RPATH, so the launcher preloads these.
CUPTI = ("lib/libcupti.so.13", "lib/libcupti.so.12")
NCCL = "lib/libnccl.so.2"
PRELOADED = (*CUPTI, NCCL)
SOFT_GPU = "lib/driver/libgpupool_softgpu.so"
SOFT_NCCL = "lib/driver/libsoftnccl.so.2"
WORKER = "libexec/gpupool-worker"
PLUGINS = "lib/plugins"

_MARKER = b"GPUPOOL_SERVER"


@dataclass(frozen=True)
class Home:
    """One installed tree and why it was chosen."""

    root: Path
    reason: str

    def part(self, relative: str) -> Path:
        """The absolute path of an installed file; InstallError if it is not there."""
        path = self.root / relative
        if not path.is_file():
            raise InstallError(
                f"{path} is missing ({self.reason}); reinstall gpupool, or in a checkout run:"
                " make build"
            )
        return path

    @property
    def lib_path(self) -> Path:
        """The folder for LD_LIBRARY_PATH."""
        return self.part(CLIENT_LIBRARY).parent


def find_home(env: Mapping[str, str] | None = None) -> Home:
    """The tree to use. It need not be complete; :meth:`Home.part` says what is missing."""
    chosen = (os.environ if env is None else env).get("GPUPOOL_HOME", "")
    if chosen:
        return Home(Path(chosen).absolute(), "GPUPOOL_HOME names that folder")
    package = Path(__file__).resolve().parent.parent / "gpupool"
    stage = package.parent.parent / "build" / "stage"
    if not (package / "lib").is_dir() and stage.is_dir():
        return Home(stage, "this is a checkout of the sources")
    return Home(package, "the installed package should hold it")


def is_client_library(path: Path) -> bool:
    """Whether a libcuda is gpupool's own: a worker that opened it would call itself.

    Our library reads the variable GPUPOOL_SERVER, so the file contains its name;
    no vendor's driver has it.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_MARKER) >= 0


def default_run_dir(env: Mapping[str, str] | None = None) -> Path:
    """The folder for this user when none was configured."""
    if os.geteuid() == 0:
        return Path("/run/gpupool")
    base = (os.environ if env is None else env).get("XDG_RUNTIME_DIR", "")
    if base and os.path.isabs(base):
        return Path(base) / "gpupool"
    return Path(f"/tmp/gpupool-{os.geteuid()}")
