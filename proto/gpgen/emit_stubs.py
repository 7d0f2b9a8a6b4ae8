"""gpc_stubs.[ch]: the exported functions, but for those that somebody writes by hand.

A stub says in this order what is not supported, what the process or the thread lacks, what
is wrong with the object that the call is about, and what is wrong with the arguments;
then it answers, sends, or calls what does it. CUDA gives such errors at once.
"""

from __future__ import annotations

import re

from . import emit_route as route
from .client_words import ITS, expressions, mentions_its, subject, target_arguments
from .emit_wire import NOTE
from .spec import Function, Spec

#: Kinds of which the look-up fills a record of the stub's.
ITS_OWN = {
    "stream": "struct gpc_stream own;",
    "memory": "struct gpc_range own;",
    "pinned": "struct gpc_range own;",
}


def stub_prototype(f: Function) -> str:
    """Headers that the build does not have declare nothing to agree with."""
    return "void" if f.header == "interop" else f.prototype


# What a stub checks -------------------------------------------------------------------


def _enter(f: Function, op: str) -> list[str]:
    needs = f"GPC_NEEDS_{f.needs.upper()}"
    for p in f.params:
        if p.handle == "context" and p.has("null"):  # the current one only if none is named
            needs = f"{p.name} ? GPC_NEEDS_INIT : GPC_NEEDS_CONTEXT"
    if f.place is None and re.search(r"\bon\b", f"{f.does} {f.then}"):
        streams = [p.name for p in f.params if p.handle == "stream"]
        stream = streams[0] if streams else "NULL"  # the default one
        return [
            "    struct gpc_route on;",
            f"    CUresult r = gpc_enter_stream(&on, {op}, {stream});",
        ]
    return route.enter(f, op, needs)


def _look(f: Function) -> list[str]:
    its = subject(f)
    if its is None:
        return []
    kind, call = ITS[its.kind]
    if not mentions_its(f):  # that there is one is enough
        return [f"    if (r == CUDA_SUCCESS)\n        {call.format(its.argument)};"]
    lines = [f"    {ITS_OWN[its.kind]}"] if its.kind in ITS_OWN else []
    return [*lines, f"    {kind} *its = r ? NULL : {call.format(its.argument)};"]


def _wrong_pointers(f: Function) -> list[str]:
    """Conditions under which a pointer is missing that the stub itself goes through; what
    is sent checks its own."""
    noted = [p for p in f.params if p.has("create") or p.has("out")] if f.then else []
    wrong = [f"!{p.name}" for p in noted if not p.has("optional")]
    for p in f.params:
        if p.gives and not p.has("optional"):
            wrong.append(f"!{p.name}")
            if p.room:
                wrong.append(f"{p.room} <= 0")
    return wrong


def _wrong_values(f: Function) -> list[str]:
    wrong = []
    for p in f.params:
        for check in p.checks:
            e = check.expression
            one = " || ".join(f"{p.name} == {value}" for value in e.split("|"))
            wrong.append(
                {
                    "among": f"!({one})",
                    "flags": f"({p.name} & ~(__typeof__({p.name}))({e}))",
                    "below": f"(uint64_t){p.name} >= (uint64_t)({e})",
                    "upto": f"(uint64_t){p.name} > (uint64_t)({e})",
                    "nonzero": f"!{p.name}",
                    "zero": f"{p.name}",
                }[check.word]
            )
    return wrong


def _checks(f: Function) -> list[str]:
    wrong = _wrong_pointers(f) + _wrong_values(f)
    lines = []
    if wrong:
        lines.append(f"    if ({' || '.join(wrong)})\n        return CUDA_ERROR_INVALID_VALUE;")
    for error, condition in f.fails.items():
        lines.append(f"    if ({condition})\n        return {error};")
    return lines


def _refuses(f: Function) -> list[str]:
    return [
        f'    if ({condition})\n        return gpc_refuse_because(GP_OP_{f.name}, "{what}");'
        for what, condition in f.refuses.items()
    ]


# What a stub does ---------------------------------------------------------------------


def _gives(f: Function) -> list[str]:
    lines = []
    for p in f.params:
        if not p.gives:
            continue
        fill = f"*{p.name} = {p.gives};"
        if p.room:
            fill = f"gpc_give_text({p.name}, (size_t){p.room}, {p.gives}, sizeof({p.gives}));"
        condition = f"{p.name} && {p.room}" if p.room else p.name
        if p.has("optional"):
            lines.append(f"    if ({condition})\n        {fill}")
        else:
            lines.append(f"    {fill}")
    return lines


def _as(op: str, call: str) -> str:
    return re.sub(r"\bop\b", op, call)


def _send(f: Function, op: str) -> list[str]:
    """The message, and what is noted behind it."""
    if not f.then:
        return [f"    return gpc_leave({route.send(f, f.arguments)});"]
    # what is answered is the caller's when it has been noted; all is asked for
    outs = [p for p in f.params if p.has("out") and not p.count]
    created = next(iter(f.creates), None)
    lines = []
    for p in outs:
        lines.append(f"    {p.pointee} own_{p.name}, *to_{p.name} = {p.name};")
        lines.append(f"    {p.name} = &own_{p.name};")
    if created:
        lines.append(f"    {created.pointee} made;")
    arguments = ", ".join("&made" if p is created else p.name for p in f.params)
    lines.append(f"    r = {route.send(f, arguments)};")
    lines.append(f"    if (r == CUDA_SUCCESS)\n        r = {_as(op, f.then)};")
    for p in outs:
        wanted = f" && to_{p.name}" if p.has("optional") else ""
        lines.append(f"    if (r == CUDA_SUCCESS{wanted})\n        *to_{p.name} = own_{p.name};")
    if created is None:
        return [*lines, "    return gpc_leave(r);"]
    # an earlier call's error must not lose the new handle, so it is left to the next call
    return [*lines, f"    if (r == CUDA_SUCCESS)\n        *{created.name} = made;\n    return r;"]


def _body(f: Function, op: str) -> list[str]:
    """Everything between the braces, for the operation `op`."""
    enter, look, checks = _enter(f, op), _look(f), _checks(f)
    if f.has_wire and not (look or checks or f.does or f.then):
        return [*enter, f"    return gpc_leave(r ? r : {route.send(f, f.arguments)});"]
    lines = [*enter, *look, "    if (r != CUDA_SUCCESS)\n        return r;", *checks]
    if f.does:
        return [*lines, f"    return gpc_leave({_as(op, f.does)});"]
    if f.has_wire:
        return [*lines, *_send(f, op)]
    return [*lines, *_gives(f), "    return CUDA_SUCCESS;"]


def _unused(f: Function) -> list[str]:
    """What the stub takes and does not look at."""
    text = " ".join([*expressions(f), f.its, *f.refuses.values(), *(p.room for p in f.params)])
    if f.alias:
        text += target_arguments(f)
    return [
        f"    (void){p.name};"
        for p in f.params
        if not (p.gives or p.checks or re.search(rf"\b{p.name}\b", text))
        and p not in (f.place, getattr(subject(f), "param", None))
    ]


def _refused(f: Function) -> list[str]:
    return [*(f"    (void){p.name};" for p in f.params), f"    return gpc_refuse(GP_OP_{f.name});"]


def _answered(f: Function) -> list[str]:
    """One error, whatever is asked: what would be filled is 0. An object may come first."""
    numbers = [p for p in f.params if p.ctype in ("CUdeviceptr_v1 *", "unsigned int *")]
    objects = [p for p in f.params if p.handle and f.not_live]
    lines = [f"    (void){p.name};" for p in f.params if p not in numbers + objects]
    lines += _enter(f, f"GP_OP_{f.name}")
    for p in numbers:
        lines.append(f"    if (r == CUDA_SUCCESS && {p.name})\n        *{p.name} = 0;")
    for p in objects:
        live = f"gpc_handle_live(GP_HANDLE_{(p.handle or '').upper()}, (uint64_t){p.name})"
        lines.append(f"    if (r == CUDA_SUCCESS && !{live})\n        return {f.not_live};")
    return [*lines, f"    return r ? r : {f.answers};"]


def _exported(f: Function, aliased: bool) -> list[str]:
    if f.mode == "refuse":
        return _refused(f)
    if f.answers:
        return _answered(f)
    if f.alias:
        given = ", ".join(a for a in (f"GP_OP_{f.name}", target_arguments(f)) if a)
        given_at_once = [*_unused(f), *_refuses(f), *_gives(f)]
        return [*given_at_once, f"    return gpc_as_{f.target}({given});"]
    if aliased:
        given = ", ".join(a for a in (f"GP_OP_{f.name}", f.arguments) if a)
        return [*_refuses(f), f"    return gpc_as_{f.name}({given});"]
    unused = [] if f.has_wire or f.does else _unused(f)
    return [*unused, *_refuses(f), *_body(f, f"GP_OP_{f.name}")]


def _as_prototype(f: Function) -> str:
    return f"CUresult gpc_as_{f.name}({', '.join(['uint16_t op', *(p.decl for p in f.params)])})"


# The files ------------------------------------------------------------------------------


def _targets(spec: Spec) -> set[str]:
    return {f.target for f in spec.cuda if f.alias}


def stubs_header(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPC_STUBS_H\n#define GPC_STUBS_H\n\n#include <cuda.h>"]
    lines.append("#include <stdint.h>\n")
    lines.append("/* hand-written: what several exported functions do, each as its operation */")
    targets = _targets(spec)
    lines += [f"{_as_prototype(f)};" for f in spec.cuda if f.by_hand and f.name in targets]
    lines.append("\n#endif\n")
    return "\n".join(lines)


def stubs(spec: Spec) -> str:
    targets = _targets(spec)
    lines = [NOTE, '#include "gpc_stubs.h"\n\n#include "call.h"\n#include "export.h"']
    lines.append('#include "gpc_wire.h"\n#include "handle.h"\n#include "its.h"')
    lines.append('#include "shared.h"\n')
    for f in spec.cuda:
        if f.name in targets and not f.by_hand:
            lines += [f"static {_as_prototype(f)}\n{{", *_body(f, "op"), "}\n"]
    for f in spec.cuda:
        if not f.by_hand or f.name in targets:
            lines.append(f"GPC_EXPORT CUresult {f.name}({stub_prototype(f)})\n{{")
            lines += [*_exported(f, f.name in targets), "}\n"]
        for variant in f.variants:
            lines.append(f"GPC_EXPORT CUresult {variant}({f.prototype})\n{{")
            lines.append("    bool before = gpc_per_thread_streams(true);")
            lines.append(f"    CUresult r = {f.name}({f.arguments});")
            lines.append("    gpc_per_thread_streams(before);\n    return r;\n}\n")
    return "\n".join(lines)
