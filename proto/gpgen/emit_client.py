"""The client's half: gpc_wire.[ch] and gpc_notify.c; emit_stubs.py has the exported functions."""

from __future__ import annotations

from . import emit_route as route
from .emit_stubs import stub_prototype
from .emit_wire import NOTE
from .layout import OVERALIGNED, tails_in, tails_out, values_out
from .param import Param
from .spec import LOCATIONS, Function, Spec


def wire_header(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPC_WIRE_H\n#define GPC_WIRE_H\n"]
    lines.append('#include "gp_decode.h"\n\nstruct gpc_route;\nstruct gpc_session;\n')
    lines.append(
        "/*\n * Encode a call, send it and, if its mode says so, wait for the answer. Handles\n"
        " * are checked and named here; nothing else is. Outputs are set on success only.\n */"
    )
    for f in spec.wire:
        if f.mode == "notify":
            q = f"const struct gp_req_{f.name} *q"
            args = ", ".join(["struct gpc_session *s", q, *_notify_tails(f)])
            lines.append("/* hand-written: what to do when the worker sends it */")
            lines.append(f"void gpc_on_{f.name}({args});")
        else:
            lines += [f"{route.prototype(f)};", route.unrouted(f)]
    lines.append("\n/* Decode and act on what the worker sent unasked; false: no such message. */")
    lines.append(
        "bool gpc_notify_dispatch(struct gpc_session *s, const struct gp_header *h);\n\n#endif\n"
    )
    return "\n".join(lines)


def _notify_tails(f: Function) -> list[str]:
    return [f"const {p.pointee} *{p.name}" for p in tails_in(f)]


ACCESS = "CUmemAccessDesc"


def _encode(f: Function, p: Param) -> list[str]:
    n = p.name
    if p.has("create"):
        return [
            f"    q.{n} = gpc_handle_new(GP_HANDLE_{(p.handle or '').upper()},"
            " gpc_call_index(&call));",
            f"    if (!q.{n})\n        return CUDA_ERROR_OUT_OF_MEMORY;",
        ]
    if p.handle == "stream":
        return [f"    if ((r = gpc_stream_wire(&call, {n}, &q.{n})))\n        goto fail;"]
    if p.handle:
        null = "true" if p.has("null") else "false"
        kind = f"GP_HANDLE_{p.handle.upper()}"
        return [
            f"    if ((r = gpc_handle_wire(&call, {kind}, (uint64_t){n}, {null}, &q.{n})))",
            "        goto fail;",
        ]
    if p.ctype == "CUdevice":
        return [f"    if ((r = gpc_device_wire(&call, {n}, &q.{n})))\n        goto fail;"]
    if p.has("address") or p.ctype == "CUdeviceptr":
        value = f"(uint64_t)(uintptr_t){n}" if p.is_pointer else n
        return [
            f"    if ((r = gpc_address_wire(&call, {value})))\n        goto fail;",
            f"    q.{n} = {value};",
        ]
    if p.has("string"):
        return [f"    if ((r = gpc_call_text(&call, {n}, &q.n_{n})))\n        goto fail;"]
    return _encode_value(f, p)


def _encode_value(f: Function, p: Param) -> list[str]:
    """What is no handle, device or address: values, arrays and structures."""
    n = p.name
    lines = []
    if p.pointee == ACCESS and p.has("in"):
        lines.append(f"    {ACCESS} own_{n}[GP_DEVICES_MAX];")
        lines.append(
            f"    if ((r = gpc_access_wire(&call, {n}, (uint64_t)({p.count}), own_{n})))"
            f"\n        goto fail;\n    {n} = own_{n};"
        )
    if p.has("optional"):
        lines.append(f"    q.has_{n} = {n} != NULL;")
    if p.has("in") and p.count:
        count = (
            f"{n} ? (uint64_t)({p.count}) : 0" if p.has("optional") else f"(uint64_t)({p.count})"
        )
        lines.append(
            f"    if ((r = gpc_call_in(&call, {n}, {count}, sizeof({p.element}), &q.n_{n})))"
            "\n        goto fail;"
        )
    elif p.is_in_pointer:
        lines.append(f"    memcpy(&q.{n}, {n}, sizeof q.{n});")
        if p.pointee in LOCATIONS:
            lines.append(
                f"    if ((r = gpc_location_wire(&call, &q.{n}{LOCATIONS[p.pointee]})))"
                "\n        goto fail;"
            )
    elif p.has("out") and p.count:
        lines.append(
            f"    if ((r = gpc_call_out(&call, {n}, (uint64_t)({p.count}), sizeof({p.element}),"
            f"\n                          offsetof(struct gp_rep_{f.name}, n_{n}))))"
            "\n        goto fail;"
        )
    elif not p.is_pointer:
        if p.array:
            lines.append(f"    memcpy(q.{n}, {n}, sizeof q.{n});")
        else:
            lines.append(f"    q.{n} = {n};")
    return lines


def _check_pointers(f: Function) -> list[str]:
    """What CUDA wants not to be null is looked at before anything else."""
    required = [
        p.name
        for p in f.params
        if p.is_pointer
        and not p.has("optional")
        and not p.has("address")
        and (p.words and not p.has("null") and not p.has("destroy"))
    ]
    if not required:
        return []
    return [
        f"    if ({' || '.join('!' + n for n in required)})",
        "        return CUDA_ERROR_INVALID_VALUE;",
    ]


def _hand_back(f: Function) -> list[str]:
    """What the caller gets once the answer is there, or once the message is sent."""
    created = f.creates
    lines: list[str] = []
    if created:
        lines.append("    if (r != CUDA_SUCCESS) {")
        lines += [f"        gpc_handle_drop(q.{p.name});" for p in created]
        lines.append("        return r;\n    }")
    else:
        lines.append("    if (r != CUDA_SUCCESS)\n        return r;")
    for p in values_out(f):
        guard = f"    if ({p.name})\n    " if p.has("optional") else ""
        if p.pointee in OVERALIGNED:
            lines.append(f"{guard}    memcpy({p.name}, rep.{p.name}, sizeof rep.{p.name});")
        else:
            lines.append(f"{guard}    *{p.name} = rep.{p.name};")
    if f.is_message:
        for index, p in enumerate(tails_out(f)):
            lines.append(f"    if (got_{p.name})\n        *got_{p.name} = call.out[{index}].got;")
    lines += [
        f"    gpc_location_back(&call, &{p.name}->location);"
        for p in values_out(f)
        if LOCATIONS.get(p.pointee)
    ]
    lines += [f"    *{p.name} = ({p.pointee})q.{p.name};" for p in created]
    lines += [f"    gpc_handle_drop(q.{p.name});" for p in f.params if p.has("destroy")]
    lines += [f"    gpc_cache_forget(GP_OP_{name});" for name in f.forgets]
    lines.append("    return CUDA_SUCCESS;\n}\n")
    return lines


def _wire_body(f: Function) -> list[str]:
    lines = [route.prototype(f), "{", *_check_pointers(f)]
    lines.append(f"    struct gp_req_{f.name} q;\n    memset(&q, 0, sizeof q);")
    lines.append(f"    q.h.op = GP_OP_{f.name};")
    lines += route.start()
    lines.append("    CUresult r = CUDA_SUCCESS;")
    body: list[str] = []
    for p in sorted(f.params, key=route.order):
        body += _encode(f, p)
    lines += body
    if f.waits:
        lines.append(f"    struct gp_rep_{f.name} rep;")
        lines.append("    call.reply = &rep.r;\n    call.reply_size = sizeof rep;")
    if f.mode == "cached":
        # What is set on a function changes what is answered of it.
        lines += [
            f"    call.salt = gpc_attributes_salt((uint64_t){p.name});"
            for p in f.params
            if p.handle == "function"
        ]
    send = {"sync": "gpc_call_exchange", "cached": "gpc_call_cached"}.get(f.mode, "gpc_call_post")
    if f.first_waits:
        send = "gpc_call_tried"
    lines.append(f"    r = {send}(&call);")
    if any("goto fail" in x for x in body):
        lines.append("fail:")
    return lines + _hand_back(f)


def wire_source(spec: Spec) -> str:
    lines = [NOTE, '#include "gpc_wire.h"\n\n#include <string.h>\n\n#include "attributes.h"']
    lines.append('#include "call.h"')
    lines.append('#include "handle.h"\n')
    for f in spec.wire:
        if f.mode != "notify":
            lines += _wire_body(f)
    return "\n".join(lines)


def notify(spec: Spec) -> str:
    lines = [NOTE, '#include "gpc_wire.h"\n']
    lines.append("bool gpc_notify_dispatch(struct gpc_session *s, const struct gp_header *h)")
    lines.append("{\n    switch (h->op) {")
    for f in spec.wire:
        if f.mode == "notify":
            args = ", ".join(["s", "a.q", *(f"a.{p.name}" for p in tails_in(f))])
            lines.append(f"    case GP_OP_{f.name}: {{\n        struct gp_args_{f.name} a;")
            lines.append(f"        if (!gp_decode_{f.name}(h, &a))\n            return false;")
            lines.append(f"        gpc_on_{f.name}({args});\n        return true;\n    }}")
    lines.append("    default:\n        return false;\n    }\n}\n")
    return "\n".join(lines)


def exports(spec: Spec) -> str:
    """Prototypes of the exported names that cuda.h lacks."""
    lines = [NOTE, "#ifndef GPC_EXPORTS_H\n#define GPC_EXPORTS_H\n\n#include <cuda.h>\n"]
    for f in spec.cuda:
        if f.header != "cuda.h":
            lines.append(f"CUresult {f.name}({stub_prototype(f)});")
    lines.append("\n#endif\n")
    return "\n".join(lines)
