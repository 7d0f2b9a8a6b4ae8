"""Reads C as far as counting needs it: definitions of functions, with macros that make
them expanded, and variables that live as long as the process.

It is no compiler: it knows the style of this repository and refuses a file whose braces
do not match. Python standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)((?:[^\n\\]|\\\n|\\.)*)", re.M)
_CALL = re.compile(r"^(\w+)\(([^()]*)\)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_TYPE = re.compile(r"[\w\s]*\b(?:struct|union|enum)\b[\w\s]*$")
_SKIPPED_WORDS = {"if", "for", "while", "switch", "return", "sizeof"}


class CSourceError(Exception):
    """A file that this cannot read; its text starts with the file's name."""


@dataclass(frozen=True)
class CFunction:
    """One definition. A function that a macro makes starts at the macro's use."""

    name: str
    line: int  # of its first line
    end: int
    body: str = field(repr=False)  # with its braces, without comments and texts

    @property
    def lines(self) -> int:
        return self.end - self.line + 1


@dataclass(frozen=True)
class CStatic:
    """One variable that the program may change and that is there as long as it runs."""

    name: str
    line: int


def _blank(match: re.Match[str]) -> str:
    """As many lines, and nothing on them; a text stays an empty text."""
    text = match.group()
    lines = "\n" * text.count("\n")
    return text[0] * 2 if text[0] in "\"'" else " " + lines


def _blank_all(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


@dataclass(frozen=True)
class _Piece:
    """Code between braces, or between semicolons, outside every function."""

    head: str
    line: int
    body: str = ""
    end: int = 0


@dataclass(frozen=True)
class CSource:
    """One file of C."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> CSource:
        return cls(path, path.read_text(encoding="utf-8"))

    @cached_property
    def plain(self) -> str:
        """The text without comments, texts and directives, on the same lines."""
        return _DIRECTIVE.sub(_blank, _SKIPPED.sub(_blank, self.text))

    @cached_property
    def _macros(self) -> dict[str, tuple[list[str], str]]:
        """The function-making macros of this file: their parameters and what they become."""
        found = {}
        for match in _MACRO.finditer(_SKIPPED.sub(_blank, self.text)):
            name, parameters, body = match.groups()
            if "{" in body:
                found[name] = ([p.strip() for p in parameters.split(",")], body)
        return found

    @cached_property
    def _uses(self) -> list[re.Match[str]]:
        """Where the function-making macros are used."""
        return [m for m in _CALL.finditer(self.plain) if m.group(1) in self._macros]

    @cached_property
    def _code(self) -> str:
        """The plain text without the uses of function-making macros."""
        text = self.plain
        for use in self._uses:
            text = text[: use.start()] + _blank_all(use) + text[use.end() :]
        return text

    @cached_property
    def functions(self) -> list[CFunction]:
        made = [
            CFunction(f.name, line, line, f.body)
            for line, source in self._expanded()
            for f in source._written()
        ]
        return sorted([*self._written(), *made], key=lambda f: f.line)

    @property
    def statics(self) -> list[CStatic]:
        """Outside functions and inside them."""
        found = [s for p in self._pieces() if not p.body or "=" in p.head for s in _outside(p)]
        for f in self._written():
            for match in re.finditer(r"(?:^|[;{}])\s*(static\b[^;{}=(]*)", f.body):
                line = f.line + _before_body(self, f) + f.body.count("\n", 0, match.start(1))
                found += _variable(match.group(1), line)
        return found

    @property
    def constants(self) -> list[tuple[int, str]]:
        """Tables with initial values outside functions: the line and what is in the braces."""
        return [(p.line, p.body) for p in self._pieces() if p.body and "=" in p.head]

    def _written(self) -> list[CFunction]:
        found = []
        for piece in self._pieces():
            name = _function_name(piece.head) if piece.body else None
            if name:
                found.append(CFunction(name, piece.line, piece.end, piece.body))
        return found

    def _expanded(self) -> list[tuple[int, CSource]]:
        """The uses of function-making macros: the line, and what they become."""
        found = []
        for use in self._uses:
            parameters, body = self._macros[use.group(1)]
            given = [a.strip() for a in use.group(2).split(",")]
            text = _expand(body, dict(zip(parameters, given, strict=False)))
            found.append((self.plain.count("\n", 0, use.start()) + 1, CSource(self.path, text)))
        return found

    def _pieces(self) -> list[_Piece]:
        """What stands outside all functions, each with the braces that follow it."""
        text, found = self._code, []
        start = at = 0
        kind = ""  # of a type whose braces have just ended: `static struct {...} name;`
        while at < len(text):
            if text[at] == ";":
                found.append(self._piece(start, at, at, kind))
                kind, start = "", at + 1
            elif text[at] == "{":
                end = self._closing(at)
                found.append(self._piece(start, at, end))
                head = found[-1].head
                kind = head if _TYPE.match(head) else ""
                at = end
                start = end + 1
            elif text[at] == "}":
                raise self._unmatched(at)
            at += 1
        return found

    def _piece(self, start: int, brace: int, end: int, kind: str = "") -> _Piece:
        head = self._code[start:brace]
        lead = len(head) - len(head.lstrip())
        line = self._code.count("\n", 0, start + lead) + 1
        body = self._code[brace : end + 1] if end > brace else ""
        head = f"{kind} {head.strip()}" if kind and head.strip() else head.strip()
        return _Piece(head, line, body, self._code.count("\n", 0, end) + 1)

    def _closing(self, at: int) -> int:
        depth = 0
        for match in re.finditer(r"[{}]", self._code[at:]):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return at + match.start()
        raise self._unmatched(at)

    def _unmatched(self, at: int) -> CSourceError:
        line = self._code.count("\n", 0, at) + 1
        return CSourceError(f"{self.path}:{line}: this brace has no other; check #if and #else")


def _before_body(source: CSource, f: CFunction) -> int:
    """How many lines a definition has before its brace."""
    return f.end - f.line - f.body.count("\n")


def _expand(body: str, given: dict[str, str]) -> str:
    """A macro's body with what it was given."""
    body = body.replace("\\\n", "\n")
    return re.sub(
        r"\s*##\s*", "", _WORD.sub(lambda word: given.get(word.group(), word.group()), body)
    )


def _function_name(head: str) -> str | None:
    """The name before the first parameters, if this is the head of a function."""
    head = _ATTRIBUTE.sub(" ", head)
    match = re.search(r"([A-Za-z_]\w*)\s*\(", head)
    if not match or not head.endswith(")") or "=" in head or match.group(1) in _SKIPPED_WORDS:
        return None
    return match.group(1)


def _outside(piece: _Piece) -> list[CStatic]:
    """The variable that a declaration outside functions makes, if it can change."""
    head = _ATTRIBUTE.sub(" ", piece.head)
    if re.match(r"(typedef|extern|struct\s+\w+$|union\s+\w+$|enum\b)", head) or not head:
        return []
    declared = re.sub(r"=[^,]*", "", head)
    if re.search(r"\(\s*\*", declared):  # a pointer to a function
        declared = re.sub(r"\(\s*\*\s*(\w+)[^()]*\)\s*\(.*\)", r"* \1", declared, flags=re.S)
    if "(" in declared:  # a prototype
        return []
    return _variable(declared, piece.line)


def _variable(declared: str, line: int) -> list[CStatic]:
    """The names of a declaration; none if what they stand for is constant."""
    first, *others = re.sub(r"\[[^\]]*\]", "", declared).split(",")
    kept = first.rsplit("*", 1)[-1]
    names = _WORD.findall(first)
    if re.search(r"\bconst\b", kept) or len(names) < 2:
        return []
    more = [name for other in others for name in _WORD.findall(other)[-1:]]
    return [CStatic(name, line) for name in (names[-1], *more)]
