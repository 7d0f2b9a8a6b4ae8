"""The packages that only the manager needs, and how to install them."""

from __future__ import annotations

import sys

#: What the manager needs beside what every installation has, and who brings it.
_MANAGER, _POSTGRESQL = "gpupool[manager]", "gpupool[manager,postgresql]"


def not_installed(package: str) -> str:
    """What to do about a package of others that is not there."""
    extra = _POSTGRESQL if package == "asyncpg" else _MANAGER
    return (
        f"the package '{package}' is not installed; run: {sys.executable} -m pip install '{extra}'"
    )
