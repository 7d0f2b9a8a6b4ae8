"""Ask what is known against the packages of constraints.txt; exit code 1 if anything is.

What could not be asked about is no clean result: it is counted, named, and exit code 3.

Asking needs https://pypi.org: a mirror of its files has no advisories. Where it is not in reach,
``--record FILE`` on another machine, with the same constraints.txt, and ``--recorded FILE`` here:
what the record does not have in that version was not asked about.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Exit codes; 2 is argparse's, of arguments that are wrong.
FOUND, UNASKED = 1, 3

#: Of so many packages that could not be asked about the names are said.
MOST_NAMED = 5


def ask(constraints: Path) -> str:
    """What pip-audit says of these versions, as JSON; it installs and resolves nothing."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes"]
    command += ["--requirement", str(constraints), "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):  # it reached nobody, or is not installed
        last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        print(f"advisories: nothing was asked; pip-audit says: {last[:500]}", file=sys.stderr)
        sys.exit(UNASKED)
    return done.stdout


def count(packages: int) -> str:
    return f"{packages} package" + ("" if packages == 1 else "s")


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
    asked = len(packages) - len(unasked)
    lines = [*known, f"{count(asked)} asked about, {len(known)} found"] if asked else []
    if unasked or not packages:
        names = ", ".join([*unasked[:MOST_NAMED], *["…"][: len(unasked) > MOST_NAMED]])
        lines.append(
            f"advisories: {count(len(unasked))} not asked about ({names}):"
            " https://pypi.org must be in reach, as a mirror of its files knows no advisories"
        )
    return lines, FOUND if known else 0 if asked and not unasked else UNASKED


_PINNED = re.compile(r"^([a-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def recorded(record: str, constraints: str) -> tuple[str, str]:
    """When a record was made, and what pip-audit would say by it of these constraints."""
    try:
        kept = json.loads(record)
        when, known = str(kept["asked"]), kept["said"]["dependencies"]
        found = {(each["name"], each.get("version")): each for each in known}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"advisories: this is no record of --record: {error!r}")
    missing = {"skip_reason": "the record does not have it"}
    said = [
        found.get((name, version), {"name": name, **missing})
        for name, version in _PINNED.findall(constraints)
    ]
    return when, json.dumps({"dependencies": said})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, help="write down what is said, for elsewhere")
    parser.add_argument("--recorded", type=Path, help="ask what was written down, and nobody else")
    given = parser.parse_args()
    constraints = ROOT / "constraints.txt"
    if given.recorded:
        record = given.recorded.read_text(encoding="utf-8")
        when, said = recorded(record, constraints.read_text(encoding="utf-8"))
        print(f"as was known {when}; what came later is not in it")
    else:
        said = ask(constraints)
    if given.record:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        given.record.write_text(json.dumps({"asked": now, "said": json.loads(said)}) + "\n")
    lines, code = judge(said)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
