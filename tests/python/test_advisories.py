"""`make advisories`: what is known is named, and what was not asked about is no clean result."""

from __future__ import annotations

import importlib.util
import json
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
    assert (text, code) == ("2 packages were asked about, 0 found", 0)


def test_what_is_known_is_named(advisories: Any) -> None:
    text, code = judged(advisories, package("a"), package("b", "PYSEC-1", "PYSEC-2"))
    assert code == 1 and "b 1.0: PYSEC-1 (mended in 2.0)" in text and "2 found" in text


def test_what_was_not_asked_about_is_not_clean(advisories: Any) -> None:
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    text, code = judged(advisories, package("a"), skipped)
    assert code == 1 and "1 packages were asked about" in text
    assert "1 packages could not be asked about (b, …)" in text
    assert judged(advisories)[1] == 1  # nothing at all was asked
