"""The command ``gpupool-manager`` before anything of it is imported that may not be installed."""

from __future__ import annotations

import sys

from gpupool_common import collector, interrupt
from gpupool_manager.extras import not_installed

#: Packages of our own: one that is missing is a damaged installation.
_OURS = ("", "gpupool", "gpupool_common", "gpupool_manager", "gpupool_server")


def main() -> None:
    """The entry point."""
    try:
        with interrupt.quiet():
            with collector.importing():
                from gpupool_manager.cli import main as run

            run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS:
            raise
        sys.exit(f"gpupool-manager: {not_installed(missing)}")


if __name__ == "__main__":
    main()
