"""The variables that the doctor knows are those that are read, and those of the pages."""

from __future__ import annotations

import re

from gpupool_common import variables
from server_harness import ROOT

_NAME = re.compile(r"\bGPUPOOL_[A-Z_]+[A-Z]\b")
#: Of builds and of the soft GPU's own programs; nobody sets them for a program.
_ELSEWHERE = re.compile(r"GPUPOOL_(SOFT_|TEST_|CLAIM_DEVICE$|MANAGER_DATABASE$)")


def named(*pages: str) -> set[str]:
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    return {name for name in _NAME.findall(text) if not _ELSEWHERE.match(name)}


def test_pages_name_no_other() -> None:
    pages = ("docs/client-guide.md", "docs/pool.md", "docs/sharing.md", "docs/server-guide.md")
    found = named(*pages)
    assert len(found) > 20
    assert found - variables.NAMES == set()


def test_the_library_reads_no_other() -> None:
    sources = [*(ROOT / "client_lib").rglob("*.c"), *(ROOT / "proto" / "transport").rglob("*.c")]
    read = {
        name
        for path in sources
        for name in re.findall(r'getenv\("(GPUPOOL_[A-Z_]+)"\)', path.read_text(encoding="utf-8"))
    }
    assert len(read) > 8
    assert read - variables.NAMES == set()


def test_what_is_nearly_right() -> None:
    env = {"GPUPOOL_SEVER": "", "GPUPOOL_POOLS": "", "GPUPOOL_WEATHER": "", "GPUPOOL_LOG": ""}
    assert variables.nearly(env) == {
        "GPUPOOL_SEVER": "GPUPOOL_SERVER",
        "GPUPOOL_POOLS": "GPUPOOL_POOL",
    }
