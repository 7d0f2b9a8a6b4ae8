"""Commands that are nearly right, and what is meant by them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def meant(word: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str | None:
    """What a word stands for that is no command; None: nobody knows.

    ``elsewhere`` has what other tools call things, and what that is called here.
    """
    names = list(known)
    other = elsewhere.get(word.lower(), "")
    if other.startswith("--") or other.partition(" ")[0] in names:
        return other
    return next(iter(difflib.get_close_matches(word.lower(), names, 1, 0.6)), None)


def refusal(program: str, word: str, other: str | None) -> str:
    """One line for whoever typed the word."""
    hint = f"; is `{program} {other}` meant?" if other else ""
    return f"there is no command '{word}'{hint}"
