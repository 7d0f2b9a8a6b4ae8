"""As much of Go's templates as our chart uses, to render it where no Helm is.

What it does not know is an error, so a chart that asks for more fails its tests instead of being
rendered otherwise than Helm renders it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_ACTION = re.compile(
    r"(?P<before>\s*)\{\{-\s(?P<one>.*?)(?:\s-\}\}(?P<after>\s*)|\}\})"
    r"|\{\{(?P<two>(?!-\s).*?)(?:\s-\}\}(?P<behind>\s*)|\}\})",
    re.S,
)
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<number>-?\d+)|(?P<mark>:=|[=|(),])'
    r"|(?P<name>\$?[\w]*(?:\.\w+)+|\$\w*|\.|\w+))"
)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


class TemplateError(Exception):
    """A template asks for what we do not know, or is wrong."""


@dataclass
class Text:
    text: str


@dataclass
class Action:
    """An output, an assignment, or a block with its branches."""

    word: str
    tokens: list[str]
    body: list[Text | Action] = field(default_factory=list)
    otherwise: list[Text | Action] = field(default_factory=list)


Nodes = list[Text | Action]
_BLOCKS = ("if", "range", "with", "define")


def _lex(text: str) -> Iterator[Text | str]:
    place = 0
    for found in _ACTION.finditer(text):
        yield Text(text[place : found.start()])
        if found["one"] is None:
            yield found["two"].strip()
        else:
            yield found["one"].strip()
        place = found.end()
    yield Text(text[place:])


def _tokens(text: str) -> list[str]:
    found, place = [], 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise TemplateError(f"not understood: {text[place:]!r}")
        found.append(match[0].strip())
        place = match.end()
    return found


def parse(text: str) -> Nodes:
    """The nodes of a template."""
    top: Nodes = []
    at = top
    stack: list[tuple[Nodes, int]] = []  # what is around each block, and how many ends it takes
    for piece in _lex(text):
        if isinstance(piece, Text):
            at.append(piece)
        elif not piece.startswith("/*"):
            word, *rest = _tokens(piece)
            if word in _BLOCKS:
                node = Action(word, rest)
                at.append(node)
                stack.append((at, 1))
                at = node.body
            elif word == "else":
                around, ends = stack.pop()
                branch = around[-1]
                assert isinstance(branch, Action)
                at = branch.otherwise
                stack.append((around, ends))
                if rest:  # else if: a block of its own, which the same end closes
                    inner = Action(rest[0], rest[1:])
                    at.append(inner)
                    stack.append((at, ends + 1))
                    at = inner.body
            elif word == "end":
                around, ends = stack.pop()
                for _ in range(ends - 1):
                    around, _ = stack.pop()
                at = around
            else:
                at.append(Action("", [word, *rest]))
    if stack:
        raise TemplateError("a block has no end")
    return top


class Scope:
    """Variables; a block's own go with it, assignments reach those around."""

    def __init__(self, around: Scope | None = None) -> None:
        self._around = around
        self._own: dict[str, Any] = {}

    def put(self, name: str, value: Any, new: bool) -> None:
        scope: Scope | None = self
        while not new and scope is not None and name not in scope._own:
            scope = scope._around
        if scope is None:
            raise TemplateError(f"{name} is not declared")
        scope._own[name] = value

    def get(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope._own:
                return scope._own[name]
            scope = scope._around
        raise TemplateError(f"{name} is not declared")


def show(value: Any) -> str:
    """As Go prints it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise TemplateError(f"printed as Go's, not as YAML: {value!r}")


class Renderer:
    """Templates that know each other's names."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions: dict[str, Callable[..., Any]] = {
            **functions,
            "include": lambda name, dot: self.run(self._named[name], dot),
        }
        self._named: dict[str, Nodes] = {}

    def learn(self, text: str) -> Nodes:
        """A file's nodes, its definitions taken in."""
        nodes = parse(text)
        for node in nodes:
            if isinstance(node, Action) and node.word == "define":
                self._named[_unquote(node.tokens[0])] = node.body
        return [node for node in nodes if isinstance(node, Text) or node.word != "define"]

    def run(self, nodes: Nodes, dot: Any) -> str:
        scope = Scope()
        scope.put("$", dot, new=True)
        return "".join(self._run(nodes, dot, scope))

    def _run(self, nodes: Nodes, dot: Any, scope: Scope) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, Text):
                yield node.text
            elif node.word == "":
                value, assigned = self._assign(node.tokens, dot, scope)
                yield "" if assigned else show(value)
            elif node.word == "range":
                yield from self._range(node, dot, scope)
            else:
                value, _ = self._assign(node.tokens, dot, scope)
                inner = value if node.word == "with" and value else dot
                yield from self._run(node.body if value else node.otherwise, inner, Scope(scope))

    def _range(self, node: Action, dot: Any, scope: Scope) -> Iterator[str]:
        tokens, names = node.tokens, []
        if ":=" in tokens:
            at = tokens.index(":=")
            names, tokens = [name for name in tokens[:at] if name != ","], tokens[at + 1 :]
        found = self._pipeline(tokens, dot, scope)
        pairs = sorted(found.items()) if isinstance(found, dict) else list(enumerate(found or []))
        for pair in pairs:
            inner = Scope(scope)
            for name, value in zip(names, pair[2 - len(names) :], strict=True):
                inner.put(name, value, new=True)
            yield from self._run(node.body, pair[1], inner)
        if not pairs:
            yield from self._run(node.otherwise, dot, Scope(scope))

    # Expressions -----------------------------------------------------------------------------

    def _assign(self, tokens: list[str], dot: Any, scope: Scope) -> tuple[Any, bool]:
        if len(tokens) > 1 and tokens[1] in (":=", "="):
            value = self._pipeline(tokens[2:], dot, scope)
            scope.put(tokens[0], value, new=tokens[1] == ":=")
            return value, True
        return self._pipeline(tokens, dot, scope), False

    def _pipeline(self, tokens: list[str], dot: Any, scope: Scope) -> Any:
        given: tuple[Any, ...] = ()
        for command in _split(tokens, "|"):
            words = list(_operands(command))
            if isinstance(words[0], str) and words[0] in self._functions:
                values = [self._operand(word, dot, scope) for word in words[1:]]
                given = (self._functions[words[0]](*values, *given),)
            elif len(words) > 1 or given:
                method = self._operand(words[0], dot, scope)
                if not callable(method):
                    raise TemplateError(f"no such function: {' '.join(command)}")
                given = (method(*(self._operand(word, dot, scope) for word in words[1:]), *given),)
            else:
                given = (self._operand(words[0], dot, scope),)
        return given[0]

    def _operand(self, word: str | list[str], dot: Any, scope: Scope) -> Any:
        if isinstance(word, list):
            return self._pipeline(word, dot, scope)
        if word[0] in '"`':
            return _unquote(word)
        if re.fullmatch(r"-?\d+", word):
            return int(word)
        if word in ("true", "false"):
            return word == "true"
        base, *parts = word.split(".")
        if base and not base.startswith("$"):
            if word in self._functions:
                return self._functions[word]()
            raise TemplateError(f"no such name: {word}")
        value = scope.get(base) if base else dot
        for part in filter(None, parts):
            if value is None:
                raise TemplateError(f"nil pointer evaluating {word}")
            value = value.get(part)
        return value


def _unquote(word: str) -> str:
    if word[0] == "`":
        return word[1:-1]
    return re.sub(r"\\(.)", lambda found: _ESCAPES[found[1]], word[1:-1])


def _split(tokens: list[str], mark: str) -> Iterator[list[str]]:
    part: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == mark and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _operands(tokens: list[str]) -> Iterator[str | list[str]]:
    """Words, and what is in parentheses as a list."""
    inner: list[str] = []
    depth = 0
    for token in tokens:
        if token == ")":
            depth -= 1
            if depth == 0:
                yield inner
                inner = []
                continue
        if depth:
            inner.append(token)
        elif token != "(":
            yield token
        depth += token == "("
