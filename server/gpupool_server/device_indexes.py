"""The GPUs of a host by their indexes, as settings, requests and questions write them."""

from __future__ import annotations

MAX_DEVICES = 64


def parse_indexes(text: str) -> tuple[int, ...]:
    """Device indexes from ``0,2,3``; ValueError unless each is a number and comes once."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 3 for part in parts):
        raise ValueError(f"{text!r} is not a list of device indexes such as 0,2")
    return check_indexes(tuple(map(int, parts)))


def check_indexes(indexes: tuple[int, ...]) -> tuple[int, ...]:
    """ValueError if the list is empty, names a device twice, or one that cannot be."""
    if not indexes or len(set(indexes)) != len(indexes):
        raise ValueError("a list of device indexes names each once, and at least one")
    if min(indexes) < 0 or max(indexes) >= MAX_DEVICES:
        raise ValueError(f"a device index is 0..{MAX_DEVICES - 1}")
    return indexes
