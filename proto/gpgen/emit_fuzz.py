"""What the fuzzers know of the messages: a dictionary, one seed for each decoder, and how
plausible requests and answers are drawn from a string of bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Set

from .emit_wire import NOTE
from .layout import Field, request, tails_in, tails_out, values_out
from .param import REACHES, Param
from .spec import Function, Spec


def dictionary(spec: Spec) -> str:
    """Every operation number, as the two bytes it is on the wire."""
    rows = []
    for f in spec.wire:
        low, high = f.id & 255, f.id >> 8
        rows.append(f'{f.name}="\\x{low:02x}\\x{high:02x}"')
    return "\n".join(rows) + "\n"


def seed(f: Function) -> bytes:
    """A header for this operation and zeros: lengths of 0, handles of 0."""
    body = bytes(256)
    return struct.pack("<IHHQ", 16 + len(body), f.id, 0, 1) + body


def requests(spec: Spec) -> str:
    """A function for each request, which fills it through those of tests/fuzz/draw.h."""
    lines = [NOTE, '#include "draw.h"\n']
    asked = [f for f in spec.wire if f.mode != "notify"]
    for f in asked:
        lines += _drawer(f)
    lines.append("const struct draw_request draw_requests[] = {")
    for f in asked:
        waits = "true" if f.waits else "false"
        lines.append(f'    {{GP_OP_{f.name}, "{f.name}", draw_{f.name}, {waits}}},')
    lines.append("};")
    lines.append("const unsigned draw_request_count = sizeof draw_requests / ")
    lines[-1] += "sizeof draw_requests[0];\n"
    rows = []
    for f in asked:
        made = {p.handle for p in f.params if p.handle and p.has("create")}
        named = {p.handle for p in f.params if p.handle and not p.has("create")}
        rows.append((f"GP_OP_{f.name}", named, made))
    return "\n".join([*lines, *kinds("draw_kinds", rows)])


def kinds(name: str, rows: Iterable[tuple[str, Set[str], Set[str]]]) -> list[str]:
    """A table of which kinds of handles each operation names, and makes (tests/fuzz/steps.h)."""

    def mask(those: Set[str]) -> str:
        bits = (f"UINT64_C(1) << GP_HANDLE_{kind.upper()}" for kind in sorted(those))
        return " | ".join(bits) or "0"

    lines = [f"static const struct steps_kinds {name}_of[] = {{"]
    lines += [f"    {{{op}, {mask(named)}, {mask(made)}}}," for op, named, made in rows]
    lines += ["};", f"const struct steps_table {name} = {{{name}_of,"]
    return [*lines, f"    sizeof {name}_of / sizeof {name}_of[0]}};\n"]


def _drawer(f: Function) -> list[str]:
    params = {p.name: p for p in f.params}
    lines = [f"static uint32_t draw_{f.name}(struct draw *d, struct gp_header *h)\n{{"]
    lines.append(f"    struct gp_req_{f.name} *q = (void *)h;\n    uint32_t at = sizeof *q;")
    tails = tails_in(f)
    for field in request(f):
        param = params.get(field.name.removeprefix("has_"))
        if field.name in params and params[field.name] not in tails:
            lines.append(f"    {_value(field, params[field.name])}")
        elif param is not None and field.name.startswith("has_"):
            lines.append(f"    q->{field.name} = draw_below(d, 2);")
    if not request(f):
        lines.append("    (void)d;")
    for p in tails:
        lines.append(f"    q->n_{p.name} = {_tail(p)};")
    lines.append("    return at;\n}\n")
    return lines


def _value(field: Field, p: Param) -> str:
    """A statement that fills a field."""
    at = f"q->{field.name}"
    if p.has("create"):
        return f"{at} = draw_new(d, GP_HANDLE_{(p.handle or 'none').upper()});"
    if p.handle:
        return f"{at} = draw_handle(d, GP_HANDLE_{p.handle.upper()});"
    if p.has("address") or p.ctype == "CUdeviceptr" or any(p.has(word) for word in REACHES):
        return f"{at} = draw_address(d);"
    if p.ctype == "CUdevice":
        return f"{at} = (int)draw_below(d, 2);"
    if p.is_in_pointer or field.array:
        return f"draw_words(d, &{at}, sizeof {at});"
    if p.ctype == "size_t" or "bytes" in p.name:
        return f"{at} = (__typeof__({at}))draw_bytes_count(d);"
    return f"{at} = (__typeof__({at}))draw_number(d, sizeof {at});"


def _tail(p: Param) -> str:
    """An expression that appends a tail and gives its bytes."""
    if p.has("string"):
        return "draw_text(d, h, &at)"
    count = re.sub(r"\b([a-z]\w*)", r"(uint64_t)q->\1", p.count)
    if p.has("optional"):
        count = f"q->has_{p.name} ? {count} : 0"
    return f"draw_tail(d, h, &at, {count}, sizeof({p.element}))"


def answers(spec: Spec) -> str:
    """A function for each answer, which fills it through those of tests/fuzz/draw.h. How much
    room the client has for a tail is in the request."""
    lines = [NOTE, '#include "draw.h"\n']
    answered = [f for f in spec.wire if values_out(f) or tails_out(f)]
    for f in answered:
        lines += _answerer(f)
    lines.append("const struct draw_answer draw_answers[] = {")
    lines += [
        f"    {{GP_OP_{f.name}, sizeof(struct gp_rep_{f.name}), answer_{f.name}}},"
        for f in answered
    ]
    lines.append("};")
    lines.append("const unsigned draw_answer_count = sizeof draw_answers / ")
    lines[-1] += "sizeof draw_answers[0];\n"
    return "\n".join(lines)


def _answerer(f: Function) -> list[str]:
    lines = [
        f"static uint32_t answer_{f.name}(struct draw *d, const struct gp_header *asked,",
        "    struct gp_header *h)\n{",
        f"    const struct gp_req_{f.name} *q = (const void *)asked;",
        f"    struct gp_rep_{f.name} *a = (void *)h;\n    uint32_t at = sizeof *a;\n    (void)q;",
    ]
    for p in values_out(f):
        at = f"a->{p.name}"
        if p.pointee == "CUdeviceptr":
            lines.append(f"    {at} = draw_place(d);")
        else:
            lines.append(f"    draw_value(d, &{at}, sizeof {at});")
    for p in tails_out(f):
        room = re.sub(r"\b([a-z]\w*)", r"(uint64_t)q->\1", p.count)
        exact = "true" if p.pointee == "void" else "false"
        lines.append(
            f"    a->n_{p.name} = draw_room(d, h, &at, {room}, sizeof({p.element}), {exact});"
        )
    lines.append("    return at;\n}\n")
    return lines
