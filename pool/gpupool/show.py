"""How the commands show things: consoles, tables, parts of a GPU, bars."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpupool_common.sizes import UNITS, format_part

WIDTH = 80
_BLOCKS = " ▏▎▍▌▋▊▉█"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def console(width: int | None = None) -> Console:
    """A console that shows text as it is; of any terminal's own width if none is given."""
    return Console(width=width, highlight=False, markup=False)


def wide_console() -> Console:
    """For plain tables: a cut cell would be of no use to anybody, least to a script."""
    return console(1000)


def plain_table(columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> Table:
    """Columns without lines, as ``ps`` has them."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def boxed_table(*columns: tuple[str, int, str]) -> Table:
    """A table with lines, 80 columns wide in all: titles, widths and sides of its columns."""
    table = Table(box=box.ASCII, header_style="bold", pad_edge=True)
    for title, width, side in columns:
        left = side == "left"
        table.add_column(
            title,
            width=width,
            justify="left" if left else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def part(permille: int | None) -> str:
    """A part of a GPU as a percentage, ``33.3%``; ``?`` where it is not known."""
    return "?" if permille is None else format_part(permille)


def mebibytes(size: int) -> str:
    return f"{size // UNITS['MiB']}MiB"


def gibibytes(size: int) -> str:
    """GiB with at most one decimal, ``5.9`` or ``6``."""
    return f"{size / UNITS['GiB']:.1f}".removesuffix(".0")


def bar(value: float, width: int, style: str = "green") -> Text:
    """A bar of ``width`` cells, filled in eighths of a cell; ``value`` is 0..1."""
    eighths = round(min(max(value, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_BLOCKS[rest] if rest else "")
    return Text(filled.ljust(width), style=style)


def age(seconds: float) -> str:
    """``1:05`` minutes and seconds, or with hours before them."""
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
