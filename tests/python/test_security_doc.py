"""docs/security.md: each attacker has its rows, and each row a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ATTACKERS = (
    "A stranger",
    "A tenant",
    "A tenant with code in its worker",
    "What it says to the arbiter",
    "A worker that uses the driver by itself",
    "A pod",
    "A node",
    "An operator's browser",
    "A thief of the database",
)

_NAMED = re.compile(r"`(tests/[A-Za-z0-9_./]+\.(?:py|c))(?:::([a-z0-9_]+))?`")
_PYTHON = r"^(?:async )?def {}\("
_C = r"\b{}\b"


def rows(attacker: str) -> list[list[str]]:
    """Of the table in an attacker's section, without its head."""
    _, found, text = PAGE.partition(f"\n## {attacker}\n")
    assert found, attacker
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def is_there(path: str, name: str) -> bool:
    file = ROOT / path
    if not file.is_file():
        return False
    pattern = (_PYTHON if file.suffix == ".py" else _C).format(re.escape(name))
    return not name or re.search(pattern, file.read_text(encoding="utf-8"), re.M) is not None


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_every_row_names_a_test(attacker: str) -> None:
    found = rows(attacker)
    assert len(found) >= 3
    for row in found:
        assert len(row) == 3, row
        assert _NAMED.search(row[2]), f"no test: {row[0]}"


def test_every_test_that_is_named_is_there() -> None:
    named = _NAMED.findall(PAGE)
    assert len(named) > 60
    assert [f"{path}::{name}" for path, name in named if not is_there(path, name)] == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    here = "tests/python/test_security_doc.py"
    assert is_there(here, "test_a_test_that_is_not_there_is_noticed")
    assert not is_there(here, "test_that_nobody_wrote")
    assert not is_there("tests/python/test_that_nobody_wrote.py", "")
    assert is_there("tests/c/test_filter.c", "refused_calls")
    assert not is_there("tests/c/test_filter.c", "refused_call")
