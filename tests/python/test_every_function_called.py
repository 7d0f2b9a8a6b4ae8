"""Every function that is implemented is called by some test: one that none calls fails here.

A function counts as called where a program of the tests, or a client that speaks the wire
protocol, names it. Programs in C call the newest form by the plain name, as cuda.h has it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import spec, spec_load  # noqa: E402

TESTS = ROOT / "tests"
#: Where functions are called: programs, clients made by hand, and C tests.
SOURCES = ("c/*.[ch]", "e2e/*.py", "e2e/programs/*.[ch]", "e2e/programs/*.cu", "gpu/*.py")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def named(folder: Path) -> set[str]:
    """What the sources name, but for comments of C."""
    words: set[str] = set()
    for pattern in SOURCES:
        for path in folder.glob(pattern):
            text = path.read_text(encoding="utf-8")
            text = text if path.suffix == ".py" else _COMMENT.sub(" ", text)
            words.update(re.findall(r"\bcu[A-Z]\w*", text))
    return words


def uncalled(functions: list[spec.Function], words: set[str]) -> list[str]:
    newest = {f.api: f.name for f in sorted(functions, key=lambda f: f.since)}
    return [
        f.name
        for f in functions
        if f.mode != "refuse"
        and f.name not in words
        and not (f.api in words and newest[f.api] == f.name)
    ]


def test_every_implemented_function_is_called() -> None:
    functions = spec_load.load(ROOT / "proto" / "spec").cuda
    missing = uncalled(functions, named(TESTS))
    assert missing == [], "no test calls these: add them to a program of tests/e2e/programs"


def test_what_counts_as_called(tmp_path: Path) -> None:
    functions = spec_load.load(ROOT / "proto" / "spec").cuda
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.c").write_text("/* cuMemFree */ int main(void) { return cuMemAlloc(); }\n")
    missing = uncalled(functions, named(tmp_path))
    assert "cuMemFree_v2" in missing, "a comment calls nothing"
    assert "cuMemAlloc_v2" not in missing, "the plain name is the newest form"
    assert "cuMemcpyDtoH_v2" in missing
    assert not set(missing) & {f.name for f in functions if f.mode == "refuse"}
