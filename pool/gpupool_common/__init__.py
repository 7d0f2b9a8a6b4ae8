"""What the command, the server and the manager share; it imports none of them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gpupool")
except PackageNotFoundError:  # the sources alone, without an installation
    __version__ = "0+unknown"
