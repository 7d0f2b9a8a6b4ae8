"""Fetches the suites as packages, and packs what a machine without a network wants.

    python tests/outside/packages.py --out DIR [--only tests numba ...] [--archive FILE]

DIR gets `cupy/tests` (of CuPy's source package) and `site`, packages that the suites import and
the frameworks' machine may not have; the latter for the Python named by --python-version. FILE
is a .tar.xz of DIR. Nothing of it is ours, and none of it is committed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: pip takes wheels of exactly these.
GLIBC = (17, 24, 27, 28)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[], help="parts of packages.toml")
    parser.add_argument("--python-version", default="3.12", help="of the frameworks' Python")
    parser.add_argument("--archive", type=Path, help="pack all that into a .tar.xz")
    given = parser.parse_args()
    parts = tomllib.loads((HERE / "packages.toml").read_text(encoding="utf-8"))
    shutil.rmtree(given.out / "site", ignore_errors=True)  # what an earlier call wanted
    for name in given.only or parts:
        fetch(parts[name], given.out, given.python_version)
    if given.archive is not None:
        with tarfile.open(given.archive, "w:xz", preset=6) as archive:
            archive.add(given.out, arcname=".")
        print(f"{given.archive}: {given.archive.stat().st_size / (1 << 20):.1f} MiB")
    return 0


def fetch(part: dict[str, Any], out: Path, python_version: str) -> None:
    if wheels := part.get("wheels"):
        install(wheels, out / "site", python_version)
    if sdist := part.get("sdist"):
        unpack(sdist, part["folder"], out / part["to"], part.get("env", {}))


def install(wheels: list[str], site: Path, python_version: str) -> None:
    """Wheels of that Python, without what they need: the frameworks' machine has it."""
    command = ["install", "--quiet", "--no-deps", "--upgrade", "--no-compile"]
    command += ["--target", str(site), "--only-binary=:all:", "--python-version", python_version]
    command += ["--implementation", "cp", "--platform", "manylinux2014_x86_64"]
    command += [word for n in GLIBC for word in ("--platform", f"manylinux_2_{n}_x86_64")]
    pip([*command, *wheels], {})


def unpack(sdist: str, folder: str, to: Path, env: dict[str, str]) -> None:
    """One folder of a source package."""
    with tempfile.TemporaryDirectory() as scratch:
        only_source = f"--no-binary={sdist.partition('==')[0]}"
        pip(["download", "--quiet", "--no-deps", only_source, "-d", scratch, sdist], env)
        (found,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(found) as archive:
            archive.extractall(scratch, filter="data")
        (source,) = (path for path in Path(scratch).iterdir() if path.is_dir())
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(source / folder, to)


def pip(words: list[str], env: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words], env={**os.environ, **env}, check=True)


if __name__ == "__main__":
    sys.exit(main())
