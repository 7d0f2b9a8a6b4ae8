"""Which files of the host a worker and its driver need, found as the loader finds them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpupool_common.errors import InstallError

#: Beside libcuda, what it opens by itself when it needs it.
DRIVER_PARTS = ("libcuda*.so*", "libnvidia*.so*", "libnvcuvid*.so*", "libnvoptix*.so*")

_LIBRARY = re.compile(r"\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)")
_SECONDS = 30.0


def _plain(path: Path | str) -> str:
    return os.path.normpath(path)


def _listed(command: list[str], env: dict[str, str]) -> list[str]:
    """What the loader says that it would load."""
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"the loader does not list what {command[-1]} needs: {error}") from None
    return [found[1] for line in done.stdout.splitlines() if (found := _LIBRARY.match(line))]


class Loader:
    """The dynamic loader of a program, asked without running anything of it."""

    def __init__(self, program: Path, library_path: str = "") -> None:
        env = {"LD_TRACE_LOADED_OBJECTS": "1"}
        self._env = {"LD_LIBRARY_PATH": library_path} if library_path else {}
        self._found = {_plain(program)}
        libraries = _listed([str(program)], {**env, **self._env})
        loaders = [path for path in libraries if Path(path).name.startswith("ld-")]
        if not loaders:
            raise InstallError(f"{program} has no dynamic loader, so its libraries are not known")
        self._loader = loaders[0]
        self._found.update(map(_plain, libraries))

    def add(self, library: Path) -> None:
        """A library that is opened later, and what it needs."""
        self._found.add(_plain(library))
        self._found.update(map(_plain, _listed([self._loader, "--list", str(library)], self._env)))

    @property
    def files(self) -> list[str]:
        return sorted(self._found)


def _siblings(driver: Path) -> Iterator[Path]:
    for folder in {driver.parent, driver.resolve().parent}:
        for pattern in DRIVER_PARTS:
            yield from folder.glob(pattern)


def _plugins(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("*.so")) if folder.is_dir() else ()


def libraries(
    program: Path,
    plugins: Path,
    driver: Path,
    kind: str,
    env: dict[str, str],
    opened: Iterable[Path] = (),
) -> list[str]:
    """All files that may be executed in a worker; InstallError if they cannot be found out.

    ``opened``: libraries that it opens beside its driver and its plug-ins.
    """
    loader = Loader(program, env.get("LD_LIBRARY_PATH", ""))
    for library in (*_plugins(plugins), *opened):
        loader.add(library)
    loader.add(driver)
    if kind == "cuda":
        for part in _siblings(driver):
            loader.add(part)
    return [path for path in loader.files if os.path.exists(path)]


def closed_to_others(paths: Iterable[str]) -> str | None:
    """The first of these files that only its owner may use, if there is one."""
    for path in paths:
        mode = os.stat(path).st_mode
        if not mode & 0o004:
            return path
    return None
