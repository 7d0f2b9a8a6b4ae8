"""The command ``gpupool-manager`` before anything of it is imported that may not be installed."""

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


def main() -> None:
    """The entry point."""
    try:
        from gpupool_manager.cli import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "gpupool", "gpupool_manager", "gpupool_server"):
            raise
        sys.exit(f"gpupool-manager: {not_installed(missing)}")


if __name__ == "__main__":
    main()
