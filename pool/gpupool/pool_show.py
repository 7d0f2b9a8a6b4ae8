"""How commands show what a pool answered: tables for 80 columns, times, parts, limits."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpupool import show
from gpupool_common.errors import ProtocolError
from gpupool_common.protocol import one_line
from gpupool_common.sizes import UNITS, format_part, short_size

NONE = "-"


def terminal_width() -> int | None:
    """The width of the terminal on stdout; None if something else reads it."""
    return show.console().width if sys.stdout.isatty() else None


def table(columns: Iterable[str], rows: Iterable[tuple[Any, ...]], empty: str) -> None:
    """A plain table: on a terminal its last column wraps, elsewhere each row is one line."""
    found = [tuple(one_line(str(cell)) for cell in row) for row in rows]
    if not found:
        print(empty, file=sys.stderr)
        return
    made = show.plain_table(columns, found)
    width = terminal_width()
    if width is not None:
        for column in made.columns[:-1]:
            column.no_wrap = True
        made.columns[-1].overflow = "fold"
    (show.wide_console() if width is None else show.console(width)).print(made)


def sheet(rows: Iterable[tuple[str, Any]]) -> None:
    """One thing, a line for each property."""
    found = [(name, one_line(str(value))) for name, value in rows]
    width = max(len(name) for name, _ in found) + 2
    for name, value in found:
        print(f"{name + ':':{width}}{value}")


def cell(record: Mapping[str, Any], key: str) -> Any:
    """A property that every record of its kind has."""
    if not isinstance(record, Mapping) or key not in record:
        raise ProtocolError(f"the pool's answer has no '{key}'; is it of another release?")
    value = record[key]
    return NONE if value is None or value == "" else value


def when(text: Any) -> str:
    """A time as the pool writes it, in UTC, to the second."""
    found = parse_time(text)
    return NONE if found is None else found.strftime("%Y-%m-%d %H:%M:%S")


def since(text: Any) -> str:
    """How long ago a time was."""
    found = parse_time(text)
    return NONE if found is None else show.age((datetime.now(UTC) - found).total_seconds())


def until(text: Any) -> str:
    """How long it is until a time."""
    found = parse_time(text)
    return NONE if found is None else show.age((found - datetime.now(UTC)).total_seconds())


def parse_time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def memory(size: Any) -> str:
    """Bytes in the unit that fits, ``79.6GiB``."""
    if not isinstance(size, int):
        return NONE
    return show.mebibytes(size) if size < UNITS["GiB"] else short_size(size)


def compute(permille: Any) -> str:
    """Of one GPU, or of many."""
    return format_part(permille) if isinstance(permille, int) else NONE


def use(used: Any, most: Any, form: Any = str) -> str:
    """``2/4``; ``2/-`` where there is no limit."""
    return f"{form(used)}/{NONE if most == NONE or most is None else form(most)}"


def labels(found: Any) -> str:
    if not isinstance(found, Mapping) or not found:
        return NONE
    return ",".join(f"{key}={value}" for key, value in sorted(found.items()))


def request_text(record: Mapping[str, Any]) -> str:
    """What was asked for, in short: ``2x 8GiB 50%``."""
    size = record.get("memory_bytes")
    each = "whole" if size is None else f"{memory(size)} {compute(record.get('share_permille'))}"
    return f"{record.get('gpus')}x {each}"
