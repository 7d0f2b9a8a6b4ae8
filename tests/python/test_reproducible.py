"""`make reproducible`: the same commit twice, and what differs is named."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / ".ci" / "reproducible.py"

#: In a wheel's place: the sources' text. Then the repository that they are from goes on.
WHEEL = """
import subprocess, sys, zipfile
from pathlib import Path
here, out = Path(__file__).resolve().parent.parent, Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
with zipfile.ZipFile(out / "x.whl", "w") as wheel:
    wheel.writestr(zipfile.ZipInfo("text"), (here / "text").read_text() + EXTRA)
(Path(ORIGIN) / "text").write_text("later")
subprocess.run(["git", "-C", ORIGIN, "commit", "-qam", "later"])
print(out / "x.whl")
"""

Run = Callable[[str], int]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    spec = importlib.util.spec_from_file_location("reproducible", PATH)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.org")
    origin = folder / "origin"

    def built(extra: str) -> int:
        (origin / ".ci").mkdir(parents=True)
        text = WHEEL.replace("ORIGIN", repr(str(origin))).replace("EXTRA", extra)
        (origin / ".ci" / "wheel.py").write_text(text)
        (origin / "text").write_text("first")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run(["git", "-C", str(origin), *words], check=True)
        monkeypatch.setattr(module, "ROOT", origin)
        monkeypatch.setattr(sys, "argv", ["reproducible", "--build", str(folder / "build")])
        return int(module.main())

    return built


def test_both_builds_are_of_one_commit(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("''") == 0
    assert "both builds have SHA-256" in capsys.readouterr().out


def test_what_differs_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A wheel that knows the folder that it was made in."""
    assert run("str(here)") == 1
    assert "differs: text" in capsys.readouterr().out
