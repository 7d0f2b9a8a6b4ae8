"""constraints.txt: a tested version of every package that the project depends on, in one place."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


ENTRY = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[0-9][0-9a-z.]*)(?P<marker> ; [^\\\n]+)?"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n",
    re.MULTILINE,
)


def pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    # No index and no address: where packages come from is each machine's own affair. And no
    # entry without a hash: pip would then take any file of that version.
    rest = [line for line in ENTRY.sub("", text).splitlines() if not line.startswith("#")]
    assert rest == []
    return {found["name"]: found["version"] for found in ENTRY.finditer(text)}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("constraints", ROOT / ".ci/constraints.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_that_pyproject_names_is_renewed(project: dict[str, Any], script: ModuleType) -> None:
    named = {canonicalize_name(Requirement(text).name) for text in script.wanted(project)}
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    quoted = re.findall(r'"([A-Za-z][\w-]*)(?:\[[\w,]+\])?(?:[>=~<]=?[^"]*)"', text)
    assert len(quoted) > 40
    assert {canonicalize_name(name) for name in quoted} <= named | {"gpupool"}
    assert "gpupool" not in named


def test_what_is_needed_and_what_that_needs_is_pinned(
    project: dict[str, Any], script: ModuleType
) -> None:
    fixed = pins()
    wanted = list(script.wanted(project))
    seen: set[str] = set()
    while wanted:
        need = Requirement(wanted.pop())
        name = canonicalize_name(need.name)
        if str(need) in seen:
            continue
        seen.add(str(need))
        assert name in fixed, f"{name} is not in constraints.txt; run: make constraints"
        assert need.specifier.contains(fixed[name]), f"{need}, constraints.txt has {fixed[name]}"
        wanted += _needs(need)
    assert len(seen) > 60


def _needs(need: Requirement) -> Sequence[str]:
    """What a package brings, as this environment's says; nothing of what is not installed."""
    try:
        found = [Requirement(text) for text in metadata.requires(need.name) or []]
    except metadata.PackageNotFoundError:
        return ()
    extras = ("", *need.extras)
    kept = [
        one
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]
    for one in kept:
        one.marker = None
    return [str(one) for one in kept]


def test_make_installs_what_is_pinned() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = text.replace("\\\n", " ").splitlines()
    calls = [line.strip() for line in lines if "pip install" in line]
    assert len(calls) == 4
    variable, pip, own, older = calls
    assert variable.endswith("--constraint constraints.txt")
    assert "--requirement $(VENV)/pip.txt" in pip
    assert "--no-deps" in own and "--editable ." in own
    assert "--require-hashes" in older  # runtimes, of each more than one version
    assert "$(VENV)/.build: pyproject.toml constraints.txt" in text


def needs(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "needs.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def test_what_the_project_needs_is_said_alone(project: dict[str, Any]) -> None:
    optional = project["project"]["optional-dependencies"]
    plain = needs().splitlines()
    assert plain == sorted(project["project"]["dependencies"])
    assert set(needs("postgresql").splitlines()) == {
        *plain,
        *optional["manager"],
        *(each for each in optional["postgresql"] if not each.startswith("gpupool")),
    }
    assert "no extra 'nothing'" in needs("nothing")


def test_pip_itself_is_locked() -> None:
    assert re.fullmatch(r"pip==\S+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", needs("--pip"))
