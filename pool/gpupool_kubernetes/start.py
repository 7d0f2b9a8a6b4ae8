"""The command ``gpupool-kubernetes`` before anything of it is imported that may not be there."""

from __future__ import annotations

import sys

from gpupool_common import collector

_EXTRA = "gpupool[kubernetes]"


def main() -> None:
    """The entry point."""
    try:
        with collector.importing():
            from gpupool_kubernetes.cli import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing.startswith("gpupool"):  # a damaged installation
            raise
        sys.exit(
            f"gpupool-kubernetes: the package '{missing}' is not installed; run:"
            f" {sys.executable} -m pip install '{_EXTRA}'"
        )
