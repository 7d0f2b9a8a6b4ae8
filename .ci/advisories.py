"""Ask what is known against the packages of constraints.txt; exit code 1 if anything is.

What could not be asked about is no clean result: it is counted, named, and exit code 1, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Of so many packages that could not be asked about the names are said.
MOST_NAMED = 5


def ask(constraints: Path) -> str:
    """What pip-audit says of these versions, as JSON; it installs and resolves nothing."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes"]
    command += ["--requirement", str(constraints), "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        sys.exit(f"advisories: pip-audit says nothing: {done.stderr.strip()[-500:]}")
    return done.stdout


def judge(said: str) -> tuple[list[str], int]:
    """Lines for who reads it, and the exit code."""
    packages: list[dict[str, Any]] = json.loads(said)["dependencies"]
    known = [
        f"{package['name']} {package['version']}: {found['id']}"
        f" (mended in {', '.join(found['fix_versions']) or 'no version yet'})"
        for package in packages
        for found in package.get("vulns", ())
    ]
    unasked = [str(package["name"]) for package in packages if "skip_reason" in package]
    lines = [
        *known,
        f"{len(packages) - len(unasked)} packages were asked about, {len(known)} found",
    ]
    if unasked or not packages:
        names = ", ".join(unasked[:MOST_NAMED])
        lines.append(
            f"advisories: {len(unasked)} packages could not be asked about ({names}, …):"
            " https://pypi.org must be in reach, as a mirror of its files knows no advisories"
        )
    return lines, int(bool(known or unasked or not packages))


def main() -> int:
    lines, code = judge(ask(ROOT / "constraints.txt"))
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
