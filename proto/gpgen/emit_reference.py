"""The reference: what each function does here and what differs from a local driver.

A page per file of the spec and an index, as Markdown; emit_wire_doc.py has the messages. `check`
refuses a spec that cannot say it of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from .client_words import target_arguments
from .param import Check, Param, SpecError
from .spec import Function, Spec

INDEX = "index.md"
_CODE = re.compile(r"`(cu\w+)`")

#: What a word says that a value must be.
CHECKS = {
    "among": "is one of {}",
    "flags": "has no other bits than {}",
    "below": "is less than {}",
    "upto": "is at most {}",
    "nonzero": "is not 0",
    "zero": "is 0",
}


def is_sentence(text: str) -> bool:
    return text[:1].isupper() and text.endswith((".", "!"))


class Described(Protocol):
    """A function of any of our specs."""

    mode: str
    doc: str

    def fail(self, key: str, text: str) -> SpecError: ...


def check_sentences(f: Described, *keys: str) -> None:
    """SpecError unless what is answered is described, and these keys hold sentences."""
    if f.mode != "refuse" and not f.doc:
        raise f.fail("mode", 'say in a sentence what it does: doc = "…"')
    for key in keys:
        text = getattr(f, key)
        if text and not is_sentence(text):
            raise f.fail(key, f"'{key}' is a sentence: a capital letter first, a full stop last")


def _check_function(f: Function) -> None:
    check_sentences(f, "doc", "differs")
    if f.differs and not f.doc:
        raise f.fail("differs", "'differs' goes with a 'doc'")


def check(spec: Spec) -> None:
    """SpecError at the first function or message that the reference could say nothing of."""
    for f in spec.functions:
        _check_function(f)


# Pages ----------------------------------------------------------------------------------


def _since(f: Function) -> str:
    return f"{f.since // 1000}.{f.since % 1000 // 10}"


def _sends(spec: Spec, f: Function) -> str:
    if f.alias:
        return _sends(spec, spec.named(f.target))
    if not spec.sent(f):
        return "no"
    if f.by_hand or f.does:
        return "may"
    return "once" if f.mode == "cached" else "yes"


def _must(check: Check) -> str:
    return CHECKS[check.word].format(f"`{check.expression}`")


def _argument(p: Param) -> list[str]:
    """What is to be said of one parameter: whether null or 0 is legal, and what it must be."""
    said = [_must(c) for c in p.checks]
    if p.has("optional") or p.has("null"):
        said.append("may be null")
    elif p.words and p.is_pointer and not p.has("address"):
        said.append("must not be null")
    if p.has("destroy"):
        said.append("is gone after the call")
    return [f"`{p.name}` {' and '.join(said)}"] if said else []


def _arguments(f: Function) -> str:
    said = [text for p in f.params for text in _argument(p)]
    return f"{'; '.join(said)}." if said else ""


class _Pages:
    """All pages of one spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.implemented = {f.name: f for f in spec.cuda if f.mode != "refuse"}

    def link(self, text: str, page: str) -> str:
        """`text` with links where it names other functions."""

        def one(match: re.Match[str]) -> str:
            f = self.implemented.get(match[1])
            if f is None:
                return match[0]
            home = "" if f.file.stem == page else f"{f.file.stem}.md"
            return f"[{match[0]}]({home}#{f.name.lower()})"

        return _CODE.sub(one, text)

    def section(self, f: Function) -> list[str]:
        page = f.file.stem
        sends, waits = _sends(self.spec, f), self.spec.waits(f)
        lines = [f"### {f.name}", "", "```c", f"CUresult {f.name}({f.prototype});", "```", ""]
        lines += [self.link(f.doc, page)]
        if f.alias:
            given = target_arguments(f)
            lines += [self.link(f"Does what `{f.target}` does", page) + f", given `({given})`."]
        if f.differs:
            lines += ["", f"**Differs:** {self.link(f.differs, page)}"]
        if f.refuses:
            lines += ["", f"**Not supported:** {'; '.join(f.refuses)}."]
        if said := _arguments(f):
            lines += ["", f"**Checked here:** {said}"]
        forms = f"; forms: {', '.join(v[len(f.name) :] for v in f.variants)}" if f.variants else ""
        lines += ["", f"Since CUDA {_since(f)}; sends: {sends}; waits: {waits}{forms}.", ""]
        return lines

    def page(self, group: str, functions: list[Function]) -> str:
        done = [f for f in functions if f.mode != "refuse"]
        refused = [f for f in functions if f.mode == "refuse"]
        lines = [f"# {group}", "", f"[All groups]({INDEX})", ""]
        if done:
            lines += [
                "| function | sends | waits | what it does here |",
                "| --- | --- | --- | --- |",
            ]
        for f in done:
            does = self.link(f.doc, group)
            name = self.link(f"`{f.name}`", group)
            sends, waits = _sends(self.spec, f), self.spec.waits(f)
            lines.append(f"| {name} | {sends} | {waits} | {does} |")
        lines += ["", *(line for f in done for line in self.section(f))] if done else []
        if refused:
            lines += ["## Refused", "", "These answer `CUDA_ERROR_NOT_SUPPORTED`.", ""]
            lines += ["| function | why |", "| --- | --- |"]
            lines += [f"| `{f.name}` | {f.reason} |" for f in refused]
        return "\n".join(lines).rstrip() + "\n"

    def index(self, groups: dict[str, list[Function]]) -> str:
        lines = [
            "# Reference of the driver API",
            "",
            "Generated from `proto/spec`; change it there. Each page says what the functions of",
            "one group do here, in a sentence, and what differs from a local driver.",
            "",
            "A call *sends* when it makes a message for the GPU host (`may`: it depends on the",
            "call) and *waits* when it needs the answer (`once`: the answer is kept). What is",
            "said to be checked gives `CUDA_ERROR_INVALID_VALUE` at once. Beside this,",
            "`messages.md` has what travels, and `nvml.md` the functions of NVML.",
            "",
            "| group | functions | refused |",
            "| --- | ---: | ---: |",
        ]
        for group, functions in groups.items():
            done = sum(f.mode != "refuse" for f in functions)
            lines.append(f"| [{group}]({group}.md) | {done} | {len(functions) - done} |")
        return "\n".join(lines) + "\n"


def _groups(functions: Iterable[Function]) -> dict[str, list[Function]]:
    groups: dict[str, list[Function]] = {}
    for f in sorted(functions, key=lambda f: (f.file.stem, f.name)):
        groups.setdefault(f.file.stem, []).append(f)
    return groups


def reference(spec: Spec) -> dict[str, str]:
    """File name -> text."""
    groups = _groups(spec.cuda)
    pages = _Pages(spec)
    texts = {f"{group}.md": pages.page(group, functions) for group, functions in groups.items()}
    return {INDEX: pages.index(groups), **texts}
