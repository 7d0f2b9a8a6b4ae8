"""structs.toml: structures of our own that messages carry whole.

One table for each: ``doc``, and ``fields``, the members' C declarations. A member is an
integer or an array of them whose length is a number: a constant could change its value
without a change of what is written here, which is part of an operation's signature.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .param import Param, SpecError
from .toml_lines import load_toml

STRUCT_FILE = "structs.toml"
_FIELD = re.compile(r"u?int(8|16|32|64)_t \w+(\[[1-9]\d*\])?$")
_USE = re.compile(r"\bstruct (\w+)")


@dataclass(frozen=True)
class Struct:
    """One structure: its members as C declares them."""

    name: str
    doc: str
    fields: tuple[str, ...]

    @property
    def form(self) -> str:
        """All that decides how it lies in a message."""
        return f"struct {self.name} {{ {' '.join(f'{field};' for field in self.fields)} }}"

    @property
    def definition(self) -> str:
        doc = textwrap.fill(f"/* {self.doc} */", 92, subsequent_indent=" * ")
        members = "".join(f"    {field};\n" for field in self.fields)
        return f"{doc}\nstruct {self.name} {{\n{members}}};\n"


def load_structs(path: Path) -> dict[str, Struct]:
    """Every structure of `path`, by name; none where there is no such file."""
    if not path.is_file():
        return {}
    tables, lines = load_toml(path)
    found = {}
    for name, table in tables.items():
        where = f"{path}:{lines.tables[name]}: {name}"
        if set(table) != {"doc", "fields"} or not table["fields"]:
            raise SpecError(f"{where}: needs 'doc' and 'fields'")
        wrong = next((field for field in table["fields"] if not _FIELD.match(field)), None)
        if wrong is not None:
            raise SpecError(f"{where}: '{wrong}' is no integer, nor an array of a number of them")
        found[name] = Struct(name, table["doc"], tuple(table["fields"]))
    return found


def carried(params: list[Param], known: Mapping[str, Struct], where: str) -> list[Struct]:
    """The structures of our own that parameters carry, in their order."""
    found = []
    for p in params:
        used = _USE.search(p.ctype)
        if not used:
            continue
        if used[1] not in known:
            raise SpecError(f"{where}:{p.line}: {STRUCT_FILE} has no structure '{used[1]}'")
        found.append(known[used[1]])
    return found
