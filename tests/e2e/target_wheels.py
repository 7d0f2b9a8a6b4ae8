"""The wheels for other machines (`make wheels`), and a program that is built for one of them."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

from toolchain import PROGRAMS, Toolchain

WHEELS = Path(os.environ.get("GPUPOOL_TARGETS", ""))


def wheel_of(target: str) -> Path:
    (wheel,) = (WHEELS / target).glob("gpupool-*.whl")
    return wheel


def unpack(target: str, root: Path) -> None:
    """As `unzip` does, with the programs executable."""
    with zipfile.ZipFile(wheel_of(target)) as archive:
        archive.extractall(root)
    for path in (root / "gpupool").glob("libexec/*"):
        path.chmod(0o755)


def build_hello(target: str, program: Path, libraries: Path, toolchain: Toolchain) -> Path:
    """A program of the target that is linked with the wheel's libcuda.so.1."""
    compiler = WHEELS.parent / "targets" / target / "tools" / "cc"
    command = [str(compiler), str(PROGRAMS / "targets_hello.c"), "-O1", "-o", str(program)]
    command += [f"-I{toolchain.cuda13.include}", f"-L{libraries}", "-l:libcuda.so.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program
