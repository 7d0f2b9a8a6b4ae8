"""What an entry may say of its stub, and what it may not. golden/spec/stub.toml has each word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_stubs, param, spec, spec_load  # noqa: E402

THINGS = """\
[cuAnswer]
id = 1
mode = "local"
its = "device(dev)"
params = [
  "int *count : gives[its->counts[n]]",
  "int n : below[4]",
  "int dev",
]

[cuShort]
id = 2
mode = "alias"
alias = "cuAnswer(count, 0, dev)"
params = [
  "int *count",
  "int dev",
]

[cuMake]
id = 3
mode = "async-create"
then = "gpc_note(made, 1)"
params = [
  "CUstream *stream : create",
]

[cuMakeToo]
id = 4
mode = "async-create"
then = "gpc_note(made, 2)"
params = [
  "CUstream *stream : create",
]

[cuWritten]
id = 5
mode = "local"
client = "custom"
params = [
  "int *x",
]
"""


def load(folder: Path, text: str) -> spec.Spec:
    (folder / "thing.toml").write_text(text)
    return spec_load.load(folder)


def test_the_order_of_checks(tmp_path: Path) -> None:
    """The process, the object, the pointers, the values."""
    text = emit_stubs.stubs(load(tmp_path, THINGS))
    parts = ["gpc_enter(op", "gpc_device_its(dev", "!count || (uint64_t)n >= (uint64_t)(4)"]
    at = [text.index(part) for part in [*parts, "*count = its->counts[n];"]]
    assert at == sorted(at)


def test_an_alias_counts_under_its_own_name(tmp_path: Path) -> None:
    text = emit_stubs.stubs(load(tmp_path, THINGS))
    assert "return gpc_as_cuAnswer(GP_OP_cuShort, count, 0, dev);" in text
    assert "return gpc_as_cuAnswer(GP_OP_cuAnswer, count, n, dev);" in text


def test_a_new_handle_is_given_when_it_is_noted(tmp_path: Path) -> None:
    text = emit_stubs.stubs(load(tmp_path, THINGS))
    parts = ["if (!stream)", "gpc_wire_cuMake(&made)", "gpc_note(made, 1)", "*stream = made;"]
    at = [text.index(part) for part in parts]
    assert at == sorted(at)


def test_what_is_written_by_hand_is_not_generated(tmp_path: Path) -> None:
    small = load(tmp_path, THINGS.replace("cuAnswer(count, 0, dev)", "cuWritten(count)"))
    assert "CUresult cuWritten(" not in emit_stubs.stubs(load(tmp_path, THINGS))
    assert "CUresult gpc_as_cuWritten(uint16_t op, int *x);" in emit_stubs.stubs_header(small)


# what is changed, into what, the text whose line is to be named, what is said
BAD = [
    (": gives[its->counts[n]]", "", "params", "say what 'count' gets"),
    ("int *count : gives", "const int *count : gives", "const int", "'gives' is for pointers"),
    ("gives[its->counts[n]]", "room[n]", "room", "'room' goes with 'gives'"),
    ("gives[its->counts[n]]", "gives", "gives", "'gives' needs an expression"),
    ("gives[its->counts[n]]", "gives[a[b[c]]]", "gives", "unknown word 'gives[a[b[c]]]'"),
    ('"device(dev)"', '"dev"', "its =", "'dev' is no kind(argument)"),
    ('"device(dev)"', '"planet(dev)"', "its =", "'planet(dev)' is no kind(argument)"),
    ('"device(dev)"', '"device(other)"', "its =", "no parameter 'other'"),
    ("cuAnswer(count, 0, dev)", "cuAnswer", "alias =", "has other parameters"),
    ("cuAnswer(count, 0, dev)", "cuNone(count)", "alias =", "'cuNone' is no entry"),
    ("cuAnswer(count, 0, dev)", "cuAnswer(count", "alias =", "'cuAnswer(count' is no call"),
    ('mode = "alias"', 'mode = "alias"\nfails = { E = "n" }', "fails", "said by 'cuAnswer'"),
    ('client = "custom"', 'client = "custom"\nfails = { E = "x" }', "client", "nobody writes"),
    ('int *x",', 'int *x",\n  "int y : nonzero",', "client", "'y' is for a stub that nobody"),
    ('"gpc_note(made, 2)"', '"gpc_other(made)"', "then", "for this entry alone"),
    ('"gpc_note(made, 2)"', '"made"', "then", "'made' is no call"),
    ('client = "custom"\nparams = [\n  "int *x"', 'params = [\n  "int x"', "params", "do nothing"),
]


@pytest.mark.parametrize(("old", "new", "where", "says"), BAD, ids=[f"{b[1]}-{b[3]}" for b in BAD])
def test_a_stub_that_cannot_be(tmp_path: Path, old: str, new: str, where: str, says: str) -> None:
    changed = THINGS.replace(old, new)
    assert changed != THINGS
    with pytest.raises(param.SpecError) as caught:
        load(tmp_path, changed)
    line = int(str(caught.value).split(":")[1])
    assert where in changed.splitlines()[line - 1]
    assert says in str(caught.value)
