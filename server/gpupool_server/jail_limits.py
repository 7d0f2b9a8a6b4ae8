"""What a worker in a jail may ask of the kernel, and how much it may have of the process's own."""

from __future__ import annotations

import os
import resource

from gpupool_common.errors import ConfigError
from gpupool_server.config import Settings

#: Threads of one worker; the driver has about ten for each GPU.
THREADS = 4096


def open_learned(settings: Settings) -> int:
    """The file for what workers call, open for appending; -1 if nothing is to be learned."""
    path = settings.learn_syscalls
    if path is None:
        return -1
    if settings.confined == "off":
        raise ConfigError("--learn-syscalls needs workers in a jail: --confinement is off")
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--learn-syscalls: {path} cannot be written: {error.strerror}") from None


def _open_files(wanted: int) -> int:
    """Not more than the server has itself: a worker has no right to raise it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)


#: Bytes that a worker may lock for itself: what Linux gives every process. What it pins for its
#: client is the driver's, which is not counted here.
LOCKED = 8 << 20


def lines(
    settings: Settings, driver: str, uid: int, learn: int, open_files: int, locked: int | None
) -> list[tuple[str, object]]:
    """For the starter (server/jail/description.h)."""
    found: list[tuple[str, object]] = [
        ("limit", "core 0"),  # a dump would hold the tenant's data
        ("limit", f"nofile {_open_files(open_files)}"),
        ("limit", f"memlock {LOCKED if locked is None else locked}"),
    ]
    if uid:  # it counts what all processes of a user have
        found.append(("limit", f"nproc {THREADS}"))
    found.append(("seccomp-profile", "soft" if driver == "soft" else "cuda"))
    if learn >= 0:
        found += [("seccomp", "learn"), ("learn", learn)]
    else:
        found.append(("seccomp", settings.seccomp))
    return found
