"""What the doctor looks at on this machine: the library, who loads it, variables and limits."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpupool.run import client_environment
from gpupool_common import __version__, paths, variables
from gpupool_common.errors import GpupoolError, InstallError
from gpupool_common.findings import Finding
from gpupool_common.helper_process import command_of
from gpupool_common.protocol import one_line
from gpupool_common.sizes import format_size

PROBE_SECONDS = 60.0
#: A device's window of addresses; the client reserves one for each device of a session.
WINDOW = 1 << 40
FEWEST_FILES = 256


def probe(words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """What a program says that is started with this environment; GpupoolError says why nothing."""
    env = {**env, "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [*command_of("gpupool.doctor_probe"), *words]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise GpupoolError(f"a program was not done within {PROBE_SECONDS:g} s") from None
    if done.returncode != 0:
        said = [one_line(line) for line in done.stderr.splitlines() if line.strip()]
        ours = [line.removeprefix("gpupool: ") for line in said if line.startswith("gpupool: ")]
        last = said[-1:] or [f"it ended with code {done.returncode} and said nothing"]
        raise GpupoolError("; ".join(dict.fromkeys([*last, *ours])))
    try:
        # Whatever else a program prints that is started here, what it was asked comes last.
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise GpupoolError("a program did not say what it was asked for") from None
    return told


def check_library(home: paths.Home) -> Finding:
    try:
        path = home.part(paths.CLIENT_LIBRARY)
    except InstallError as error:
        return Finding("library", False, str(error))
    return Finding("library", True, f"{path}, of gpupool {__version__}")


def check_loader(home: paths.Home) -> list[Finding]:
    """Which driver a program gets, with the launcher and without it, and the transports."""
    plugins = sorted(map(str, (home.root / paths.PLUGINS).glob("*.so")))
    ours = home.root / paths.CLIENT_LIBRARY
    try:
        launched = probe(("load", *plugins), client_environment(home, "", "", os.environ, None))
        bare = probe(("load",), os.environ)
    except GpupoolError as error:
        return [Finding("driver", False, str(error))]
    return [
        _launched(launched, ours),
        Finding("without run", True, _bare(bare, ours)),
        *_transports(launched["plugins"]),
    ]


def _launched(told: Mapping[str, Any], ours: Path) -> Finding:
    driver = told["driver"]
    if driver is not None and Path(driver).resolve() == ours.resolve():
        text = "gpupool run loads gpupool's: its folder is the first of LD_LIBRARY_PATH"
        return Finding("driver", True, text)
    what = f"it loads {driver}" if driver else f"it loads none: {told.get('reason')}"
    return Finding("driver", False, f"gpupool run does not load gpupool's library: {what}")


def _bare(told: Mapping[str, Any], ours: Path) -> str:
    driver = told["driver"]
    if driver is None:
        return (
            "programs that are started without gpupool run find no CUDA driver here;"
            " LD_LIBRARY_PATH=$(gpupool lib-path) is what they need"
        )
    if Path(driver).resolve() == ours.resolve():
        return "programs of this shell load gpupool's library, too: LD_LIBRARY_PATH names it"
    return f"programs that are started without gpupool run load {driver}, not gpupool's library"


def _transports(told: Mapping[str, str]) -> list[Finding]:
    wrong = {Path(path).stem.removeprefix("libgpupool_"): why for path, why in told.items() if why}
    if wrong:
        text = "; ".join(f"{name} is not to be had: {why}" for name, why in wrong.items())
        return [Finding("transports", False, text)]
    names = ", ".join(Path(path).stem.removeprefix("libgpupool_") for path in told)
    return [Finding("transports", True, f"shm, {names}" if names else "shm alone")]


def check_variables(env: Mapping[str, str]) -> Finding:
    """Names that nobody reads."""
    found = variables.nearly(env)
    if found:
        text = "; ".join(f"{name} does nothing: is {meant} meant?" for name, meant in found.items())
        return Finding("variables", False, text)
    ours = sorted(name for name in env if name in variables.NAMES)
    return Finding("variables", True, ", ".join(ours) or "none of gpupool's is set")


def check_limits() -> list[Finding]:
    """Limits of this shell that programs inherit, and what they would notice of them."""
    return [
        _limit("open files", resource.RLIMIT_NOFILE, FEWEST_FILES, str, _FEW_FILES),
        _limit("file size", resource.RLIMIT_FSIZE, WINDOW, format_size, _SMALL_FILES),
        _limit("address space", resource.RLIMIT_AS, WINDOW, format_size, _FEW_ADDRESSES),
        _locked(),
    ]


_FEW_FILES = "a session takes some descriptors, and a program its own: ulimit -n raises it"
_SMALL_FILES = (
    "memory files count: there is no managed memory, below 16MiB no shared memory; ulimit -f"
    " unlimited raises it"
)
_FEW_ADDRESSES = (
    "CUDA reserves addresses for each device: programs may get CUDA_ERROR_OUT_OF_MEMORY;"
    " ulimit -v unlimited raises it"
)


def _limit(name: str, which: int, least: int, show: Any, why: str) -> Finding:
    soft, _ = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY:
        return Finding(name, True, "no limit")
    if soft < least:
        return Finding(name, False, f"at most {show(soft)}: {why}")
    return Finding(name, True, f"at most {show(soft)}")


def _locked() -> Finding:
    """Never a fault: what is pinned is pinned by the worker, on its own machine."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"at most {format_size(soft)}"
    return Finding("locked memory", True, f"{limit}; gpupool locks none here, GPU hosts do")
