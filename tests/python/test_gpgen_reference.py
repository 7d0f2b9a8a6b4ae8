"""The reference: every implemented function says in a sentence what it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_reference, param, spec  # noqa: E402

THING = """\
[cuThing]
id = 1
doc = "Does a thing."
differs = "Is not waited for."
mode = "async"
params = [
  "int x",
]
"""


def load(folder: Path, text: str) -> spec.Spec:
    (folder / "thing.toml").write_text(text)
    return spec.load(folder)


def test_a_sentence_is_enough(tmp_path: Path) -> None:
    emit_reference.check(load(tmp_path, THING))


# what is changed, into what, the line that is to be named, what is said
BAD = [
    ('doc = "Does a thing."\n', "", 4, "say in a sentence what it does"),
    ('"Does a thing."', '"Does a thing"', 3, "'doc' is a sentence"),
    ('"Does a thing."', '"does a thing."', 3, "'doc' is a sentence"),
    ('"Is not waited for."', '"waits"', 4, "'differs' is a sentence"),
]


@pytest.mark.parametrize(("old", "new", "line", "says"), BAD)
def test_what_the_reference_cannot_say(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in THING
    with pytest.raises(param.SpecError, match=rf"thing.toml:{line}: cuThing: {says}"):
        emit_reference.check(load(tmp_path, THING.replace(old, new)))


def test_the_real_spec_says_it_of_each() -> None:
    emit_reference.check(spec.load(ROOT / "proto" / "spec"))
