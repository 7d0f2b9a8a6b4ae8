"""The error codes of an API: errors.toml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .param import SpecError
from .toml_lines import load_toml


@dataclass(frozen=True)
class ErrorCode:
    """One CUresult or nvmlReturn_t."""

    name: str
    value: int
    text: str
    sticky: bool = False  # it ends the context: every later call gives it again


def load_errors(path: Path) -> list[ErrorCode]:
    """Every code of `path` by its value; none where there is no such file."""
    if not path.is_file():
        return []
    tables, lines = load_toml(path)
    errors = []
    for name, table in tables.items():
        if set(table) - {"sticky"} != {"value", "text"} or table.get("sticky", True) is not True:
            raise SpecError(
                f"{path}:{lines.tables[name]}: {name}: needs 'value' and 'text', and may have"
                " 'sticky = true'"
            )
        errors.append(ErrorCode(name, **table))
    return sorted(errors, key=lambda e: e.value)
