"""The generator of libnvidia-ml.so.1: what it writes, and what it refuses at which line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_nvml, emit_nvml_calls, emit_nvml_reference, spec_nvml  # noqa: E402
from gpgen.param import SpecError  # noqa: E402

FACTS = """\
[name]
kind = "text"
size = 96

[minor]
kind = "snapshot"

[used]
kind = "fresh"
about = "bytes"
"""

FUNCTIONS = """\
[nvmlDeviceGetName]
mode = "snapshot"
params = ["nvmlDevice_t device", "char *name", "unsigned int length"]
answer = ["name = name"]

[nvmlDeviceGetBoth]
mode = "fresh"
params = ["nvmlDevice_t device", "nvmlBoth_t *both"]
answer = ["both.minor = minor", "both.used = used"]

[nvmlUnitGetCount]
mode = "fixed"
params = ["unsigned int *unitCount"]
answer = ["unitCount = 0"]

[nvmlUnitGetCount_v1]
mode = "like"
like = "nvmlUnitGetCount"
params = ["unsigned int *count"]

[nvmlDeviceSetThing]
mode = "refuse"
reason = "others share it"
params = ["nvmlDevice_t device", "int thing"]

[nvmlInit_v2]
mode = "snapshot"
client = "custom"
"""

ERRORS = '[NVML_SUCCESS]\nvalue = 0\ntext = "fine"\n'

HEADER = """\
typedef enum nvmlReturn_enum { NVML_SUCCESS = 0 } nvmlReturn_t;
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
nvmlReturn_t nvmlDeviceGetBoth(nvmlDevice_t device,
                               nvmlBoth_t* both);
nvmlReturn_t nvmlUnitGetCount(unsigned int *unitCount);
nvmlReturn_t nvmlUnitGetCount_v1(unsigned int *count);
nvmlReturn_t nvmlDeviceSetThing(nvmlDevice_t device, int thing);
"""


def load(
    folder: Path, functions: str = FUNCTIONS, facts: str = FACTS, errors: str = ERRORS
) -> spec_nvml.NvmlSpec:
    (folder / "all.toml").write_text(functions, encoding="utf-8")
    (folder / "facts.toml").write_text(facts, encoding="utf-8")
    (folder / "errors.toml").write_text(errors, encoding="utf-8")
    return spec_nvml.load(folder)


def body(text: str, name: str) -> str:
    return text.split(f" {name}(", 1)[1].split("\n}\n", 1)[0]


def test_what_is_written(tmp_path: Path) -> None:
    spec = load(tmp_path)
    spec_nvml.check_header(spec, HEADER)
    stubs = emit_nvml.stubs(spec)
    assert "gpc_nvml_text(device, GP_NVML_TEXT_NAME, name, length)" in stubs
    both = body(stubs, "nvmlDeviceGetBoth")
    assert "wanted[] = {GP_NVML_MINOR, GP_NVML_USED}" in both
    assert "both->used = (__typeof__(both->used))got[1];" in both
    assert both.count("!both") == 1
    assert "*unitCount = 0;" in body(stubs, "nvmlUnitGetCount")
    assert "return nvmlUnitGetCount(count);" in body(stubs, "nvmlUnitGetCount_v1")
    assert 'gpc_nvml_refuse_device("nvmlDeviceSetThing", device)' in stubs
    assert "nvmlInit_v2(" not in stubs
    assert all(f"    {f.name};" in emit_nvml.linker_map(spec) for f in spec.functions)
    assert 'X(GP_NVML_USED, "used", 1)' in emit_nvml.facts(spec)
    assert "| nvmlDeviceSetThing | refuse | others share it |" in emit_nvml.coverage(spec)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('mode = "fixed"', 'mode = "often"', "all.toml:12: nvmlUnitGetCount: the mode is 'often'"),
        ('mode = "fresh"', 'mode = "snapshot"', "all.toml:7: nvmlDeviceGetBoth: 'used' is fresh"),
        ("both.used = used", "both.used = spent", "all.toml:9: .* facts.toml has no 'spent'"),
        ("both.used = used", "all.used = used", "all.toml:9: .* no pointer among the parameters"),
        ("both.used = used", "both.used", "all.toml:9: .* is not 'OUTPUT = VALUE'"),
        ("both.used = used", "both.used = name", "all.toml:9: .* 'name' is a text"),
        ('reason = "others share it"\n', "", "nvmlDeviceSetThing: a refused function needs"),
        ('like = "nvmlUnitGetCount"', 'like = "nvmlNone"', "'nvmlNone' is no function"),
        ('"unsigned int *count"', '"int *count"', "'nvmlUnitGetCount' has other parameters"),
        ('client = "custom"', 'client = "me"', "client is 'custom' or absent"),
        ('client = "custom"\n', "", "needs either an answer or client"),
        ('reason = "others share it"', "reasons = 3", "all.toml:23: .*unknown key 'reasons'"),
        ("[nvmlInit_v2]", "[nvmlInit_v2", "all.toml:"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FUNCTIONS
    with pytest.raises(SpecError, match=says):
        load(tmp_path, FUNCTIONS.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("size = 96\n", "", "facts.toml:1: name: a text has 'size'"),
        ("[minor]", "[Minor]", "facts.toml:5: Minor: a word is lower case"),
        ('kind = "fresh"', 'kind = "old"', "facts.toml:8: used: 'kind' must be one of"),
    ],
)
def test_a_wrong_fact_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        load(tmp_path, facts=FACTS.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("int thing", "long thing", "all.toml:24: nvmlDeviceSetThing: nvml.h declares"),
        ("nvmlInit_v2(void)", "nvmlInit_v3(void)", "nvmlInit_v3.*the spec does not name"),
        ("nvmlReturn_t nvmlInit_v2(void);\n", "", "nvmlInit_v2: nvml.h has no such function"),
        ("NVML_SUCCESS = 0", "NVML_SUCCESS = 0, NVML_ERROR_ODD = 5", "NVML_ERROR_ODD is 5"),
    ],
)
def test_what_the_header_has_otherwise(tmp_path: Path, old: str, new: str, says: str) -> None:
    spec = load(tmp_path)
    with pytest.raises(SpecError, match=says):
        spec_nvml.check_header(spec, HEADER.replace(old, new, 1))


def test_the_coverage_table_is_current() -> None:
    spec = spec_nvml.load(ROOT / "proto/spec_nvml")
    written = (ROOT / "proto/coverage-nvml.md").read_text(encoding="utf-8")
    assert emit_nvml.coverage(spec) == written, (
        "run: PYTHONPATH=proto python -m gpgen.emit_nvml --spec proto/spec_nvml"
        " --coverage proto/coverage-nvml.md"
    )


DESCRIBED = """\
[nvmlUnitGetCount]
doc = "Counts the units, as `nvmlUnitGetCount_v1` does."
mode = "fixed"
params = ["unsigned int *unitCount"]
answer = ["unitCount = 0"]

[nvmlUnitGetCount_v1]
doc = "The older name of `nvmlUnitGetCount`."
mode = "like"
like = "nvmlUnitGetCount"
params = ["unsigned int *count"]

[nvmlDeviceSetThing]
mode = "refuse"
reason = "others share it"
params = ["nvmlDevice_t device", "int thing"]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('doc = "The older name of `nvmlUnitGetCount`."\n', "", "8: .*_v1: say in a sentence"),
        ('"Counts the units, as', '"counts the units, as', "2: .*'doc' is a sentence"),
        ('`nvmlUnitGetCount`."', '`nvmlUnitGetCount`"', "8: .*'doc' is a sentence"),
        ('reason = "others', 'doc = "Does it."\nreason = "others', "15: .*and no 'doc'"),
    ],
)
def test_what_the_reference_cannot_say(tmp_path: Path, old: str, new: str, says: str) -> None:
    emit_nvml_reference.check(load(tmp_path, DESCRIBED))
    assert old in DESCRIBED
    with pytest.raises(SpecError, match=f"all.toml:{says}"):
        emit_nvml_reference.check(load(tmp_path, DESCRIBED.replace(old, new, 1)))


def test_the_page_of_the_reference(tmp_path: Path) -> None:
    page = emit_nvml_reference.reference(load(tmp_path, DESCRIBED))
    assert "nvmlReturn_t nvmlUnitGetCount(unsigned int *unitCount);" in page
    assert "The older name of [`nvmlUnitGetCount`](#nvmlunitgetcount)." in page
    assert page.count("Mode: fixed, always the same.") == 2
    assert "| `nvmlDeviceSetThing` | others share it |" in page


def test_the_reference_has_every_function() -> None:
    spec = spec_nvml.load(ROOT / "proto/spec_nvml")
    emit_nvml_reference.check(spec)
    page = emit_nvml_reference.reference(spec)
    for f in spec.functions:
        row = f"| `{f.name}` | {f.reason} |" if f.mode == "refuse" else f"\n### {f.name}\n"
        assert page.count(row) == 1, f.name


def test_every_answered_function_is_called_by_the_fuzzer() -> None:
    spec = spec_nvml.load(ROOT / "proto" / "spec_nvml")
    said = emit_nvml_calls.calls(spec)
    answered = {f.name for f in spec.functions if f.mode != "refuse"}
    called = {name for name in answered if f'{{"{name}", call_{name}}}' in said}
    # the first gives no result; the others are called by hand, or through the private table
    assert answered - called == {"nvmlErrorString", *emit_nvml_calls.BY_HAND}


def test_a_number_beside_a_count_has_its_own_room() -> None:
    """The fuzzer once gave two answers of a call as much room as the third one's value."""
    spec = spec_nvml.load(ROOT / "proto" / "spec_nvml")
    said = emit_nvml_calls.calls(spec)
    assert "*averageFps = nvml_call_room(d, sizeof *averageFps)" in said
    assert "sessionInfos = nvml_call_room(d, (sessionCount ? (size_t)*sessionCount : 0)" in said
