"""Compare the spec with cuda.h: no function missing, none with another signature.

The header is read after the C preprocessor (with __CUDA_API_VERSION_INTERNAL,
which shows every versioned name), so declarations are all there is to parse.
"""

from __future__ import annotations

import re

from .param import SpecError
from .spec import Spec

_PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
_ERROR = re.compile(r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)")


def normal(text: str) -> str:
    """A parameter list with one way of spacing."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"\s*([*,()\[\]])\s*", r"\1", text)
    return "" if text == "void" else text


def prototypes(flat: str) -> dict[str, str]:
    """Every CUresult function of the preprocessed header: name -> parameters."""
    return {name: normal(params) for name, params in _PROTOTYPE.findall(flat)}


def check(spec: Spec, flat: str) -> None:
    """Raise SpecError at the first function or error code that differs."""
    found = prototypes(flat)
    known = {f.name: f for f in spec.cuda}
    variants = {v: f for f in spec.cuda for v in f.variants}
    for name, params in found.items():
        f = known.get(name) or variants.get(name)
        if f is None:
            raise SpecError(f"cuda.h: {name}({params}): the spec does not name this function")
        ours = normal(",".join(p.decl for p in f.params))
        if ours != params and not (name in variants and _same_types(ours, params)):
            raise f.fail("params", f"cuda.h declares ({params}), the spec says ({ours})")
    for f in spec.cuda:
        if f.header == "cuda.h" and f.name not in found:
            raise f.fail("mode", "cuda.h has no such function")
    codes = {name: int(value) for name, value in _ERROR.findall(flat)}
    ours_codes = {e.name: e.value for e in spec.errors}
    for name, value in codes.items():
        if ours_codes.get(name) != value:
            raise SpecError(
                f"errors.toml:1: {name} is {value} in cuda.h, {ours_codes.get(name)} here"
            )


def _same_types(a: str, b: str) -> bool:
    """Equal but for the parameters' names (the header names some differently)."""

    def strip(text: str) -> list[str]:
        return [re.sub(r"\w+(\[\w*\])?$", "", p) for p in text.split(",")]

    return strip(a) == strip(b)
