"""Print what to install, one requirement a line, for `pip install --requirement`.

    needs.py [EXTRA ...]    what the project depends on, with these extras
    needs.py --pip          pip itself, locked: a pip before 25.1 cannot read the rest

pip checks hashes (constraints.txt has them), and a project of this machine has none: what it
depends on is installed first, and it itself with --no-deps. Python standard library only.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def locked(name: str) -> str:
    """The lines of constraints.txt for one package: its version and its hashes."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"needs: {name} is not in constraints.txt; run: make constraints")
    return found[0]


def needs(extras: list[str]) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    unknown = sorted(set(extras) - set(optional))
    if unknown:
        raise SystemExit(f"needs: no extra {unknown[0]!r}; there are: {', '.join(optional)}")
    found: list[str] = list(project["dependencies"])
    waiting = list(extras)
    while waiting:
        for requirement in optional[waiting.pop()]:
            own = re.fullmatch(rf"{project['name']}\[([\w,]+)\]", requirement)
            if own:
                waiting += own[1].split(",")
            else:
                found.append(requirement)
    return sorted(set(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--pip", action="store_true")
    given = parser.parse_args()
    print(locked("pip") if given.pip else "\n".join(needs(given.extras)))


if __name__ == "__main__":
    main()
