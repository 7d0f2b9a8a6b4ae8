"""The API description: what proto/spec/*.toml says, checked and in memory.

`doc` says in one sentence what a function does here, `differs` in one what is not as with
a local driver. Both are the reference's (emit_reference.py); an implemented function has
a `doc`, a refused one its `reason`.

One TOML table per entry point. A parameter is one string, a C declaration and,
behind a colon, what the declaration cannot say:

    "const unsigned long long *globalDim : in[tensorRank]"

========== =====================================================================
word       meaning
========== =====================================================================
out        pointer to one value that the call fills
inout      pointer to one value, read and filled
in         pointer to one value that the call reads
in[N]      N elements to read (bytes if the element is void); N is a C expression
           over the other parameters
out[N]     room for N elements; the callee may give fewer
optional   the pointer may be null
string     NUL-terminated text to read
address    a pointer that is a number on the device, sent by value
create     handle that the client names before it sends the call
destroy    handle that is gone after the call
null       the handle may be null
span[N]    N bytes from this device address on must be memory of the session's: the
           worker checks that before the driver sees it; N may use proto/wire/span.h
========== =====================================================================
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODES = {
    "local": "answered by the client",
    "cached": "asked once per key, then answered by the client",
    "async": "sent, not waited for",
    "async-create": "sent, not waited for; the client names the new handle",
    "sync": "sent and waited for",
    "bulk": "carries user memory",
    "notify": "worker to client",
    "refuse": "answers CUDA_ERROR_NOT_SUPPORTED",
}
WIRE_MODES = {"cached", "async", "async-create", "sync", "notify"}
NEEDS = {"none", "init", "context"}

# C type of a handle -> name of its kind. CUkernel and CUfunction are one kind
# because the driver takes either where a kernel is launched.
HANDLES = {
    "CUcontext": "context",
    "CUmodule": "module",
    "CUlibrary": "library",
    "CUfunction": "function",
    "CUkernel": "function",
    "CUstream": "stream",
    "CUevent": "event",
    "CUgraph": "graph",
    "CUgraphExec": "graph_exec",
    "CUgraphNode": "graph_node",
    "CUmemoryPool": "mempool",
    "CUmemGenericAllocationHandle": "allocation",
}
HANDLE_KINDS = list(dict.fromkeys(HANDLES.values()))

#: What an object may be made from, by kinds: it goes with that. A graph goes with the
#: stream while it is captured, and takes over what another one knows of its contexts.
PARENTS = {
    "module": ("library",),
    "function": ("module", "library", "function"),
    "graph": ("graph", "stream"),
    "graph_exec": ("graph",),
}
#: Kinds whose objects go with the context that is current when they are made.
OF_CONTEXT = ("stream", "event", "module")

#: Structures with a device's number in them, and where.
LOCATIONS = {
    "CUmemLocation": "",
    "CUmemAllocationProp": ".location",
    "CUmemPoolProps": ".location",
}

#: Kinds of work for the GPU, as tenants are charged and counted for it.
#: Uploads and downloads are copies from and to the host, which have engines of their own.
WORK = ("kernel", "graph", "copy", "memset", "upload", "download")

MESSAGE_FILE = "messages.toml"
ERROR_FILE = "errors.toml"
KEYS = {
    "id", "api", "since", "ptsz", "ptds", "also", "mode", "needs", "client", "worker",
    "invalidates", "reason", "header", "params", "work", "grows", "first_waits",
    "staged", "prompt", "slow", "doc", "differs",
}  # fmt: skip


class SpecError(Exception):
    """A line of the spec that cannot be right; its text starts with file:line."""


@dataclass(frozen=True)
class Param:
    """One parameter: its C declaration and how it travels."""

    ctype: str  # with qualifiers and stars, e.g. "const char *"
    name: str
    array: str  # "" or the declarator behind the name, e.g. "[4]"
    words: tuple[str, ...]
    count: str  # the expression of in[...] or out[...], "" otherwise
    line: int

    def has(self, word: str) -> bool:
        return word in self.words

    @property
    def decl(self) -> str:
        star = "" if self.ctype.endswith("*") else " "
        return f"{self.ctype}{star}{self.name}{self.array}"

    @property
    def pointee(self) -> str:
        """The type behind one star, without const."""
        return re.sub(r"^const\s+", "", self.ctype.rstrip()[:-1].rstrip()).strip()

    @property
    def is_pointer(self) -> bool:
        return self.ctype.endswith("*")

    @property
    def handle(self) -> str | None:
        """The kind of handle this parameter passes or creates."""
        kind = self.pointee if self.has("create") else re.sub(r"^const\s+", "", self.ctype)
        if self.words and not self.has("create") and self.is_pointer:
            return None
        return HANDLES.get(kind.strip())

    @property
    def is_out(self) -> bool:
        return self.has("out") or self.has("inout")

    @property
    def is_in_pointer(self) -> bool:
        return self.has("in") or self.has("inout")

    @property
    def element(self) -> str:
        """sizeof-able element type of an array parameter."""
        return "uint8_t" if self.pointee == "void" else self.pointee


@dataclass
class Function:
    """One entry point of CUDA, or one message of our own."""

    name: str
    file: Path
    line: int
    id: int
    mode: str
    api: str
    since: int = 0
    ptsz: int = 0
    ptds: int = 0
    also: dict[str, int] = field(default_factory=dict)
    needs: str = "context"
    client: str = ""  # "custom": the exported function is hand-written
    worker: str = ""  # "custom", "deferred": the handler is hand-written
    work: str = ""  # what it puts on the GPU, one of WORK: it goes through the gate
    grows: bool = False  # the driver may take, or give back, memory that nobody asked for
    #: An async call that may be refused: waited for the first time with these arguments.
    first_waits: bool = False
    staged: bool = False  # the worker needs a piece of its staging memory for it
    prompt: bool = False  # waited for, but the driver answers whatever the GPU does
    slow: bool = False  # keeps the worker in the driver for long, loading or compiling
    invalidates: list[str] = field(default_factory=list)
    reason: str = ""
    doc: str = ""  # what it does here, in one sentence
    differs: str = ""  # what is not as with a local driver
    header: str = "cuda.h"
    params: list[Param] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def is_message(self) -> bool:
        return self.file.name == MESSAGE_FILE

    @property
    def has_wire(self) -> bool:
        return self.mode in WIRE_MODES

    @property
    def waits(self) -> bool:
        return self.mode in ("sync", "cached")

    @property
    def variants(self) -> list[str]:
        """The per-thread-stream names exported beside this one."""
        return [f"{self.name}_{s}" for s in ("ptds", "ptsz") if getattr(self, s)]

    def parent(self, child: Param) -> Param | None:
        """The handle that a created one goes with."""
        kinds = PARENTS.get(child.handle or "", ())
        return next((p for p in self.params if p.handle in kinds and p is not child), None)

    def of_context(self, child: Param) -> bool:
        """Whether a created handle goes with the current context."""
        parent = self.parent(child)
        # a kernel has a function in each context
        made = child.pointee == "CUfunction" and parent is not None and parent.ctype == "CUkernel"
        return child.handle in OF_CONTEXT or made

    @property
    def creates(self) -> list[Param]:
        return [p for p in self.params if p.has("create")]

    @property
    def place(self) -> Param | None:
        """The handle that names the context, and with it the device, of the call: an explicit
        stream, else an event. The current context counts only where there is none."""
        if self.needs != "context" or any(p.handle == "context" for p in self.params):
            return None
        named = [p for p in self.params if not p.has("create")]
        for kind in ("stream", "event"):
            if found := next((p for p in named if p.handle == kind), None):
                return found
        return None

    @property
    def prototype(self) -> str:
        return ", ".join(p.decl for p in self.params) or "void"

    @property
    def arguments(self) -> str:
        return ", ".join(p.name for p in self.params)

    def fail(self, key: str, text: str) -> SpecError:
        return SpecError(f"{self.file}:{self.lines.get(key, self.line)}: {self.name}: {text}")


@dataclass(frozen=True)
class ErrorCode:
    """One CUresult."""

    name: str
    value: int
    text: str


@dataclass
class Spec:
    """All of proto/spec."""

    functions: list[Function]
    errors: list[ErrorCode]

    @property
    def cuda(self) -> list[Function]:
        return [f for f in self.functions if not f.is_message]

    @property
    def wire(self) -> list[Function]:
        return [f for f in self.functions if f.has_wire]


_DECL = re.compile(r"^(?P<type>.*?[\s*])(?P<name>\w+)(?P<array>(\[\w*\])?)$")
_WORD = re.compile(r"(?P<word>[a-z]+)(\[(?P<count>[^\]]+)\])?$")
_WORDS = {
    "out", "inout", "in", "optional", "string", "address", "create", "destroy", "null", "span",
}  # fmt: skip


def parse_param(text: str, where: str, line: int) -> Param:
    """Read one parameter string; SpecError names `where` if it is malformed."""
    decl, _, notes = text.partition(" : ")
    match = _DECL.match(decl.strip())
    if not match:
        raise SpecError(f"{where}: cannot read the declaration '{decl}'")
    words: list[str] = []
    count = ""
    for note in notes.split():
        m = _WORD.match(note)
        if not m or m["word"] not in _WORDS:
            raise SpecError(f"{where}: unknown word '{note}'; known: {', '.join(sorted(_WORDS))}")
        if m["count"] and m["word"] not in ("in", "out", "span"):
            raise SpecError(f"{where}: '{m['word']}' takes no length")
        words.append(m["word"])
        count = m["count"] or count
    ctype = re.sub(r"\s+", " ", match["type"]).strip()
    param = Param(ctype, match["name"], match["array"], tuple(words), count, line)
    if words == ["span"] and (ctype != "CUdeviceptr" or not count):
        raise SpecError(f"{where}: 'span' is for device addresses, and needs a length")
    if words and not param.is_pointer and words not in (["null"], ["destroy"], ["span"]):
        raise SpecError(f"{where}: '{' '.join(words)}' is for pointers, '{ctype}' is none")
    if param.has("create") and param.handle is None:
        raise SpecError(f"{where}: '{param.pointee}' is no kind of handle")
    if (param.has("in") or param.has("out")) and not count and param.pointee == "void":
        raise SpecError(f"{where}: a void pointer needs a length: in[N] or out[N]")
    return param


class _Lines:
    """Where each table and key of a TOML file stands (tomllib does not say)."""

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
                if m[1] == "params" and not line.endswith("]"):
                    inside, index = True, 0


def _load_toml(path: Path) -> tuple[dict[str, Any], _Lines]:
    text = path.read_text(encoding="utf-8")
    try:
        return tomllib.loads(text), _Lines(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        raise SpecError(f"{path}:{found[1] if found else 1}: {error}") from None


def _function(path: Path, name: str, table: dict[str, Any], lines: _Lines) -> Function:
    at = {key: lines.keys.get((name, key), lines.tables.get(name, 1)) for key in KEYS}
    here = lines.tables.get(name, 1)
    function = Function(name=name, file=path, line=here, id=0, mode="", api=name, lines=at)
    for key in table:
        if key not in KEYS:
            raise SpecError(
                f"{path}:{lines.keys.get((name, key), here)}: {name}: unknown key '{key}'"
            )
    for key in ("id", "mode"):
        if key not in table:
            raise function.fail(key, f"'{key}' is missing")
    for key, value in table.items():
        if key != "params":
            want = type(getattr(function, key))
            if type(value) is not want:
                raise function.fail(key, f"'{key}' must be {want.__name__}")
            setattr(function, key, value)
    if not 0 < function.id < 65536:
        raise function.fail("id", f"id {function.id} is not in 1..65535")
    if function.mode not in MODES:
        raise function.fail("mode", f"unknown mode '{function.mode}'; known: {', '.join(MODES)}")
    if function.needs not in NEEDS:
        raise function.fail("needs", f"unknown need '{function.needs}'")
    if function.client not in ("", "custom") or function.worker not in ("", "custom", "deferred"):
        raise function.fail("mode", "client is 'custom' or absent; worker also 'deferred'")
    if function.work and function.work not in WORK:
        raise function.fail("work", f"unknown work '{function.work}'; known: {', '.join(WORK)}")
    if function.work and not function.has_wire:
        raise function.fail("work", f"a {function.mode} function puts no work on the GPU by itself")
    if function.grows and not function.has_wire:
        raise function.fail("grows", f"a {function.mode} function takes no memory by itself")
    if function.first_waits and function.mode != "async":
        raise function.fail("first_waits", f"a {function.mode} function has no calls to wait for")
    if function.mode == "refuse" and not function.reason:
        raise function.fail("mode", "a refused function needs a reason")
    for index, text in enumerate(table.get("params", [])):
        line = lines.params.get((name, index), at["params"])
        function.params.append(parse_param(text, f"{path}:{line}: {name}", line))
    if function.has_wire:
        _check_wire(function)
    return function


def _check_wire(function: Function) -> None:
    """Every pointer of a function that travels must say what it points to."""
    names = [p.name for p in function.params]
    for p in function.params:
        if p.is_pointer and not p.words and p.handle is None:
            raise SpecError(
                f"{function.file}:{p.line}: {function.name}: say what '{p.name}' points to"
            )
        for word in re.findall(r"[A-Za-z_]\w*", p.count):
            if word not in names and not re.match(r"sizeof$|GP_|CU|gp_span_", word):
                raise SpecError(
                    f"{function.file}:{p.line}: {function.name}: no parameter '{word}'"
                    f" for the length of '{p.name}'"
                )
        if p.ctype == "CUdeviceptr" and not p.count and not function.worker:
            raise SpecError(
                f"{function.file}:{p.line}: {function.name}: say how much of '{p.name}' is used:"
                " span[N]; or the worker's handler is custom and checks it"
            )
    outs = [p for p in function.params if p.is_out]
    if outs and function.mode in ("async", "async-create", "notify"):
        raise function.fail("mode", f"'{outs[0].name}' cannot be filled by a {function.mode} call")
    if function.mode == "async-create" and len(function.creates) != 1:
        raise function.fail("mode", "async-create needs exactly one parameter marked create")


def load(folder: Path) -> Spec:
    """Read every file of `folder`. Raises SpecError at the first wrong line."""
    functions: list[Function] = []
    for path in sorted(folder.glob("*.toml")):
        if path.name == ERROR_FILE:
            continue
        tables, lines = _load_toml(path)
        functions += [_function(path, name, table, lines) for name, table in tables.items()]
    by_id: dict[int, Function] = {}
    by_name: dict[str, Function] = {}
    for f in functions:
        if f.id in by_id:
            raise f.fail("id", f"id {f.id} is already that of {by_id[f.id].name}")
        if f.name in by_name:
            raise f.fail("mode", f"already described at {by_name[f.name].file}")
        by_id[f.id] = by_name[f.name] = f
    for f in functions:
        for name in f.invalidates:
            if name not in by_name or by_name[name].mode != "cached":
                raise f.fail("invalidates", f"'{name}' is no cached function")
    return Spec(sorted(functions, key=lambda f: f.id), _load_errors(folder / ERROR_FILE))


def _load_errors(path: Path) -> list[ErrorCode]:
    if not path.is_file():
        return []
    tables, lines = _load_toml(path)
    errors = []
    for name, table in tables.items():
        if set(table) != {"value", "text"}:
            raise SpecError(
                f"{path}:{lines.tables[name]}: {name}: needs exactly 'value' and 'text'"
            )
        errors.append(ErrorCode(name, table["value"], table["text"]))
    return sorted(errors, key=lambda e: e.value)
