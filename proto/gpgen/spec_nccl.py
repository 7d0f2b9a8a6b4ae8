"""NCCL's description: what proto/spec_nccl/*.toml says, checked and in memory.

One TOML table per function of nccl.h; its p-twin (pncclX) goes without saying. What travels are
the messages of proto/spec/messages/communicator.toml.

========== =====================================================================
mode       meaning
========== =====================================================================
collective part of a group: it travels with the others of its group in one message, and is
           waited for only where NCCL may wait for other ranks
sync       sent and waited for; hand-written
local      answered by the client; hand-written
refuse     ncclInvalidUsage, with the reason
========== =====================================================================

A collective is generated for both sides. `sends` and `receives` say how many elements this rank's
buffers hold: C expressions over the count, `ranks`, `rank` and `root`, with times(a, b) for a
product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .header import normal
from .param import Param, SpecError, parse_param
from .toml_lines import Lines, load_toml

MODES = ("collective", "sync", "local", "refuse")
KEYS = {"doc", "mode", "client", "reason", "returns", "params", "sends", "receives"}
RESULT = "ncclResult_t"
#: The roles of a collective's parameters: by type, and of buffers by the direction.
COUNT, TYPE, OPERATION, COMM, STREAM = (
    "size_t",
    "ncclDataType_t",
    "ncclRedOp_t",
    "ncclComm_t",
    "cudaStream_t",
)

_PROTOTYPE = re.compile(
    r"\b(ncclResult_t|ncclTeam_t|const char\s*\*|int|void)\s*(nccl[A-Z]\w*)\s*\(([^;{}]*)\)\s*;"
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass
class Function:
    """One entry point of NCCL."""

    name: str
    file: Path
    lines: dict[str, int]
    doc: str = ""
    mode: str = ""
    client: str = ""
    reason: str = ""
    returns: str = RESULT
    sends: str = ""
    receives: str = ""
    params: list[Param] = field(default_factory=list)

    @property
    def prototype(self) -> str:
        return ", ".join(p.decl for p in self.params) or "void"

    @property
    def arguments(self) -> str:
        return ", ".join(p.name for p in self.params)

    @property
    def generated(self) -> bool:
        return self.mode == "collective" and not self.client

    def of_type(self, ctype: str) -> Param | None:
        return next((p for p in self.params if p.ctype == ctype), None)

    @property
    def count(self) -> Param | None:
        return self.of_type(COUNT)

    @property
    def peer(self) -> Param | None:
        """The root, or the other rank."""
        return self.of_type("int")

    @property
    def sent(self) -> Param | None:
        return self.of_type("const void *")

    @property
    def received(self) -> Param | None:
        return self.of_type("void *")

    def fail(self, key: str, text: str) -> SpecError:
        line = self.lines.get(key, self.lines["mode"])
        return SpecError(f"{self.file}:{line}: {self.name}: {text}")


def load(folder: Path) -> list[Function]:
    """Read every file of `folder`. Raises SpecError at the first wrong line."""
    functions: dict[str, Function] = {}
    for path in sorted(folder.glob("*.toml")):
        tables, lines = load_toml(path)
        for name, table in tables.items():
            function = _function(path, name, table, lines)
            if name in functions:
                raise function.fail("mode", f"already described at {functions[name].file}")
            functions[name] = function
    return list(functions.values())


def _function(path: Path, name: str, table: dict[str, Any], lines: Lines) -> Function:
    here = lines.tables.get(name, 1)
    f = Function(name, path, {key: lines.keys.get((name, key), here) for key in KEYS})
    for key, value in table.items():
        if key not in KEYS:
            raise SpecError(
                f"{path}:{lines.keys.get((name, key), here)}: {name}: unknown key '{key}'"
            )
        if key != "params":
            if not isinstance(value, str):
                raise f.fail(key, f"'{key}' must be a string")
            setattr(f, key, value)
    if f.mode not in MODES:
        raise f.fail("mode", f"the mode is '{f.mode}'; it must be one of {', '.join(MODES)}")
    for index, text in enumerate(table.get("params", [])):
        line = lines.params.get((name, index), f.lines["params"])
        f.params.append(parse_param(text, f"{path}:{line}: {name}", line))
    _check(f)
    return f


def _check(f: Function) -> None:
    if (f.mode == "refuse") != bool(f.reason):
        raise f.fail("mode", "a refused function needs a reason, and no other has one")
    if (f.mode == "refuse") == bool(f.doc):
        raise f.fail("doc", "what is not refused says what it does, and nothing else does")
    if f.client and (f.client, f.mode) != ("custom", "collective"):
        raise f.fail("client", "client is 'custom', of a collective that is written by hand")
    if bool(f.sends or f.receives) != f.generated:
        raise f.fail("mode", "a generated collective says what it sends or receives; nothing else")
    if not f.generated:
        return
    for key, buffer in (("sends", f.sent), ("receives", f.received)):
        if bool(getattr(f, key)) != bool(buffer):
            raise f.fail(key, "a buffer and the number of its elements go together")
        known = {"times", "ranks", "rank", f.count.name if f.count else "", "root"}
        unknown = next((n for n in _NAME.findall(getattr(f, key)) if n not in known), "")
        if unknown:
            raise f.fail(key, f"'{unknown}' is nothing that a number of elements can depend on")
    if not all((f.count, f.of_type(TYPE), f.of_type(COMM), f.of_type(STREAM))):
        raise f.fail("params", "a collective has a count, a type, a communicator and a stream")


def check_header(functions: list[Function], flat: str) -> None:
    """Raise SpecError at the first function that nccl.h (preprocessed) has differently."""
    found = {name: (returns, normal(params)) for returns, name, params in _PROTOTYPE.findall(flat)}
    known = {f.name: f for f in functions}
    for name, (returns, params) in found.items():
        f = known.get(name)
        if f is None:
            raise SpecError(f"nccl.h: {name}({params}): the spec does not name this function")
        ours = normal(",".join(p.decl for p in f.params))
        if (normal(returns), params) != (normal(f.returns), ours):
            raise f.fail("params", f"nccl.h declares {returns}({params}), the spec says ({ours})")
    for f in functions:
        if f.name not in found:
            raise f.fail("mode", "nccl.h has no such function")
