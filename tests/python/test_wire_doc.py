"""The tables of all messages, and what the page beside them says of messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen.emit_wire_doc import read_sizes, sizes_source, wire_doc  # noqa: E402
from gpgen.spec import Spec  # noqa: E402
from gpgen.spec_load import load  # noqa: E402

SMALL = """
[cuStreamCreate]
id = 438
mode = "async-create"
doc = "Makes a stream."
params = ["CUstream *phStream : create", "unsigned int Flags"]

[cuStreamRead]
id = 2
mode = "sync"
doc = "Reads."
params = ["const char *name : string", "int *value : out", "void *data : out[value]"]

[cuStreamLocal]
id = 3
mode = "local"
doc = "Says."
"""


@pytest.fixture
def small(tmp_path: Path) -> Spec:
    (tmp_path / "stream.toml").write_text(SMALL)
    return load(tmp_path)


@pytest.fixture(scope="module")
def real() -> Spec:
    return load(ROOT / "proto/spec")


def test_a_message_is_one_row_with_its_number_fields_and_sizes(small: Spec) -> None:
    page = wire_doc(small, {"cuStreamCreate": (32, 0), "cuStreamRead": (24, 32)})
    rows = [line for line in page.splitlines() if re.match(r"\| \d", line)]
    assert rows == [
        "| 2 | `cuStreamRead` | sync | 24 | `uint32_t n_name`, *name* | 32 |"
        " `int value`, `uint32_t n_data`, *data* |",
        "| 438 | `cuStreamCreate` | async-create | 32 | `uint64_t phStream`,"
        " `unsigned int Flags` |  |  |",
    ]
    assert "## stream" in page and "2 messages, 0 of them" in page


def test_the_compiler_is_asked_for_every_message(real: Spec) -> None:
    source = sizes_source(real)
    for f in real.wire:
        assert f'{{"{f.name}", sizeof(struct gp_req_{f.name}), ' in source
    assert source.count("sizeof(struct gp_rep_") == sum(f.waits for f in real.wire) > 50


def test_every_message_is_in_the_tables(real: Spec) -> None:
    page = wire_doc(real, {f.name: (16, 24) for f in real.wire})
    said = dict(re.findall(r"^\* `(gp_\w+)`: (.+)$", page, re.MULTILINE))
    assert said == {f.name: f.doc for f in real.wire if f.is_message}
    assert len(said) > 40
    named = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted((str(f.id), f.name) for f in real.wire)


def test_structures_are_shown_with_their_members(small: Spec, real: Spec) -> None:
    assert "## structures" not in wire_doc(small, {f.name: (16, 24) for f in small.wire})
    page = wire_doc(real, {f.name: (16, 24) for f in real.wire})
    named = set(re.findall(r"struct (\w+)", page))
    shown = {s.name for s in real.structs}
    assert named and named <= shown
    for name in shown:
        assert re.search(rf"^\| `{name}` \| `\w+ \w+", page, re.MULTILINE), name


def test_sizes_are_read_as_the_program_prints_them() -> None:
    assert read_sizes("gp_hello 64 32\ngp_goodbye 16 0\n")["gp_hello"] == (64, 32)
    with pytest.raises(ValueError):
        read_sizes("gp_hello 64\n")


def test_a_message_without_a_size_is_no_page(small: Spec) -> None:
    with pytest.raises(KeyError):
        wire_doc(small, {"cuStreamCreate": (32, 0)})


def test_the_written_page_names_messages_that_there_are(real: Spec) -> None:
    text = (ROOT / "proto/wire-format.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(gp_\w+)`", text))
    assert len(named) > 5
    assert named <= {f.name for f in real.wire}


def test_a_build_for_a_big_endian_machine_says_that_it_is_for_none() -> None:
    compiler = [os.environ.get("CC", "cc"), "-fsyntax-only", "-x", "c", "-U__BYTE_ORDER__"]
    for order, wrong in (("LITTLE", False), ("BIG", True)):
        command = [*compiler, f"-D__BYTE_ORDER__=__ORDER_{order}_ENDIAN__"]
        done = subprocess.run(
            [*command, str(ROOT / "proto/wire/wire.h")], capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) is wrong
        assert ("gpupool is for little-endian machines" in done.stderr) is wrong
