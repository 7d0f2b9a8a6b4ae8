"""Renew constraints.txt: the newest version of every package that the project depends on.

Everything that pyproject.toml names (dependencies, extras, groups, what builds the wheel) and
the packages that the Makefile installs beside it are resolved together by pip, which installs
nothing. Run it with the oldest Python that is supported, so that all can use what it finds;
then run `make test`, and commit what has been tested. Python standard library and pip only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
OWN = "gpupool"

#: In no group of pyproject.toml: pip itself, and the CuPy that the Makefile puts beside the venv.
BESIDE = ("pip>=25.1", "cupy-cuda13x>=13")

HEAD = """\
# The tested version of every package that the project depends on, for make and the images.
# `make constraints` renews it; tests/python/test_constraints.py holds it to pyproject.toml.
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(pyproject: dict[str, Any]) -> list[str]:
    """Every requirement that pyproject.toml has, and those beside it."""
    project = pyproject["project"]
    found = [*BESIDE, *pyproject["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        found += extra
    for group in pyproject["dependency-groups"].values():
        found += [each for each in group if isinstance(each, str)]
    return sorted({each for each in found if not re.match(rf"{OWN}\b", each)})


def resolve(requirements: list[str]) -> dict[str, str]:
    """Name and version of all that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", *requirements]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit("constraints: pip cannot resolve what pyproject.toml asks for")
    items = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    return {canonical(item["name"]): item["version"] for item in items}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    given = parser.parse_args()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = pyproject["project"]["requires-python"].removeprefix(">=")
    if "{}.{}".format(*sys.version_info[:2]) != oldest:
        sys.exit(f"constraints: run it with Python {oldest}, the oldest that is supported")
    pins = resolve(wanted(pyproject))
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    given.out.write_text(HEAD + "".join(lines), encoding="utf-8")
    print(f"{given.out.name}: {len(lines)} packages; now run: make test")


if __name__ == "__main__":
    main()
