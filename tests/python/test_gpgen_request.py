"""What the client's list of variables is not made from; test_request.py has what it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_request  # noqa: E402


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("OWN = ()", "VARIABLES has to be a tuple of names"),
        ("VARIABLES = ()", "VARIABLES has to be a tuple of names"),
        ("VARIABLES = ['A']", "VARIABLES has to be a tuple of names"),
        ("VARIABLES = ('A', 'b')", "'b' is no name of a variable"),
        ("VARIABLES = ('A\"',)", "is no name of a variable"),
        ("VARIABLES = ('A', 3)", "3 is no name of a variable"),
        ("VARIABLES = ('A' * 65,)", "is no name of a variable"),
        ("VARIABLES = ('A', 'B', 'A')", "A is there twice"),
    ],
)
def test_a_table_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, says: str
) -> None:
    path, out = tmp_path / "table.py", tmp_path / emit_request.NAME
    path.write_text(table)
    assert emit_request.main(["--table", str(path), "--out", str(out)]) == 1
    assert says in capsys.readouterr().err
    assert not out.exists()
