"""Memory and parts of a GPU as people write them, and as messages give them back.

Inside, memory is a number of bytes and a part of a GPU a number of its thousandths; what is
typed is read here and nowhere else, and what is shown is what could have been typed.

A unit is a power of 1024 however it is written, since GPUs are sold so: a card of 80 GB has
80 GiB. A part is a percentage, or of the GPU itself where it has a point: 50% is 50 is 0.5. A
whole 1 is the whole GPU, and 1% a hundredth of it.
"""

from __future__ import annotations

import re

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
LARGEST = 1 << 50
#: In thousandths.
WHOLE_GPU = 1000

_NUMBER = r"(?=\.?[0-9])([0-9]{0,%d})(?:\.([0-9]{1,%d}))?"
_SIZE = re.compile(_NUMBER % (19, 6) + r" ?(?:([KMGT])(?:I?B|I)?|B)?", re.IGNORECASE | re.ASCII)
_PART = re.compile(_NUMBER % (7, 3) + r"( ?%)?", re.ASCII)


def parse_size(text: str) -> int:
    """The number of bytes that ``text`` names; ValueError says which forms are allowed."""
    match = _SIZE.fullmatch(text.strip())
    unit = 1 if match is None or not match[3] else 1 << 10 * (1 + "KMGT".index(match[3].upper()))
    if match is None or (match[2] and unit == 1):  # no part of a byte
        raise ValueError(f"{text!r} is not a size; write a number of bytes or e.g. 512MiB, 1GiB")
    behind = match[2] or "0"
    size = int(match[1] or "0") * unit + int(behind) * unit // int("1" + "0" * len(behind))
    if size > LARGEST:
        raise ValueError(f"{text!r} is more than 1024TiB")
    return size


def parse_part(text: str) -> int:
    """The thousandths of a GPU, or of GPUs, that ``text`` names; ValueError if it names none."""
    match = _PART.fullmatch(text.strip())
    if match is None or (match[3] and len(match[2] or "") > 1):
        raise ValueError(f"{text!r} is not a part of a GPU; write e.g. 50% or 0.5")
    whole, behind = int(match[1] or "0"), match[2] or ""
    if match[3] or (not behind and whole > 1):
        return whole * 10 + int(behind or "0")
    return whole * WHOLE_GPU + int(behind.ljust(3, "0"))


def format_size(size: int) -> str:
    """What, typed, is ``size`` bytes: in the largest unit with at most two decimals, ``1.5GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        text = f"{size / UNITS[unit]:.2f}".rstrip("0").rstrip(".") + unit
        if size >= UNITS[unit] and parse_size(text) == size:
            return text
    return f"{size}B"


def short_size(size: int) -> str:
    """About ``size`` bytes, in the largest unit with at most one decimal: ``79.6GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.1f}".removesuffix(".0") + unit
    return f"{size}B"


def format_part(permille: int) -> str:
    """Thousandths of a GPU as a percentage, ``33.3%``."""
    whole, tenth = divmod(permille, 10)
    return f"{whole}.{tenth}%" if tenth else f"{whole}%"
