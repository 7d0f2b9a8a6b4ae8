"""The built files have what cmake/hardening.cmake asks for."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from gpupool_common import paths

DF_BIND_NOW = 0x8
ENDBR64 = b"\xf3\x0f\x1e\xfa"


def built() -> list[Path]:
    root = paths.find_home().root
    found = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(path for path in found if path.read_bytes()[:4] == b"\x7fELF")


def dynamic(elf: ELFFile) -> DynamicSection:
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return section


def imports(elf: ELFFile) -> set[str]:
    table = elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    return {s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}


def exports(elf: ELFFile) -> Iterator[int]:
    """Where the functions begin that others may call."""
    table = elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    for symbol in table.iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF":
            yield symbol["st_value"]


def code_at(elf: ELFFile, address: int) -> bytes:
    (offset,) = elf.address_offsets(address)
    elf.stream.seek(offset)
    return bytes(elf.stream.read(len(ENDBR64)))


def test_all_programs_and_libraries_are_found() -> None:
    names = {path.name for path in built()}
    assert {"gpupool-worker", "gpupool-learn", "libcuda.so.1", "libgpupool_softgpu.so"} <= names


@pytest.mark.parametrize("path", built(), ids=lambda path: path.name)
def test_addresses_are_random_and_tables_read_only(path: Path) -> None:
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_type"] == "ET_DYN"  # a library, or a program that runs at any address
        segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
        assert "PT_GNU_RELRO" in segments
        assert segments["PT_GNU_STACK"]["p_flags"] & 1 == 0  # nothing on it is executed
        for segment in elf.iter_segments("PT_LOAD"):
            assert segment["p_flags"] & 3 != 3, "a segment is writable and executable"
        flags = [tag["d_val"] for tag in dynamic(elf).iter_tags("DT_FLAGS")]
        assert flags and flags[0] & DF_BIND_NOW
        for tag in ("DT_TEXTREL", "DT_RPATH"):
            assert not list(dynamic(elf).iter_tags(tag))


@pytest.mark.parametrize("path", built(), ids=lambda path: path.name)
def test_the_stack_is_guarded(path: Path) -> None:
    with path.open("rb") as file:
        called = imports(ELFFile(file))
    assert "__stack_chk_fail" in called


def test_copies_are_checked() -> None:
    """_FORTIFY_SOURCE: where the compiler knows a buffer's size, the checking form is called."""
    checked: set[str] = set()
    for path in built():
        with path.open("rb") as file:
            checked |= {name for name in imports(ELFFile(file)) if name.endswith("_chk")}
    assert {"__memcpy_chk", "__snprintf_chk"} <= checked


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64's")
@pytest.mark.parametrize("path", built(), ids=lambda path: path.name)
def test_indirect_jumps_have_marked_targets(path: Path) -> None:
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert all(code_at(elf, address) == ENDBR64 for address in exports(elf))
