"""The wheels for other machines: what they ask for, and that programs run with them.

`make test-targets` builds the wheels and unpacks qemu-user and the C libraries that stand in for
those machines.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

import target_wheels
from harness import PoolServer, run_program
from target_wheels import WHEELS
from toolchain import Toolchain

pytestmark = [
    pytest.mark.skipif(
        "GPUPOOL_TARGETS" not in os.environ, reason="there are no wheels; make test-targets"
    ),
    pytest.mark.timeout(600),
]

#: RHEL 8's and Debian 10's; libstdc++ is what GCC 8 brought.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (8,)}
GLIBC_LIBRARIES = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[\w-]*)\.so\.\d+"
)
MUSL_LIBRARIES = re.compile(r"libc(\.musl-x86_64)?\.so(\.1)?")

#: By qemu the window of device addresses takes the kernel's emulation its time.
PATIENCE = 300.0


@dataclass(frozen=True)
class Machine:
    """A machine that stands in: how a program of the target is started on this one."""

    target: str
    processor: str  # as elftools names it
    plain: re.Pattern[str]  # libraries that every machine of the kind has
    transports: tuple[str, ...]
    loader: tuple[str, ...] = ()


ROOT = WHEELS / "root"


def musl_loader() -> str:
    """Debian's, which lies in another folder from Debian 13 on."""
    found = [*ROOT.glob("lib/*-musl/libc.so"), *ROOT.glob("usr/lib/*-musl/libc.so")]
    return str(found[0]) if found else "musl"


MACHINES = (
    Machine("x86_64-glibc", "EM_X86_64", GLIBC_LIBRARIES, ("shm", "tcp", "zmq")),
    Machine(
        "aarch64-glibc",
        "EM_AARCH64",
        GLIBC_LIBRARIES,
        ("zmq",),
        (f"{ROOT}/usr/bin/qemu-aarch64-static", "-L", f"{ROOT}/usr/aarch64-linux-gnu"),
    ),
    Machine(
        "x86_64-musl",
        "EM_X86_64",
        MUSL_LIBRARIES,
        ("shm", "zmq"),
        (musl_loader(),),
    ),
)


@dataclass(frozen=True)
class Unpacked:
    machine: Machine
    root: Path

    @property
    def libraries(self) -> Path:
        return self.root / "gpupool" / "lib"

    def files(self) -> list[Path]:
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return [path for path in found if path.read_bytes()[:4] == b"\x7fELF"]


@pytest.fixture(scope="module", params=MACHINES, ids=lambda machine: machine.target)
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    machine: Machine = request.param
    root = tmp_path_factory.mktemp(machine.target)
    target_wheels.unpack(machine.target, root)
    return Unpacked(machine, root)


def needs(elf: ELFFile) -> Iterator[str]:
    """The versions of symbols that a file asks of others, e.g. GLIBC_2.17."""
    section = elf.get_section_by_name(".gnu.version_r")
    if isinstance(section, GNUVerNeedSection):
        for _, versions in section.iter_versions():
            yield from (str(version.name) for version in versions)


def test_asks_for_no_newer_library(unpacked: Unpacked) -> None:
    asked: set[str] = set()
    for path in unpacked.files():
        with path.open("rb") as file:
            asked |= set(needs(ELFFile(file)))
    if unpacked.machine.plain is MUSL_LIBRARIES:
        assert not {name for name in asked if name.startswith("GLIBC_")}
        return
    assert "GLIBC_2.17" in asked, "no versions were read"
    for name in sorted(asked):
        kind, _, number = name.partition("_")
        parts = tuple(int(part) for part in number.split("."))
        assert parts <= NEWEST.get(kind, (0,)), name


def test_needs_what_is_there_or_what_it_brings(unpacked: Unpacked) -> None:
    files = unpacked.files()
    brought = {path.name for path in files}
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libcupti.so.13", "libgpupool_zmq.so"} <= brought
    for path in files:
        with path.open("rb") as file:
            elf = ELFFile(file)
            assert elf["e_machine"] == unpacked.machine.processor, path
            dynamic: Any = elf.get_section_by_name(".dynamic")
            needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        strange = [
            n for n in needed if not unpacked.machine.plain.fullmatch(n) and n not in brought
        ]
        assert strange == [], path


def test_fits_the_pages_of_its_kernels(unpacked: Unpacked) -> None:
    """A loader refuses a file whose segments lie closer than the pages of its kernel."""
    pages = 65536 if unpacked.machine.processor == "EM_AARCH64" else 4096
    for path in unpacked.files():
        with path.open("rb") as file:
            segments = list(ELFFile(file).iter_segments("PT_LOAD"))
        assert segments and all(one["p_align"] % pages == 0 for one in segments), path


def test_has_the_licences_of_what_is_inside(unpacked: Unpacked) -> None:
    (information,) = unpacked.root.glob("gpupool-*.dist-info")
    named = {path.stem for path in information.glob("licenses/third_party/*.txt")}
    assert {"pyzmq-zeromq", "pyzmq-libsodium"} <= named
    if unpacked.machine.target == "x86_64-glibc":
        assert {"libssl3", "liblz4-1", "libzstd1"} <= named


@pytest.fixture(scope="module")
def hello(unpacked: Unpacked, toolchain: Toolchain) -> list[str]:
    program = target_wheels.build_hello(
        unpacked.machine.target, unpacked.root / "hello", unpacked.libraries, toolchain
    )
    return [*unpacked.machine.loader, str(program)]


def is_old_musl(loader: str) -> bool:
    said = subprocess.run([loader], capture_output=True, text=True, check=False).stderr
    found = re.search(r"^Version (\d+)\.(\d+)\.(\d+)", said, re.MULTILINE)
    assert found, said
    return tuple(int(part) for part in found.groups()) < (1, 2, 4)


@pytest.mark.parametrize("transport", ["shm", "tcp", "zmq"])
def test_a_program_runs(
    transport: str, unpacked: Unpacked, hello: list[str], server: PoolServer, tmp_path: Path
) -> None:
    if transport not in unpacked.machine.transports:
        pytest.skip(f"{unpacked.machine.target} has no {transport}")
    env = server.environment(transport, LD_LIBRARY_PATH=str(unpacked.libraries))
    if transport == "shm":  # which needs no libzmq
        env["GPUPOOL_SERVER"] = f"unix://{server.folder}/run/shm.sock"
    elif unpacked.machine.plain is MUSL_LIBRARIES and is_old_musl(hello[0]):
        pytest.skip("musl before 1.2.4 does not load pyzmq's libraries (DT_RELR)")
    env["GPUPOOL_LOG"] = "info"
    result = run_program(hello, env, PATIENCE)
    assert result.returncode == 0 and result.stdout.startswith("PASS on "), result.explain()
    assert f"over {transport}," in result.stderr, result.explain()


def test_its_own_server_serves_it(
    unpacked: Unpacked, hello: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (unpacked.root / "gpupool/libexec/gpupool-worker").exists():
        pytest.skip(f"{unpacked.machine.target} has no server")
    monkeypatch.setenv("GPUPOOL_HOME", str(unpacked.root / "gpupool"))
    own = PoolServer(**{"soft-gpus": "1"})
    try:
        own.start()
        for transport in unpacked.machine.transports:
            result = own.run(hello, transport, LD_LIBRARY_PATH=str(unpacked.libraries))
            assert result.returncode == 0, result.explain()
            assert result.stats["transport"] == transport
    finally:
        own.close()
