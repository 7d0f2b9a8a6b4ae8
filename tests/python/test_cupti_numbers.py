"""CUPTI's numbers, names and structures against its own headers, where they are installed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import spec_load  # noqa: E402
from gpgen.header import normal  # noqa: E402

#: The wheels nvidia-cuda-cupti and nvidia-cuda-cupti-cu12, and the toolkit.
PLACES = (
    *(Path(e) / wheel for e in sys.path for wheel in ("nvidia/cu13", "nvidia/cuda_cupti")),
    *sorted(Path("/usr/local").glob("cuda*")),
    *sorted(Path("/usr/local").glob("cuda*/extras/CUPTI")),
)
SPEC = tomllib.loads((ROOT / "proto/spec_cupti/cupti.toml").read_text(encoding="utf-8"))


def header(name: str) -> str:
    for place in PLACES:
        if (path := place / "include" / name).is_file():
            return path.read_text(encoding="utf-8")
    pytest.skip(f"no CUPTI with {name} is installed (wheel nvidia-cuda-cupti)")


def test_every_number_is_one_function() -> None:
    numbers = SPEC["driver_numbers"]
    assert len(set(numbers.values())) == len(numbers)
    assert min(numbers.values()) == 1


def test_functions_have_the_numbers_of_cupti() -> None:
    """Those that only a later or an earlier CUPTI knows may be missing there."""
    text = header("cupti_driver_cbid.h")
    theirs = {
        name: int(number)
        for name, number in re.findall(r"CUPTI_DRIVER_TRACE_CBID_(cu\w+)\s*=\s*(\d+)", text)
    }
    assert len(theirs) > 500
    ours = SPEC["driver_numbers"]
    assert {n: ours[n] for n in theirs if n in ours} == {n: theirs[n] for n in theirs if n in ours}
    exported = {n for f in spec_load.load(ROOT / "proto/spec").cuda for n in (f.name, *f.variants)}
    assert not {n for n in exported if n in theirs} - set(ours)


def types(members: str) -> list[str]:
    """Of `int *a; size_t b;`: without the names, which differ in places."""
    return [re.sub(r"\w+$", "", member) for member in normal(members).split(";") if member.strip()]


def test_arguments_lie_as_callbacks_expect_them() -> None:
    text = header("generated_cuda_meta.h")
    theirs = dict(re.findall(r"typedef struct (cu\w+)_params_st \{(.*?)\}", text, re.DOTALL))
    assert len(theirs) > 500
    compared = 0
    for f in spec_load.load(ROOT / "proto/spec").cuda:
        for name in (f.name, *f.variants):
            if name in theirs and f.header != "interop":
                assert types("; ".join(p.decl for p in f.params)) == types(theirs[name]), name
                compared += 1
    assert compared > 500
