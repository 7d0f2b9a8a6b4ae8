"""What the command, the server and the manager share; it imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """``__version__``, when it is asked for: finding it out imports much."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("gpupool")
        except PackageNotFoundError:  # the sources alone, without an installation
            found = "0+unknown"
        globals()[name] = found
        return found
