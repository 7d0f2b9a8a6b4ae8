"""tests/gpu/smi.py: what it makes of two answers of nvidia-smi."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

import smi  # noqa: E402

from harness import Result  # noqa: E402


@pytest.mark.parametrize(
    ("name", "native", "ours", "kind"),
    [
        ("name", "A GPU", "A GPU", ""),
        ("temperature.gpu", "40", "41", ""),
        ("temperature.gpu", "40", "[N/A]", "refused"),
        ("vbios_version", "96.00", "97.00", "differs"),
        ("serial", "1234", "[N/A]", "withheld"),
        ("pci.bus_id", "00:18.0", None, "missing"),
        ("fan.speed", "[N/A]", "[N/A]", ""),
    ],
)
def test_one_field(name: str, native: str, ours: str | None, kind: str) -> None:
    found = smi.compare("query", {name: native}, {} if ours is None else {name: ours})
    assert [word for word, names in found.items() if names] == ([kind] if kind else [])


def test_fields_of_each_form() -> None:
    tree = "<log><gpu><name>A</name><clocks><sm>5</sm></clocks><processes><pid>1</pid></processes>"
    assert smi.read("xml", Result(0, f"{tree}</gpu></log>", ""), []) == {
        "/name": "A",
        "/clocks/sm": "5",
    }
    assert smi.read("query", Result(0, "A, 5\n", ""), ["name", "sm"]) == {"name": "A", "sm": "5"}
    table = smi.read("dmon", Result(0, "# gpu sm\n# Idx  %\n  0  5\n", ""), [])
    assert table == {"heads": "# gpu sm | # Idx  %", "lines": "3"}
    topology = smi.read("topology", Result(0, "\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X\n", ""), [])
    assert topology["heads"].startswith("\tGPU0\tGPU1")


def test_a_form_that_fails_is_no_answer() -> None:
    with pytest.raises(ValueError, match="exit code 255"):
        smi.read("topology", Result(255, "Failed", ""), [])
    with pytest.raises(ValueError, match="2 values for 1 fields"):
        smi.read("query", Result(0, "A, 5\n", ""), ["name"])


def test_the_fields_that_can_be_asked_for() -> None:
    help_text = (
        'Section about x\n\n"timestamp"\nThe time.\n\n"pci.bus_id" or "gpu_bus_id"\nA bus.\n'
    )
    assert smi.query_words(lambda _: Result(0, help_text, "")) == ["timestamp", "pci.bus_id"]
