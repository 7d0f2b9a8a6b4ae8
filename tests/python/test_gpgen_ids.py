"""Numbers of operations, once released, keep their meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import ids, param, spec, spec_load  # noqa: E402

MESSAGES = """\
[gp_ask]
id = 1024
mode = "sync"
worker = "custom"
params = [
  "uint32_t what",
  "const char *name : string",
  "void *answer : out[64]",
]

[gp_tell]
id = 1025
mode = "notify"
params = [
  "uint32_t bytes",
  "const char *text : in[bytes]",
]
"""

EVENT = """\
[cuEventRecord]
doc = "Records."
id = 7
mode = "async"
params = [
  "CUevent hEvent",
  "CUstream hStream",
]

[cuEventLater]
id = 8
mode = "refuse"
reason = "not yet"
params = [
  "CUevent hEvent",
]
"""


def load(folder: Path, messages: str = MESSAGES, event: str = EVENT) -> spec.Spec:
    (folder / "messages.toml").write_text(messages, encoding="utf-8")
    (folder / "event.toml").write_text(event, encoding="utf-8")
    return spec_load.load(folder)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The ledger of the spec above, which release 1.0 has."""
    path = tmp_path / ids.LEDGER
    ids.lock(load(tmp_path), path, "1.0")
    return path


def names(path: Path, release: str) -> set[str]:
    return {e.name for e in ids.read(path) if e.release == release and not e.is_kind}


def test_a_release_is_written_down(tmp_path: Path, ledger: Path) -> None:
    assert names(ledger, "1.0") == {"gp_ask", "gp_tell", "cuEventRecord", "cuEventLater"}
    assert ids.is_complete(load(tmp_path), ledger)
    forms = {e.name: e.signature for e in ids.read(ledger)}
    assert forms["cuEventLater"] == ids.NONE, "what is refused does not travel"
    assert len({forms[name] for name in ("gp_ask", "gp_tell", "cuEventRecord")}) == 3


# what is changed in which text, into what, what is said
CHANGES = [
    ("messages", "uint32_t what", "uint64_t what", "another form than in 1.0"),
    ("messages", ": out[64]", ": out[65]", "another form than in 1.0"),
    ("messages", "const char *name : string", "const char *name : in[4]", "another form"),
    ("messages", "uint32_t bytes", 'uint32_t bytes",\n  "uint32_t more', "another form"),
    ("messages", 'mode = "sync"', 'mode = "notify"', "another form|cannot be filled"),
    ("messages", "[gp_tell]", "[gp_say]", "the number 1025 is gp_tell's since 1.0"),
    ("event", 'mode = "async"', 'mode = "sync"', "another form than in 1.0"),
    ("event", "[cuEventLater]", "[cuEventOther]", "the number 8 is cuEventLater's since 1.0"),
]


@pytest.mark.parametrize(("which", "old", "new", "says"), CHANGES)
def test_what_is_released_stays(
    tmp_path: Path, ledger: Path, which: str, old: str, new: str, says: str
) -> None:
    texts = {"messages": MESSAGES, "event": EVENT}
    assert old in texts[which]
    texts[which] = texts[which].replace(old, new)
    with pytest.raises(param.SpecError, match=says) as caught:
        ids.check(load(tmp_path, **texts), ledger)
    assert f"{which}.toml:" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('reason = "not yet"', 'reason = "no use for it"'),
        ('"CUevent hEvent"', '"CUevent hEvent : null"'),  # a check of one side
    ],
)
def test_what_does_not_travel_may_change(tmp_path: Path, ledger: Path, old: str, new: str) -> None:
    assert old in EVENT
    changed = load(tmp_path, event=EVENT.replace(old, new))
    ids.check(changed, ledger)
    assert ids.is_complete(changed, ledger)


def test_new_ones_are_added_and_old_ones_are_kept(tmp_path: Path, ledger: Path) -> None:
    implemented = EVENT.replace('mode = "refuse"\nreason = "not yet"', 'mode = "sync"')
    without, _, _ = MESSAGES.partition("[gp_tell]")
    changed = load(tmp_path, without, implemented)
    assert not ids.is_complete(changed, ledger)
    ids.lock(changed, ledger)
    assert names(ledger, "1.0") == {"gp_ask", "gp_tell", "cuEventRecord"}
    assert names(ledger, ids.NONE) == {"cuEventLater"}
    assert ids.is_complete(changed, ledger)
    taken = without + '[gp_new]\nid = 1025\nmode = "async"\nworker = "custom"\n'
    with pytest.raises(param.SpecError, match="the number 1025 is gp_tell's"):
        ids.check(load(tmp_path, taken, implemented), ledger)


def test_a_function_may_get_a_new_number_for_a_new_form(tmp_path: Path, ledger: Path) -> None:
    moved = EVENT.replace('id = 7\nmode = "async"', 'id = 9\nmode = "sync"')
    ids.lock(load(tmp_path, event=moved), ledger, "1.1")
    numbers = {(e.id, e.release) for e in ids.read(ledger) if e.name == "cuEventRecord"}
    assert numbers == {(7, "1.0"), (9, "1.1")}


STRUCTS = '[gp_shape]\ndoc = "A shape."\nfields = ["uint32_t wide", "int32_t sides[4]"]\n'
CARRIES = '[gp_ask]\nid = 1024\nmode = "sync"\nparams = ["struct gp_shape *shape : out"]\n'


def load_structs(folder: Path, structs: str, messages: str = CARRIES) -> spec.Spec:
    (folder / "structs.toml").write_text(structs, encoding="utf-8")
    return load(folder, messages)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sides[4]", "sides[5]"),
        ("uint32_t wide", "uint64_t wide"),
        ("uint32_t wide", "uint32_t high"),
        ("sides[4]", 'sides[4]", "uint32_t more'),
    ],
)
def test_the_members_of_a_structure_are_part_of_a_form(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / ids.LEDGER
    ids.lock(load_structs(tmp_path, STRUCTS), path, "1.0")
    reworded = STRUCTS.replace("A shape.", "A form.")
    ids.check(load_structs(tmp_path, reworded), path)
    assert old in STRUCTS
    with pytest.raises(param.SpecError, match="another form than in 1.0"):
        ids.check(load_structs(tmp_path, STRUCTS.replace(old, new)), path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sides[4]", "sides[GP_SIDES]", r"structs.toml:1: gp_shape: 'int32_t sides\[GP_SIDES\]'"),
        ("uint32_t wide", "void *wide", "is no integer"),
        ("sides[4]", "sides[0]", "is no integer"),
        ('doc = "A shape."\n', "", "needs 'doc' and 'fields'"),
        ("gp_shape", "gp_other", "messages.toml:.*no structure 'gp_shape'"),
    ],
)
def test_structures_that_cannot_be_right(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in STRUCTS
    with pytest.raises(param.SpecError, match=says):
        load_structs(tmp_path, STRUCTS.replace(old, new))


def test_kinds_of_handles_keep_their_numbers(
    tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(param.HANDLE_KINDS)
    monkeypatch.setattr(ids, "HANDLE_KINDS", [*before, "array"])
    ids.check(load(tmp_path), ledger)
    monkeypatch.setattr(ids, "HANDLE_KINDS", ["array", *before])
    with pytest.raises(param.SpecError, match="kind 1 are 'context' since 1.0, not 'array'"):
        ids.check(load(tmp_path), ledger)


@pytest.mark.parametrize("line", ["1024 gp_ask", "x gp_ask - -", "kind 1 context", "1 2 3 4 5"])
def test_a_ledger_that_cannot_be_read(tmp_path: Path, ledger: Path, line: str) -> None:
    ledger.write_text(f"{ledger.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
    last = len(ledger.read_text(encoding="utf-8").splitlines())
    with pytest.raises(param.SpecError, match=rf"ids.lock:{last}: cannot be read"):
        ids.check(load(tmp_path), ledger)


def test_gpgen_names_the_line(tmp_path: Path, ledger: Path) -> None:
    load(tmp_path, MESSAGES.replace("uint32_t what", "uint64_t what"))
    done = subprocess.run(
        [sys.executable, "-m", "gpgen", "--spec", tmp_path],
        env={"PYTHONPATH": str(ROOT / "proto"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path}/messages.toml:2: gp_ask: has another form")


def test_our_own_ledger_is_complete() -> None:
    folder = ROOT / "proto/spec"
    assert ids.is_complete(spec_load.load(folder), folder / ids.LEDGER), (
        "run: PYTHONPATH=proto python -m gpgen --spec proto/spec --lock"
    )


def test_short_signatures_are_never_that_of_nothing() -> None:
    real = spec_load.load(ROOT / "proto/spec")
    assert all(ids.short(f) > 0 for f in real.wire)
    assert all(ids.short(f) == 0 for f in real.functions if not f.has_wire)
