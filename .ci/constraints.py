"""Renew constraints.txt: the newest version of every package that the project depends on.

Everything that pyproject.toml names (dependencies, extras, groups, what builds the wheel) and
the packages that the Makefile installs beside it are resolved together by uv, for every Python
that is supported, and written down with the SHA-256 of each of their files; nothing is
installed. pip takes no other file then, and no package that is not in the list. Run `make test`
afterwards, and commit what has been tested. Needs the dependency group supply.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
OWN = "gpupool"

#: In no group of pyproject.toml: pip itself, and the CuPy that the Makefile puts beside the venv.
BESIDE = ("pip>=25.1", "cupy-cuda13x>=13")

HEAD = """\
# The tested version of every package that the project depends on, with the hashes of its files,
# for make and the images: pip refuses what is not here. `make constraints` renews it;
# tests/python/test_constraints.py holds it to pyproject.toml.
"""


def wanted(pyproject: dict[str, Any]) -> list[str]:
    """Every requirement that pyproject.toml has, and those beside it."""
    project = pyproject["project"]
    found = [*BESIDE, *pyproject["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        found += extra
    for group in pyproject["dependency-groups"].values():
        found += [each for each in group if isinstance(each, str)]
    return sorted({each for each in found if not re.match(rf"{OWN}\b", each)})


def resolve(requirements: list[str], oldest: str, held: Path | None) -> str:
    """Version and hashes of all that they need, on every Python from the oldest."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "requirements.in"
        asked.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", oldest, "--generate-hashes", "--no-header"]
        command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        command += ["--constraint", str(held)] if held else ["--upgrade"]
        done = subprocess.run(
            [*command, str(asked)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode != 0:
        sys.exit("constraints: uv cannot resolve what pyproject.toml asks for")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--hold", action="store_true", help="keep the versions that are there")
    given = parser.parse_args()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = pyproject["project"]["requires-python"].removeprefix(">=")
    pins = resolve(wanted(pyproject), oldest, FILE if given.hold else None)
    given.out.write_text(HEAD + pins, encoding="utf-8")
    count = len(re.findall(r"^[a-z0-9]", pins, re.MULTILINE))
    print(f"{given.out.name}: {count} packages; now run: make test")


if __name__ == "__main__":
    main()
