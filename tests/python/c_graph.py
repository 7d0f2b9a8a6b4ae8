"""What C code uses what, read from its text: definitions at file scope and the names in them.

Not a C parser: it knows the layout of this repository, where a definition begins in the first
column and a function's body stands between braces in the first column. A name is taken
for a use wherever it stands, so tables of functions and pointers to them count, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"^(?P<head>[A-Za-z_][^;{}#=]*?)\b(?P<name>\w+)\([^;{}]*\)\n\{", re.M)
_VARIABLE = re.compile(r"^(?P<head>[A-Za-z_][^;{}()#]*?)\b(?P<name>\w+)(\[[^\]]*\])* = \{", re.M)
_MACRO = re.compile(r"^#define (?P<name>\w+)(?P<body>(.*\\\n)*.*)$", re.M)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_TEXT = re.compile(r'"(\\.|[^"\\])*"')


@dataclass(frozen=True)
class Definition:
    """A function, table or macro of one file."""

    file: Path
    name: str
    is_static: bool
    names: frozenset[str]


def _read(path: Path) -> str:
    return _TEXT.sub('""', _COMMENT.sub("", path.read_text(encoding="utf-8")))


def definitions(path: Path) -> list[Definition]:
    """Everything that `path` defines at file scope."""
    text = _read(path)
    found = []
    for match in [*_FUNCTION.finditer(text), *_VARIABLE.finditer(text)]:
        end = re.compile(r"^\}", re.M).search(text, match.end())
        body = text[match.start("name") + len(match["name"]) : end.start() if end else None]
        names = frozenset(_NAME.findall(body))
        found.append(Definition(path, match["name"], "static" in match["head"], names))
    for match in _MACRO.finditer(text):
        names = frozenset(_NAME.findall(match["body"]))
        found.append(Definition(path, match["name"], True, names))
    return found


class Program:
    """All definitions of some files, found as the linker would find them."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._own: dict[tuple[Path, str], list[Definition]] = {}
        self._public: dict[str, Definition] = {}
        for path in paths:
            for d in definitions(path):
                self._own.setdefault((path, d.name), []).append(d)
                if not d.is_static:
                    self._public[d.name] = d

    def public(self, name: str) -> Definition | None:
        return self._public.get(name)

    def reach(self, start: Definition, stop: Callable[[str], bool]) -> set[str]:
        """Every name that `start` uses, through all definitions but those of names that
        `stop` says nothing is to be looked for behind."""
        seen: set[str] = set()
        todo = [start]
        done = {(start.file, start.name)}
        while todo:
            at = todo.pop()
            for name in at.names:
                seen.add(name)
                if stop(name):
                    continue
                public = self._public.get(name)
                nexts = self._own.get((at.file, name)) or ([public] if public else [])
                for d in nexts:
                    if (d.file, d.name) not in done:
                        done.add((d.file, d.name))
                        todo.append(d)
        return seen
