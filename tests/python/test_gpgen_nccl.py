"""NCCL's spec: what it may say, and that it is what NCCL's header says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_nccl, spec_nccl  # noqa: E402
from gpgen.param import SpecError  # noqa: E402

SPEC = """
[ncclThing]
doc = "Does a thing."
mode = "collective"
sends = "times(count, ranks)"
params = ["const void *sendbuff", "size_t count", "ncclDataType_t datatype", "ncclComm_t comm",
  "cudaStream_t stream"]
"""


def load(folder: Path, text: str = SPEC) -> list[spec_nccl.Function]:
    (folder / "all.toml").write_text(text, encoding="utf-8")
    return spec_nccl.load(folder)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('mode = "collective"', 'mode = "often"', "all.toml:4: ncclThing: the mode is 'often'"),
        ('mode = "collective"', 'mode = "refuse"', "a refused function needs a reason"),
        ('doc = "Does a thing."\n', "", "what is not refused says what it does"),
        ("times(count, ranks)", "count * sizes", "'sizes' is nothing that a number"),
        ('sends = "times(count, ranks)"\n', "", "a generated collective says what it sends"),
        ('sends = "times', 'receives = "times', "go together"),
        ('"size_t count", ', '"int count", ', "nothing that a number"),
        ("doc =", "does =", "unknown key 'does'"),
    ],
)
def test_what_a_spec_may_not_say(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in SPEC
    with pytest.raises(SpecError, match=says):
        load(tmp_path, SPEC.replace(old, new, 1))


def test_products_do_not_wrap_round(tmp_path: Path) -> None:
    source = emit_nccl.bytes_source(load(tmp_path))
    assert "uses->sends = times(c->count, ranks);" in source
    assert "times(uses->sends, gp_nccl_type_bytes(c->datatype))" in source


def test_the_coverage_table_is_current() -> None:
    written = (ROOT / "proto/coverage-nccl.md").read_text(encoding="utf-8")
    assert emit_nccl.coverage(spec_nccl.load(ROOT / "proto/spec_nccl")) == written, "make coverage"


def test_our_header_has_what_the_spec_has() -> None:
    text = (ROOT / "proto/wire/nccl_api.h").read_text(encoding="utf-8")
    text = text.replace("CUstream stream", "cudaStream_t stream")
    spec = spec_nccl.load(ROOT / "proto/spec_nccl")
    spec_nccl.check_header([f for f in spec if f.name != "ncclResetDebugInit"], text)


def test_a_function_that_differs_is_found() -> None:
    spec = spec_nccl.load(ROOT / "proto/spec_nccl")
    with pytest.raises(SpecError, match="ncclGroupStart"):
        spec_nccl.check_header(spec, "ncclResult_t ncclGroupStart(int depth);")


def find_headers() -> list[Path]:
    """NCCL's own, and those of its device API."""
    for entry in sys.path:
        folder = Path(entry) / "nvidia" / "nccl" / "include"
        found = folder / "nccl.h"
        if found.is_file() and re.search(r"NCCL_MINOR\s+28\b", found.read_text(encoding="utf-8")):
            return [found, *sorted((folder / "nccl_device").glob("*.h"))]
    return []


def declared(header: Path) -> str:
    """Without what is no C: comments, lines of the preprocessor, and what kernels see."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"#if __cplusplus.*?#endif", " ", text, flags=re.DOTALL)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if header.name == "nccl.h":
        return "\n".join(lines)
    return "\n".join(line for line in lines if "NCCL_EXTERN_C __host__" in line)


def unnamed(decl: str) -> str:
    """A parameter, of which the device API's headers name only some."""
    return re.sub(r"\s*(\*|\bconst\b)\s*", r" \1 ", decl).split()[0]


def test_the_header_of_the_wheel() -> None:
    headers = find_headers()
    if not headers:
        pytest.skip("nccl.h 2.28 is not here: pip install nvidia-nccl-cu13==2.28.*")
    spec = spec_nccl.load(ROOT / "proto/spec_nccl")
    device = {f.name: f for f in spec if f.file.stem == "device"}
    spec_nccl.check_header([f for f in spec if f.name not in device], declared(headers[0]))
    for header in headers[1:]:
        for name, given in re.findall(r"\b(nccl[A-Z]\w*)\(([^)]*)\);", declared(header)):
            types = [unnamed(part) for part in given.split(",")]
            assert [unnamed(p.decl) for p in device.pop(name).params] == types, name
    assert not device
