"""The reference: every implemented function says in a sentence what it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_reference, param, spec, spec_load  # noqa: E402

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
    return spec_load.load(folder)


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


def test_our_own_messages_say_it_too(tmp_path: Path) -> None:
    """They are in a folder beside the functions' files."""
    (tmp_path / "messages").mkdir()
    message = THING.replace("cuThing", "gp_thing").replace("id = 1\n", "id = 1024\n")
    (tmp_path / "messages/thing.toml").write_text(message)
    emit_reference.check(load(tmp_path, THING))
    (tmp_path / "messages/thing.toml").write_text(message.replace('doc = "Does a thing."\n', ""))
    with pytest.raises(param.SpecError, match="messages/thing.toml:4: gp_thing: say in a sentence"):
        emit_reference.check(load(tmp_path, THING))


def test_the_real_spec_says_it_of_each() -> None:
    emit_reference.check(spec_load.load(ROOT / "proto" / "spec"))


# The pages ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages as the build makes them, by their names."""
    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-m", "gpgen", "--spec", str(ROOT / "proto" / "spec")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "proto"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([*command, "--reference", str(folder)], env=env, check=True)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_every_function_has_its_place(pages: dict[str, str]) -> None:
    for f in spec_load.load(ROOT / "proto" / "spec").cuda:
        page = pages[f"{f.file.stem}.md"]
        if f.mode == "refuse":
            assert f"| `{f.name}` | {f.reason} |" in page
        else:
            assert f"\n### {f.name}\n" in page
            assert f.differs == "" or "**Differs:** " in page


def test_every_link_leads_somewhere(pages: dict[str, str]) -> None:
    anchors = {
        name: {heading.lower() for heading in re.findall(r"^#+ (.+)$", text, re.M)}
        for name, text in pages.items()
    }
    count = 0
    for name, text in pages.items():
        for page, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
            home = page or name
            assert home in pages, f"{name}: no page {home}"
            assert not anchor or anchor in anchors[home], f"{name}: no {anchor} in {home}"
            count += 1
    assert count > 300


def test_what_it_says_of_arguments(tmp_path: Path) -> None:
    changed = THING.replace(
        '  "int x",',
        '  "unsigned int x : flags[A|B]",\n  "CUcontext ctx : null",\n'
        '  "const int *n : in",\n  "CUevent e : destroy",\n  "int zero : zero",',
    )
    page = emit_reference.reference(load(tmp_path, changed))["thing.md"]
    assert (
        "**Checked here:** `x` has no other bits than `A|B`; `ctx` may be null;"
        " `n` must not be null; `e` is gone after the call; `zero` is 0." in page
    )
    assert "sends: yes; waits: no." in page


def test_what_it_says_of_what_is_not_supported(tmp_path: Path) -> None:
    changed = THING.replace("mode =", 'refuses = { "odd things" = "x & 1" }\nmode =')
    page = emit_reference.reference(load(tmp_path, changed))["thing.md"]
    assert "**Not supported:** odd things." in page
