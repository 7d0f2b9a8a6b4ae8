"""NVML's description: what proto/spec_nvml/*.toml says, checked and in memory.

One TOML table per function of nvml.h. Nothing of it travels by itself: the library asks
the server for *facts* about its devices (facts.toml) and answers from those.

========== =====================================================================
mode       meaning
========== =====================================================================
snapshot   from facts that were fetched by nvmlInit
fresh      from facts that are fetched again when they are older than 100 ms
fixed      the same on every device
like       another name of the function `like`
refuse     NVML_ERROR_NOT_SUPPORTED, with the reason
========== =====================================================================

`answer` lists "OUTPUT = FACT" (or "OUTPUT = C expression" in mode fixed), where
OUTPUT is a parameter or, as "utilization.gpu", a member of what it points to. Without
it the function is hand-written: client = "custom". `doc` says in one sentence what a function
answers here; what is not refused has one (emit_nvml_reference.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .error_codes import ErrorCode, load_errors
from .header import normal
from .param import Param, SpecError, parse_param
from .toml_lines import Lines, load_toml

MODES = ("snapshot", "fresh", "fixed", "like", "refuse")
KINDS = ("text", "snapshot", "fresh")
KEYS = {"doc", "mode", "like", "client", "reason", "returns", "header", "params", "answer"}
FACT_FILE = "facts.toml"
ERROR_FILE = "errors.toml"

_PROTOTYPE = re.compile(r"\b(nvmlReturn_t|const char\s*\*)\s*(nvml[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
_ERROR = re.compile(r"\b(NVML_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)")
_ANSWER = re.compile(r"(?P<param>\w+)(\.(?P<member>\w+))? = (?P<value>.+)$")


@dataclass(frozen=True)
class Fact:
    """One thing that the server says of a device: a number, or a text of less than `size`."""

    word: str
    kind: str
    size: int
    line: int

    @property
    def name(self) -> str:
        prefix = "GP_NVML_TEXT_" if self.kind == "text" else "GP_NVML_"
        return prefix + self.word.upper().replace("-", "_")


@dataclass(frozen=True)
class Answer:
    """One output and where its value comes from."""

    param: Param
    member: str
    value: str

    @property
    def target(self) -> str:
        return f"{self.param.name}->{self.member}" if self.member else f"*{self.param.name}"


@dataclass
class Function:
    """One entry point of NVML."""

    name: str
    file: Path
    lines: dict[str, int]
    doc: str = ""  # what it answers here, in one sentence
    mode: str = ""
    like: str = ""
    client: str = ""
    reason: str = ""
    returns: str = "nvmlReturn_t"
    header: str = "nvml.h"
    params: list[Param] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def prototype(self) -> str:
        return ", ".join(p.decl for p in self.params) or "void"

    @property
    def arguments(self) -> str:
        return ", ".join(p.name for p in self.params)

    @property
    def of_device(self) -> bool:
        return bool(self.params) and self.params[0].decl == "nvmlDevice_t device"

    def fail(self, key: str, text: str) -> SpecError:
        line = self.lines.get(key, self.lines["mode"])
        return SpecError(f"{self.file}:{line}: {self.name}: {text}")


@dataclass
class NvmlSpec:
    """All of proto/spec_nvml."""

    functions: list[Function]
    facts: dict[str, Fact]
    errors: list[ErrorCode]


def load(folder: Path) -> NvmlSpec:
    """Read every file of `folder`. Raises SpecError at the first wrong line."""
    facts = _load_facts(folder / FACT_FILE)
    functions: dict[str, Function] = {}
    for path in sorted(folder.glob("*.toml")):
        if path.name in (FACT_FILE, ERROR_FILE):
            continue
        tables, lines = load_toml(path)
        for name, table in tables.items():
            function = _function(path, name, table, lines, facts)
            if name in functions:
                raise function.fail("mode", f"already described at {functions[name].file}")
            functions[name] = function
    for f in functions.values():
        if f.mode == "like":
            _check_like(f, functions)
    return NvmlSpec(list(functions.values()), facts, load_errors(folder / ERROR_FILE))


def _load_facts(path: Path) -> dict[str, Fact]:
    tables, lines = load_toml(path)
    facts: dict[str, Fact] = {}
    for word, table in tables.items():
        line = lines.tables.get(word, 1)
        where = f"{path}:{line}: {word}"
        kind, size = table.get("kind"), table.get("size", 0)
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,31}", word):
            raise SpecError(f"{where}: a word is lower case and at most 32 long")
        if kind not in KINDS:
            raise SpecError(f"{where}: 'kind' must be one of {', '.join(KINDS)}")
        if set(table) - {"kind", "size", "about"} or (kind == "text") != (size > 0):
            raise SpecError(f"{where}: a text has 'size', nothing else has; all may have 'about'")
        facts[word] = Fact(word, kind, size, line)
    return facts


def _function(
    path: Path, name: str, table: dict[str, Any], lines: Lines, facts: dict[str, Fact]
) -> Function:
    here = lines.tables.get(name, 1)
    at = {key: lines.keys.get((name, key), here) for key in KEYS}
    f = Function(name, path, at)
    for key, value in table.items():
        if key not in KEYS:
            raise SpecError(
                f"{path}:{lines.keys.get((name, key), here)}: {name}: unknown key '{key}'"
            )
        if key not in ("params", "answer"):
            if not isinstance(value, str):
                raise f.fail(key, f"'{key}' must be a string")
            setattr(f, key, value)
    if f.mode not in MODES:
        raise f.fail("mode", f"the mode is '{f.mode}'; it must be one of {', '.join(MODES)}")
    for index, text in enumerate(table.get("params", [])):
        line = lines.params.get((name, index), at["params"])
        f.params.append(parse_param(text, f"{path}:{line}: {name}", line))
    f.answers = [_answer(f, text, facts) for text in table.get("answer", [])]
    _check_mode(f)
    return f


def _answer(f: Function, text: str, facts: dict[str, Fact]) -> Answer:
    match = _ANSWER.match(text)
    if not match:
        raise f.fail("answer", f"'{text}' is not 'OUTPUT = VALUE'")
    param = next((p for p in f.params if p.name == match["param"]), None)
    if param is None or not param.is_pointer:
        raise f.fail("answer", f"'{match['param']}' is no pointer among the parameters")
    value = match["value"]
    if f.mode == "fixed":
        return Answer(param, match["member"] or "", value)
    fact = facts.get(value)
    if fact is None:
        raise f.fail("answer", f"facts.toml has no '{value}'")
    if fact.kind == "fresh" and f.mode != "fresh":
        raise f.fail("mode", f"'{value}' is fresh, so the function is")
    if fact.kind == "text" and not _takes_text(f, param):
        raise f.fail("answer", f"'{value}' is a text: '{param.name}' must be char * and a length")
    return Answer(param, match["member"] or "", value)


def _takes_text(f: Function, param: Param) -> bool:
    behind = f.params[f.params.index(param) + 1 :]
    return param.pointee == "char" and bool(behind) and behind[0].decl == "unsigned int length"


def _check_mode(f: Function) -> None:
    if (f.mode == "refuse") != bool(f.reason):
        raise f.fail("mode", "a refused function needs a reason, and no other has one")
    if (f.mode == "like") != bool(f.like):
        raise f.fail("mode", "'like' names the function that mode like stands for")
    written = f.client == "custom"
    if f.client and not written:
        raise f.fail("client", "client is 'custom' or absent")
    if f.mode in ("snapshot", "fresh", "fixed") and written == bool(f.answers):
        raise f.fail("mode", 'needs either an answer or client = "custom"')
    if f.answers and f.mode != "fixed" and not f.of_device:
        raise f.fail("answer", "facts are those of a device: the first parameter must be one")
    if f.mode in ("like", "refuse") and (written or f.answers):
        raise f.fail("mode", f"mode {f.mode} has neither an answer nor a client")


def _check_like(f: Function, functions: dict[str, Function]) -> None:
    other = functions.get(f.like)
    if other is None or other.mode == "like":
        raise f.fail("like", f"'{f.like}' is no function that is described")
    if [p.ctype for p in f.params] != [p.ctype for p in other.params]:
        raise f.fail("like", f"'{f.like}' has other parameters")


def check_header(spec: NvmlSpec, flat: str) -> None:
    """Raise SpecError at the first function or error code that nvml.h has differently."""
    found = {name: normal(params) for _, name, params in _PROTOTYPE.findall(flat)}
    known = {f.name: f for f in spec.functions}
    for name, params in found.items():
        f = known.get(name)
        if f is None:
            raise SpecError(f"nvml.h: {name}({params}): the spec does not name this function")
        ours = normal(",".join(p.decl for p in f.params))
        if ours != params:
            raise f.fail("params", f"nvml.h declares ({params}), the spec says ({ours})")
    for f in spec.functions:
        if f.header == "nvml.h" and f.name not in found:
            raise f.fail("mode", "nvml.h has no such function")
    codes = {name: int(value) for name, value in _ERROR.findall(flat)}
    ours_codes = {e.name: e.value for e in spec.errors}
    for name in sorted(codes.keys() | ours_codes.keys()):
        if codes.get(name) != ours_codes.get(name):
            raise SpecError(
                f"errors.toml:1: {name} is {codes.get(name)} in nvml.h, {ours_codes.get(name)} here"
            )
