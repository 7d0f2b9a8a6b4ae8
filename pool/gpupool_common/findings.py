"""What a doctor looked at, and how it is shown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 80


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``text`` says what was found, or is missing."""

    name: str
    good: bool
    text: str


def line(name: str, word: str, text: str) -> str:
    """A line of a table for people; what does not fit goes on below the text."""
    head = f"  {name:16} {word:4} "
    return textwrap.fill(
        head + text,
        width=WIDTH,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    ).rstrip()


def lines(findings: Iterable[Finding]) -> list[str]:
    return [line(each.name, "ok" if each.good else "NOT", each.text) for each in findings]
