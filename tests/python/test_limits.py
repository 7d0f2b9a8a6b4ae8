"""docs/limits.md has a reason for every function that is refused."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def refused() -> set[str]:
    coverage = (ROOT / "proto" / "coverage.md").read_text()
    return set(re.findall(r"^\| (cu\w+) \|[^|]*\| refuse \|", coverage, re.MULTILINE))


def named() -> list[str]:
    """What the table names: a whole function, or how several begin."""
    limits = (ROOT / "docs" / "limits.md").read_text()
    table = limits.split("| refused | why |\n", 1)[1].split("\n\n", 1)[0]
    return [name for row in table.splitlines()[1:] for name in re.findall(r"`(cu\w+…?)`", row)]


def covers(name: str, function: str) -> bool:
    return function.startswith(name[:-1]) if name.endswith("…") else function == name


def test_every_refused_function_has_a_reason() -> None:
    functions, names = refused(), named()
    assert functions
    assert {f for f in functions if not any(covers(n, f) for n in names)} == set()
    assert {n for n in names if not any(covers(n, f) for f in functions)} == set()
