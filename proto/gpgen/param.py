"""One parameter of an entry of the spec: a C declaration and, behind a colon, words.

See spec.py for what the words mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    "CUarray": "array",
    "CUmipmappedArray": "mipmap",
    "CUtexref": "texref",
    "CUsurfref": "surfref",
    "CUlinkState": "link",
    "CUdevResourceDesc": "resource_desc",
    "gp_communicator": "communicator",
}
HANDLE_KINDS = list(dict.fromkeys(HANDLES.values()))

#: What an object may be made from, by kinds: it goes with that. A graph goes with the
#: stream while it is captured, or with the node that has it, and takes over what another one
#: knows of its contexts.
PARENTS = {
    "module": ("library",),
    "function": ("module", "library", "function"),
    "graph": ("graph", "stream", "graph_node"),
    "graph_node": ("graph",),
    "graph_exec": ("graph",),
    "array": ("mipmap", "array"),
    "texref": ("module",),
    "surfref": ("module",),
}
#: Kinds whose objects go with the context that is current when they are made.
OF_CONTEXT = ("stream", "event", "module", "array", "mipmap", "texref", "link")

#: Words that say how far an address may be used.
REACHES = ("span", "device", "own", "aim")
#: Words for a client's name of memory that the worker has.
MEMORIES = ("captured", "arena")

#: Words for the driver's own number of an object of the current context.
OBJECTS = ("texture", "surface")

#: Their types.
NUMBERS = ("CUtexObject", "CUsurfObject", "unsigned long long")

#: What CUDA says of a handle that is not live, by kind; of the others INVALID_HANDLE.
NOT_LIVE = {"context": "CUDA_ERROR_INVALID_CONTEXT"} | dict.fromkeys(
    ("mempool", "allocation", "graph", "graph_exec", "graph_node"), "CUDA_ERROR_INVALID_VALUE"
)

#: Words that say how a parameter travels, and those of them that take a length.
WORDS = {
    "out",
    "inout",
    "in",
    "optional",
    "string",
    "address",
    "create",
    "destroy",
    "null",
    "span",
    "device",
    "own",
    "aim",
    "anew",
    "captured",
    "arena",
    *OBJECTS,
}
LENGTHS = {"in", "out", *REACHES, *MEMORIES}
#: Words that say what a value must be; True: they need an expression.
CHECKS = dict.fromkeys(("among", "flags", "below", "upto"), True)
CHECKS |= dict.fromkeys(("nonzero", "zero"), False)
#: Words that say what the stub answers; each needs an expression.
ANSWERS = {"gives", "room"}


class SpecError(Exception):
    """A line of the spec that cannot be right; its text starts with file:line."""


@dataclass(frozen=True)
class Check:
    """What a value must be: a word of CHECKS and its expression."""

    word: str
    expression: str


@dataclass(frozen=True)
class Param:
    """One parameter: its C declaration and how it travels."""

    ctype: str  # with qualifiers and stars, e.g. "const char *"
    name: str
    array: str  # "" or the declarator behind the name, e.g. "[4]"
    words: tuple[str, ...]
    count: str  # the expression of in[...] or out[...], "" otherwise
    line: int
    checks: tuple[Check, ...] = ()
    gives: str = ""  # what the stub fills in
    room: str = ""  # of a text that it fills in: the bytes there

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
    def is_filled(self) -> bool:
        """Whether what it points to can be written."""
        return self.is_pointer and not (
            self.ctype.startswith("const ") and self.ctype.count("*") == 1
        )

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


_DECL = re.compile(r"^(?P<type>.*?[\s*])(?P<name>\w+)(?P<array>(\[\w*\])?)$")
#: A word, and behind it an expression in which brackets match to a depth of one.
_WORD = re.compile(r"(?P<word>[a-z]+)(\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])+)\])?(?=\s|$)")


def parse_param(text: str, where: str, line: int) -> Param:
    """Read one parameter string; SpecError names `where` if it is malformed."""
    decl, _, notes = text.partition(" : ")
    match = _DECL.match(decl.strip())
    if not match:
        raise SpecError(f"{where}: cannot read the declaration '{decl}'")
    read = _Words(where)
    for word, expression in _split(notes, where):
        read.add(word, expression)
    ctype = re.sub(r"\s+", " ", match["type"]).strip()
    param = Param(
        ctype,
        match["name"],
        match["array"],
        tuple(read.words),
        read.count,
        line,
        tuple(read.checks),
        **read.answers,
    )
    _check_words(param, where)
    return param


def _split(notes: str, where: str) -> list[tuple[str, str]]:
    """The words of `notes`, each with its expression or ""."""
    known = WORDS | set(CHECKS) | ANSWERS
    found = []
    rest = notes.strip()
    while rest:
        m = _WORD.match(rest)
        if not m or m["word"] not in known:
            note = rest.split()[0]
            raise SpecError(f"{where}: unknown word '{note}'; known: {', '.join(sorted(known))}")
        found.append((m["word"], m["text"] or ""))
        rest = rest[m.end() :].lstrip()
    return found


class _Words:
    """What the words behind a declaration say."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.words: list[str] = []
        self.checks: list[Check] = []
        self.answers: dict[str, str] = {}
        self.count = ""

    def add(self, word: str, expression: str) -> None:
        if word in CHECKS or word in ANSWERS:
            wanted = CHECKS.get(word, True)
            if bool(expression) != wanted:
                needs = "needs an expression" if wanted else "takes no expression"
                raise SpecError(f"{self.where}: '{word}' {needs}")
        elif expression and word not in LENGTHS:
            raise SpecError(f"{self.where}: '{word}' takes no length")
        if word in CHECKS:
            self.checks.append(Check(word, expression))
        elif word in ANSWERS:
            self.answers[word] = expression
        else:
            self.words.append(word)
            self.count = expression or self.count


def _check_words(param: Param, where: str) -> None:
    words, ctype = param.words, param.ctype
    reach = next((word for word in REACHES if word in words), "")
    if reach and (not (ctype == "CUdeviceptr" or "address" in words) or not param.count):
        raise SpecError(f"{where}: '{reach}' is for device addresses, and needs a length")
    memory = next((word for word in MEMORIES if word in words), "")
    if memory and (ctype != "uint64_t" or words != (memory,) or not param.count):
        raise SpecError(f"{where}: '{memory}' is for a uint64_t alone, and needs a length")
    if "anew" in words and param.handle != "event":
        raise SpecError(f"{where}: 'anew' is for events, '{ctype}' is none")
    number = next((word for word in OBJECTS if word in words), "")
    if number and (ctype not in NUMBERS or words != (number,)):
        raise SpecError(f"{where}: '{number}' is for the number of an object alone")
    plain = reach or memory or number or words in (("null",), ("destroy",), ("anew",))
    if words and not param.is_pointer and not plain:
        raise SpecError(f"{where}: '{' '.join(words)}' is for pointers, '{ctype}' is none")
    if param.checks and (param.is_pointer or param.array):
        raise SpecError(f"{where}: '{param.checks[0].word}' is for values, '{ctype}' is none")
    if (param.gives or param.room) and not param.is_filled:
        raise SpecError(f"{where}: 'gives' is for pointers to what is filled")
    if param.room and not param.gives:
        raise SpecError(f"{where}: 'room' goes with 'gives'")
    if param.has("create") and param.handle is None:
        raise SpecError(f"{where}: '{param.pointee}' is no kind of handle")
    if (param.has("in") or param.has("out")) and not param.count and param.pointee == "void":
        raise SpecError(f"{where}: a void pointer needs a length: in[N] or out[N]")
