"""`make advisories`: what is known is named, and what was not asked about is no clean result."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / ".ci" / "advisories.py"


@pytest.fixture(scope="module")
def advisories() -> Any:
    spec = importlib.util.spec_from_file_location("advisories", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(name: str, *found: str, **more: Any) -> dict[str, Any]:
    vulns = [{"id": each, "fix_versions": ["2.0"], "aliases": []} for each in found]
    return {"name": name, "version": "1.0", "vulns": vulns, **more}


def judged(advisories: Any, *packages: dict[str, Any]) -> tuple[str, int]:
    lines, code = advisories.judge(json.dumps({"dependencies": packages, "fixes": []}))
    return "\n".join(lines), code


def test_nothing_known_is_clean(advisories: Any) -> None:
    text, code = judged(advisories, package("a"), package("b"))
    assert (text, code) == ("2 packages asked about, 0 found", 0)


def test_what_is_known_is_named(advisories: Any) -> None:
    text, code = judged(advisories, package("a"), package("b", "PYSEC-1", "PYSEC-2"))
    assert code == 1 and "b 1.0: PYSEC-1 (mended in 2.0)" in text and "2 found" in text


def test_what_was_not_asked_about_is_not_clean(advisories: Any) -> None:
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    text, code = judged(advisories, package("a"), skipped)
    assert code == 3 and "1 package asked about, 0 found" in text
    assert "1 package not asked about (b): https://pypi.org must be in reach" in text
    assert judged(advisories, package("a", "PYSEC-1"), skipped)[1] == 1  # what is found is more


def test_nobody_who_was_asked_is_not_clean(advisories: Any) -> None:
    """As behind a mirror. No line says that nothing was found."""
    text, code = judged(advisories, *({"name": n, "skip_reason": "not found"} for n in "abcdef"))
    assert code == 3
    assert text.startswith("advisories: 6 packages not asked about (a, b, c, d, e, …): ")
    assert judged(advisories)[1] == 3


@pytest.mark.parametrize("said", ["", "no JSON", "[]", "{}"])
def test_a_service_that_is_not_reached_is_not_clean(said: str, tmp_path: Path) -> None:
    fake = f"import sys; print({said!r}); sys.exit('Connection refused')"
    (tmp_path / "pip_audit.py").write_text(fake)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(PATH)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and not done.stdout
    assert done.stderr == ("advisories: nothing was asked; pip-audit says: Connection refused\n")


CONSTRAINTS = """\
a==1.0 \\
    --hash=sha256:00
b-c==1.0 ; python_version >= '3.11' \\
    --hash=sha256:11
"""


def test_a_record_answers_where_nobody_can_be_asked(advisories: Any) -> None:
    said = {"dependencies": [package("a"), package("b-c", "PYSEC-1")]}
    record = json.dumps({"asked": "2026-11-23T05:00:00Z", "said": said})
    when, answer = advisories.recorded(record, CONSTRAINTS)
    lines, code = advisories.judge(answer)
    assert (when, code) == ("2026-11-23T05:00:00Z", 1)
    assert lines == ["b-c 1.0: PYSEC-1 (mended in 2.0)", "2 packages asked about, 1 found"]
    _, answer = advisories.recorded(record, CONSTRAINTS.replace("a==1.0", "a==1.1"))
    assert "1 package not asked about (a)" in advisories.judge(answer)[0][-1]


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"asked": 1, "said": {"dependencies": [1]}}'])
def test_what_is_no_record_is_refused(advisories: Any, record: str) -> None:
    with pytest.raises(SystemExit, match="no record"):
        advisories.recorded(record, CONSTRAINTS)
