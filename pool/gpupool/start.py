"""The command ``gpupool`` before all of it is imported."""

from __future__ import annotations

from gpupool_common import collector, interrupt


def main() -> None:
    """The entry point."""
    with interrupt.quiet():
        with collector.importing():
            from gpupool.cli import main as run

        run()
