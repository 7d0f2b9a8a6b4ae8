"""Byte counts as people write them: ``1GiB``, ``512MiB``, ``4096``."""

from __future__ import annotations

import re

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
LARGEST = 1 << 50
_FORM = re.compile(r"(\d{1,19}) ?([KMGT]iB|B|)")


def parse_size(text: str) -> int:
    """The number of bytes that ``text`` names; ValueError says which forms are allowed."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write a number of bytes or e.g. 512MiB, 1GiB")
    size = int(match[1]) * UNITS[match[2]]
    if size > LARGEST:
        raise ValueError(f"{text!r} is more than 1024TiB")
    return size


def format_size(size: int) -> str:
    """``size`` bytes in the largest unit that keeps it at least 1, e.g. ``79.6 GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            value = size / UNITS[unit]
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{size} B"
