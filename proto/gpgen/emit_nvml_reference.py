"""NVML's page of the reference: what each function answers here, in a sentence.

`check` refuses a spec that cannot say it of each function that is answered.
"""

from __future__ import annotations

import re
from itertools import groupby

from .emit_reference import check_sentences
from .spec_nvml import Function, NvmlSpec

PAGE = "nvml.md"
_CODE = re.compile(r"`(nvml\w+)`")

#: What a mode says of an answer's age.
AGES = {
    "snapshot": "as of `nvmlInit`",
    "fresh": "at most 100 ms old",
    "fixed": "always the same",
}


def check(spec: NvmlSpec) -> None:
    """SpecError at the first function that is answered and not described."""
    for f in spec.functions:
        if f.mode == "refuse" and f.doc:
            raise f.fail("doc", "a refused function has its reason, and no 'doc'")
        check_sentences(f, "doc")


def _linked(text: str, named: dict[str, Function]) -> str:
    """`text` with links where it names other functions that are answered."""

    def one(match: re.Match[str]) -> str:
        f = named.get(match[1])
        return match[0] if f is None or f.mode == "refuse" else f"[{match[0]}](#{f.name.lower()})"

    return _CODE.sub(one, text)


def _section(f: Function, named: dict[str, Function]) -> list[str]:
    declared = f"{f.returns} {f.name}({f.prototype});"
    mode = named[f.like].mode if f.like else f.mode
    lines = [f"### {f.name}", "", "```c", declared, "```", ""]
    return [*lines, _linked(f.doc, named), "", f"Mode: {mode}, {AGES[mode]}.", ""]


def reference(spec: NvmlSpec) -> str:
    """The page, one file of the spec after the other."""
    named = {f.name: f for f in spec.functions}
    lines = [
        "# Reference of NVML",
        "",
        "Generated from `proto/spec_nvml`; change it there. It says what the functions of",
        "`libnvidia-ml.so.1` answer here, and how old an answer may be.",
        "",
    ]
    for path, group in groupby(spec.functions, key=lambda f: f.file):
        functions = list(group)
        done = [f for f in functions if f.mode != "refuse"]
        refused = [f for f in functions if f.mode == "refuse"]
        lines += [f"## {path.stem}", "", *(line for f in done for line in _section(f, named))]
        if refused:
            lines += ["These answer `NVML_ERROR_NOT_SUPPORTED`:", ""]
            lines += ["| function | why |", "| --- | --- |"]
            lines += [*(f"| `{f.name}` | {f.reason} |" for f in refused), ""]
    return "\n".join(lines).rstrip() + "\n"
