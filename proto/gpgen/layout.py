"""How a call lies on the wire: the fields of its request and reply structures.

Fixed fields come first, in the order of the parameters; arrays and strings
follow as *tails*, each padded to 8 bytes, each with its length in bytes in a
field `n_<name>`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .param import Param
from .spec import Function

# Types that ask for more than the wire's 8-byte alignment travel as bytes.
OVERALIGNED = {"CUtensorMap"}


@dataclass(frozen=True)
class Field:
    """One member of a request or reply structure."""

    ctype: str
    name: str
    array: str = ""

    @property
    def decl(self) -> str:
        return f"{self.ctype} {self.name}{self.array};"


def _value(p: Param) -> Field:
    if p.pointee in OVERALIGNED:
        return Field("uint8_t", p.name, f"[sizeof({p.pointee})]")
    return Field(p.pointee, p.name)


def tails_in(f: Function) -> list[Param]:
    """Parameters whose bytes follow the request."""
    return [p for p in f.params if (p.has("in") and p.count) or p.has("string")]


def tails_out(f: Function) -> list[Param]:
    """Parameters whose bytes follow the reply."""
    return [p for p in f.params if p.has("out") and p.count]


def values_out(f: Function) -> list[Param]:
    """Single values that the reply carries."""
    return [p for p in f.params if p.is_out and not p.count]


def request(f: Function) -> list[Field]:
    fields = []
    for p in f.params:
        if p.has("optional"):
            fields.append(Field("uint32_t", f"has_{p.name}"))
        if p.has("create") or p.handle or p.has("address"):
            fields.append(Field("uint64_t", p.name))
        elif p in tails_in(f):
            fields.append(Field("uint32_t", f"n_{p.name}"))
        elif p.is_in_pointer:
            fields.append(_value(p))
        elif not p.is_pointer:
            fields.append(Field(p.ctype.replace("const ", ""), p.name, p.array))
    return fields


def reply(f: Function) -> list[Field]:
    fields = [_value(p) for p in values_out(f)]
    fields += [Field("uint32_t", f"n_{p.name}") for p in tails_out(f)]
    return fields
