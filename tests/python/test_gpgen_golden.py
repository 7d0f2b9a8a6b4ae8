"""Everything that gpgen writes for a small spec, byte for byte.

A change of the generator shows here as a change of golden/expected. After a look at
the difference, write the files anew:

    GPUPOOL_UPDATE_GOLDEN=1 python -m pytest tests/python/test_gpgen_golden.py
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"
EXPECTED = GOLDEN / "expected"
UPDATE = "GPUPOOL_UPDATE_GOLDEN"

sys.path.insert(0, str(ROOT / "proto"))

from gpgen import param, spec, spec_load, worker_words  # noqa: E402
from gpgen.__main__ import OUTPUTS  # noqa: E402


def generate(out: Path) -> None:
    """Run gpgen as the build does."""
    command = [sys.executable, "-m", "gpgen", "--spec", str(GOLDEN / "spec")]
    command += ["--header", str(GOLDEN / "header.h"), "--out", str(out)]
    command += ["--coverage", str(out / "coverage.md"), "--seeds", str(out / "seeds")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "proto"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def difference(name: str, expected: bytes, found: bytes) -> str:
    """The unified difference; of what is no text, both in hexadecimal."""

    def lines(content: bytes) -> list[str]:
        try:
            return content.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            return [content[at : at + 16].hex(" ") for at in range(0, len(content), 16)]

    return "\n".join(
        difflib.unified_diff(
            lines(expected), lines(found), f"golden/expected/{name}", "generated", lineterm=""
        )
    )


def write_golden(found: dict[str, bytes]) -> None:
    for name in set(files_of(EXPECTED)) - set(found):
        (EXPECTED / name).unlink()
    for name, content in found.items():
        path = EXPECTED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("generated")
    generate(out)
    files = files_of(out)
    if os.environ.get(UPDATE):
        write_golden(files)
    return files


def test_the_small_spec_has_every_mode_and_every_word() -> None:
    """So that nothing the generator can write escapes the comparison."""
    small = spec_load.load(GOLDEN / "spec")
    assert {f.mode for f in small.functions} == set(spec.MODES)
    assert {f.needs for f in small.functions} == spec.NEEDS
    assert {w for f in small.functions for p in f.params for w in p.words} == param.WORDS
    checks = {c.word for f in small.functions for p in f.params for c in p.checks}
    assert checks == set(param.CHECKS)
    answers = {w for f in small.functions for p in f.params for w in param.ANSWERS if getattr(p, w)}
    assert answers == param.ANSWERS
    assert {f.capture for f in small.functions} == {"", *spec.CAPTURES}
    assert {f.worker for f in small.functions} == set(worker_words.WORKERS)
    plain = spec.Function("", small.functions[0].file, 0, 0, "", "")
    for key in spec.KEYS:
        name = spec_load.ATTRIBUTES.get(key, key)
        assert any(getattr(f, name) != getattr(plain, name) for f in small.functions), key


def test_every_file_is_there(found: dict[str, bytes]) -> None:
    assert set(found) == set(files_of(EXPECTED))
    assert set(OUTPUTS) <= set(found)


@pytest.mark.parametrize("name", sorted(files_of(EXPECTED)))
def test_file(name: str, found: dict[str, bytes]) -> None:
    assert name in found, f"{name} is not generated any more"
    expected = (EXPECTED / name).read_bytes()
    if found[name] != expected:
        pytest.fail(
            f"{difference(name, expected, found[name])}\n\nif that is meant: {UPDATE}=1 makes"
            " it the golden file",
            pytrace=False,
        )
