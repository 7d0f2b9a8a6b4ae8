"""``gpupool lib-path``: where our libraries are."""

from __future__ import annotations

import typer

from gpupool.options import one_line_errors
from gpupool_common import paths


def lib_path() -> None:
    """Print the folder to put first in LD_LIBRARY_PATH."""
    with one_line_errors():
        print(paths.find_home().lib_path)


def add_to(app: typer.Typer) -> None:
    app.command("lib-path")(lib_path)
