"""docs/security.md: each attacker has its rows, and each row a test that is there."""

from __future__ import annotations

import re
from functools import cache
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
_FUNCTION = re.compile(r"^(?:async )?def (\w+)(\(.*\n(?:(?:[ )].*)?\n)*)", re.M)
_FAILS = re.compile(r"^\s+(?:assert|raise)\b|\braises\(", re.M)
_CALL = re.compile(r"\b(\w+)\(")
_C = r"^(?:static )?(?:void|int|bool) {}\("


def rows(attacker: str) -> list[list[str]]:
    """Of the table in an attacker's section, without its head."""
    _, found, text = PAGE.partition(f"\n## {attacker}\n")
    assert found, attacker
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def functions(file: Path) -> dict[str, str]:
    return dict(_FUNCTION.findall(file.read_text(encoding="utf-8")))


def fails(body: str) -> bool:
    return _FAILS.search(body) is not None


def calls(body: str) -> set[str]:
    return set(_CALL.findall(body))


@cache
def checks() -> set[str]:
    """Helpers in which something can fail, or which call one."""
    files = {ROOT / path for path, _ in _NAMED.findall(PAGE) if path.endswith(".py")}
    files |= {file for file in ROOT.glob("tests/*/*.py") if not file.name.startswith("test_")}
    every = [pair for file in files if file.is_file() for pair in functions(file).items()]
    found = {name for name, body in every if fails(body)}
    return found | {name for name, body in every if calls(body) & found}


def can_fail(file: Path, name: str) -> bool:
    """A function of C is a test that is registered; one of Python looks at something."""
    if file.suffix == ".c":
        text = file.read_text(encoding="utf-8")
        defined = re.search(_C.format(name), text, re.M) is not None
        return defined and len(re.findall(rf"\b{name}\b", text)) > 1
    body = functions(file).get(name, "")
    return fails(body) or bool(calls(body) & checks())


def is_there(path: str, name: str) -> bool:
    file = ROOT / path
    return file.is_file() and (not name or can_fail(file, name))


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


def test_what_cannot_fail_is_no_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    print(1)\n")
    (tmp_path / "test_it.c").write_text("static void it(void **state)\n{\n}\n/* that */\n")
    assert not can_fail(tmp_path / "test_it.py", "test_it")
    assert not can_fail(tmp_path / "test_it.c", "it")
    assert not can_fail(tmp_path / "test_it.c", "that")
