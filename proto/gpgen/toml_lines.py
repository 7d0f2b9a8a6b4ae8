"""TOML with the lines that its tables and keys stand in, which tomllib does not tell."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from .param import SpecError


class Lines:
    """Where each table and key of a TOML file stands."""

    def __init__(self, text: str) -> None:
        self.tables: dict[str, int] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.params: dict[tuple[str, int], int] = {}
        table, inside, index = "", False, 0
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if inside:
                if line.startswith('"'):
                    self.params[(table, index)] = number
                    index += 1
                elif line.startswith("]"):
                    inside = False
            elif m := re.match(r"\[([\w.]+)\]$", line):
                table = m[1]
                self.tables.setdefault(table, number)
            elif m := re.match(r"(\w+)\s*=", line):
                self.keys[(table, m[1])] = number
                if m[1] in ("params", "forms") and not line.endswith("]"):
                    inside, index = True, 0


def load_toml(path: Path) -> tuple[dict[str, Any], Lines]:
    text = path.read_text(encoding="utf-8")
    try:
        return tomllib.loads(text), Lines(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        raise SpecError(f"{path}:{found[1] if found else 1}: {error}") from None
