"""Write down what the wheel brings and needs: a CycloneDX file, dist/gpupool-VERSION.cdx.json.

The wheel is installed, with all that its extras need, into an environment of its own; what is
there and the libraries that the wheel carries (auditwheel lists those inside it) go into one
file. Needs the dependency group supply, and the wheel in the --out folder.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Document = dict[str, Any]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"sbom: {' '.join(map(str, command[:4]))} failed")


def install(wheel: Path, environment: Path) -> Path:
    """Its Python, in an environment with the wheel and what it needs, hashes checked."""
    shutil.rmtree(environment, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    needs = environment / "needs.txt"
    said = subprocess.run(
        [sys.executable, ROOT / ".ci" / "needs.py", "postgresql"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    needs.write_text(said.stdout, encoding="utf-8")
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--constraint", ROOT / "constraints.txt", "--requirement", needs)
    run(*pip, "--no-deps", wheel)
    return python


def carried(wheel: Path) -> list[Document]:
    """The libraries inside the wheel, as auditwheel lists them."""
    with zipfile.ZipFile(wheel) as archive:
        lists = [n for n in archive.namelist() if n.endswith("/sboms/auditwheel.cdx.json")]
        if len(lists) != 1:
            sys.exit(f"sbom: {wheel.name} says nothing of the libraries that it carries")
        found: Document = json.loads(archive.read(lists[0]))
    return [part for part in found["components"] if not str(part["name"]).startswith("gpupool")]


def describe(python: Path, wheel: Path, out: Path) -> int:
    """Write the file; how many components it has."""
    run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", python),
        *("--pyproject", ROOT / "pyproject.toml", "--spec-version", "1.6"),
        *("--output-reproducible", "--output-file", out),
    )
    document: Document = json.loads(out.read_text(encoding="utf-8"))
    document["components"] += carried(wheel)
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return len(document["components"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder for the environment")
    parser.add_argument("--out", type=Path, required=True, help="folder of the wheel")
    given = parser.parse_args()
    wheels = list(given.out.absolute().glob("gpupool-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"sbom: {given.out} holds {len(wheels)} wheels of gpupool, not one")
    version = re.sub(r"^gpupool-([^-]+)-.*", r"\1", wheels[0].name)
    out = given.out.absolute() / f"gpupool-{version}.cdx.json"
    python = install(wheels[0], given.build.absolute() / "sbom")
    print(f"{out.name}: {describe(python, wheels[0], out)} components")


if __name__ == "__main__":
    main()
