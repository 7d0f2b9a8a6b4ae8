"""The worker's half: the driver's table, the dispatch, prototypes of handlers."""

from __future__ import annotations

import re

from .emit_wire import NOTE
from .layout import OVERALIGNED, request, tails_in, tails_out, values_out
from .param import Param
from .spec import LOCATIONS, PARENTS, Function, Spec


def driver_functions(spec: Spec) -> list[Function]:
    """Every function of cuda.h that a worker may ask of its driver."""
    return [f for f in spec.cuda if f.header == "cuda.h"]


def driver_header(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPW_DRIVER_H\n#define GPW_DRIVER_H\n\n#include <cuda.h>\n"]
    lines.append("/* The driver that the worker opened; a name it lacks answers NOT_SUPPORTED. */")
    lines.append("struct gpw_driver {\n    void *library;")
    lines += [f"    __typeof__(&{f.name}) {f.name};" for f in driver_functions(spec)]
    lines.append("};\n\n/* 0, or -1 with one line in `error`. */")
    lines.append("int gpw_driver_open(struct gpw_driver *driver, const char *path,")
    lines.append("                    char *error, unsigned long error_size);\n\n#endif\n")
    return "\n".join(lines)


def driver_source(spec: Spec) -> str:
    lines = [NOTE, '#include "gpw_driver.h"\n\n#include <dlfcn.h>\n#include <stdio.h>\n']
    for f in driver_functions(spec):
        lines.append(f"static CUresult no_{f.name}({f.prototype})\n{{")
        lines += [f"    (void){p.name};" for p in f.params]
        lines.append("    return CUDA_ERROR_NOT_SUPPORTED;\n}")
    lines.append("""
int gpw_driver_open(struct gpw_driver *driver, const char *path, char *error,
                    unsigned long error_size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(error, error_size, "cannot open the driver %s: %s", path, dlerror());
        return -1;
    }
    driver->library = library;""")
    for f in driver_functions(spec):
        lines.append(f'    driver->{f.name} = (__typeof__(&{f.name}))dlsym(library, "{f.name}");')
        lines.append(f"    if (!driver->{f.name})\n        driver->{f.name} = no_{f.name};")
    lines.append("    return 0;\n}\n")
    return "\n".join(lines)


def _handler_params(f: Function) -> list[str]:
    params = ["struct gpw_session *s"]
    if f.worker == "deferred":
        params.append("struct gpw_token token")
    for p in f.params:
        if p.is_out and f.worker == "deferred":
            continue
        params.append(p.decl)
        if p in tails_out(f):
            params.append(f"uint32_t *n_{p.name}")
    return params


def handlers(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPW_HANDLERS_H\n#define GPW_HANDLERS_H\n"]
    lines.append('#include "gp_decode.h"\n#include "session.h"\n')
    lines.append(
        "/*\n * Hand-written handlers. Handles are the driver's; a handle to create is left in\n"
        " * the pointer given; out[N] buffers hold *n_x bytes and *n_x says how many are used.\n"
        " * A deferred handler returns GPW_DEFERRED and answers its token later, or an error\n"
        " * that is answered at once. Anything that no client of ours would send is\n"
        " * gpw_session_broken().\n */"
    )
    for f in spec.wire:
        if f.worker:
            lines.append(f"CUresult gpw_{f.name}({', '.join(_handler_params(f))});")
        if f.worker == "deferred":
            outs = ", ".join(f"const void *{p.name}, uint32_t n_{p.name}" for p in tails_out(f))
            comma = ", " if outs else ""
            lines.append(
                f"int gpw_answer_{f.name}(struct gpw_session *s, struct gpw_token token,"
                f" CUresult result{comma}{outs});"
            )
        if f.mode == "notify":
            lines.append(f"{_notify_prototype(f)};")
    lines.append("\n#endif\n")
    return "\n".join(lines)


def _notify_prototype(f: Function) -> str:
    return f"int gpw_notify_{f.name}(struct gpw_session *s, {f.prototype})"


def dispatch(spec: Spec) -> str:
    lines = [NOTE, '#include "dispatch.h"\n\n#include <string.h>\n']
    lines.append('#include "gpw_handlers.h"\n#include "growth.h"\n#include "handles.h"')
    lines.append('#include "memory.h"\n#include "place.h"\n#include "quota.h"\n#include "span.h"\n')
    for f in spec.wire:
        if f.mode == "notify":
            lines += _notify(f)
        else:
            lines += _dispatcher(f)
    lines.append("int gpw_dispatch(struct gpw_session *s, const struct gp_header *h)\n{")
    lines.append("    switch (h->op) {")
    for f in spec.wire:
        if f.mode != "notify":
            lines.append(f"    case GP_OP_{f.name}:\n        return do_{f.name}(s, h);")
    lines.append(
        '    default:\n        return gpw_session_broken(s, "no operation has this number");'
    )
    lines.append("    }\n}\n")
    return "\n".join(lines)


def _notify(f: Function) -> list[str]:
    lines = [
        _notify_prototype(f),
        "{",
        f"    struct gp_req_{f.name} q;",
        "    memset(&q, 0, sizeof q);",
    ]
    lines.append(f"    q.h.op = GP_OP_{f.name};")
    for p in f.params:
        if p not in tails_in(f):
            lines.append(f"    q.{p.name} = {p.name};")
    lines.append(f"    if (!gp_shared_has(&s->shared, GP_OP_{f.name}))")
    lines.append("        return 0; /* the client is of another release */")
    lines.append("    struct gpw_message m = {.head = &q.h, .head_size = sizeof q};")
    for p in tails_in(f):
        lines.append(f"    q.n_{p.name} = (uint32_t)(sizeof({p.element}) * ({p.count}));")
        lines.append(f"    gpw_message_tail(&m, {p.name}, q.n_{p.name});")
    lines.append("    return gpw_session_send(s, &m);\n}\n")
    return lines


#: How to get rid of an object whose making took more memory than there may be.
_UNDO = {
    "module": "gpw_cuModuleUnload(s, {})",
    "library": "gpw_cuLibraryUnload(s, {})",
    "graph_exec": "s->driver->cuGraphExecDestroy({})",
}


def _undo_growth(f: Function) -> list[str]:
    """What the driver took by itself is more than the tenant may have."""
    if any(p.has("destroy") for p in f.params):
        return ["    if (r == CUDA_SUCCESS)\n        gpw_growth_over(s, &growth);"]
    lines = ["    if (r == CUDA_SUCCESS && gpw_growth_over(s, &growth)) {"]
    holder = next((p for p in f.params if p.handle in ("module", "library")), None)
    if holder is not None and not holder.has("create"):
        # Its variables came with the first use. Whatever is asked of it later fails, too.
        kind = f"GP_HANDLE_{(holder.handle or '').upper()}"
        lines.append("        if (gpw_growth_far(&growth)) {\n            uint64_t real;")
        lines.append(f"            gpw_handle_take(s, {kind}, a.q->{holder.name}, false, &real);")
        lines.append(f"            {_UNDO[holder.handle or ''].format(holder.name)};")
        lines.append(
            f"            gpw_handle_put(s, {kind}, a.q->{holder.name}, 0,"
            " CUDA_ERROR_OUT_OF_MEMORY);\n        }"
        )
    else:
        lines += [
            f"        {_UNDO[p.handle].format(p.name)};" for p in f.creates if p.handle in _UNDO
        ]
    lines.append("        gpw_growth_undone(s, &growth);")
    lines.append("        r = CUDA_ERROR_OUT_OF_MEMORY;\n    }")
    return lines


def _argument(f: Function, p: Param) -> str:
    if p.has("create"):
        return f"&{p.name}"
    if p.handle or p.has("inout"):
        return p.name if p.handle else f"&{p.name}"
    if p in tails_in(f):
        # some of CUDA's prototypes lack a const
        return f"a.{p.name}" if "const" in p.ctype else f"({p.ctype})(uintptr_t)a.{p.name}"
    if p in tails_out(f):
        return p.name
    if _takes_device(f, p):
        return p.name
    if p.has("address"):
        return f"({p.ctype})(uintptr_t)a.q->{p.name}"
    if p.has("in"):
        return f"&{p.name}"
    if p.is_out:
        return f"a.q->has_{p.name} ? &{p.name} : NULL" if p.has("optional") else f"&{p.name}"
    return f"a.q->{p.name}"


def _span(f: Function, p: Param) -> str:
    """The check that a device address may be used as far as the call uses it."""
    names = {other.name for other in f.params}
    length = re.sub(r"[A-Za-z_]\w*", lambda m: f"a.q->{m[0]}" if m[0] in names else m[0], p.count)
    reach = f"gpw_memory_reach(s, a.q->{p.name}, {length})"
    return f"{reach} ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE"


def _takes_device(f: Function, p: Param) -> bool:
    """Numbers of devices are the client's: hand-written handlers look them up by themselves."""
    return p.ctype == "CUdevice" and not f.worker


def _takes_location(f: Function, p: Param) -> bool:
    return p.pointee in LOCATIONS and p.is_in_pointer and not p.count and not f.worker


def _dispatcher(f: Function) -> list[str]:
    lines = [f"static int do_{f.name}(struct gpw_session *s, const struct gp_header *h)\n{{"]
    lines.append(f"    struct gp_args_{f.name} a;\n    if (!gp_decode_{f.name}(h, &a))")
    lines.append(
        f'        return gpw_session_broken(s, "{f.name}: the arguments do not fit the message");'
    )
    deferred = f.worker == "deferred"
    checks: list[str] = []
    for p in f.params:
        if p.has("create"):
            lines.append(f"    {p.pointee} {p.name} = 0;")
            kind = f"GP_HANDLE_{(p.handle or '').upper()}"
            lines.append(f"    if (!gpw_handle_free(s, {kind}, a.q->{p.name}))")
            lines.append(
                f'        return gpw_session_broken(s, "{f.name}: the new handle is not free");'
            )
        elif p.handle:
            ctype = p.ctype.replace("const ", "")
            lines.append(f"    {ctype} {p.name} = 0;")
            null = "true" if p.has("null") else "false"
            kind = f"GP_HANDLE_{p.handle.upper()}"
            get = "gpw_handle_take" if p.has("destroy") else "gpw_handle_get"
            what = f"s, {kind}, "
            if ctype == "CUkernel":
                get, what = "gpw_handle_get_kernel", "s, "
            checks.append(f"{get}({what}a.q->{p.name}, {null}, (uint64_t *)&{p.name})")
        elif p.has("span"):
            checks.append(_span(f, p))
        elif _takes_device(f, p):
            lines.append(f"    CUdevice {p.name} = 0;")
            checks.append(f"gpw_device_take(s, a.q->{p.name}, &{p.name})")
        elif p in tails_out(f) and not deferred:
            lines.append(f"    uint32_t n_{p.name} = a.room_{p.name};")
            lines.append(
                f"    {p.pointee} *{p.name} = gpw_scratch(s, {tails_out(f).index(p)}, n_{p.name});"
            )
        elif p.has("in") and not p.count or p.has("inout"):
            lines.append(f"    {p.pointee} {p.name};")
            lines.append(f"    memcpy(&{p.name}, &a.q->{p.name}, sizeof {p.name});")
            if _takes_location(f, p):
                checks.append(f"gpw_location_check(s, &{p.name}{LOCATIONS[p.pointee]})")
        elif p.is_out and not p.count and not deferred:
            lines.append(f"    {p.pointee} {p.name};\n    memset(&{p.name}, 0, sizeof {p.name});")
    lines.append("    CUresult r = CUDA_SUCCESS;")
    for c in checks:
        lines.append(f"    if (r == CUDA_SUCCESS)\n        r = {c};")
    if f.work and f.needs == "context":
        lines.append("    if (r == CUDA_SUCCESS && !gpw_place_known(s))")
        lines.append("        r = CUDA_ERROR_INVALID_CONTEXT;")
    args = []
    for p in f.params:
        if deferred and p.is_out:
            continue
        args.append(_argument(f, p))
        if p in tails_out(f) and f.worker:
            args.append(f"&n_{p.name}")
    if deferred:
        args.insert(0, "gpw_token_of(h)")
    call = f"gpw_{f.name}" if f.worker else f"s->driver->{f.name}"
    head = ["s"] if f.worker else []
    if f.grows:
        lines.append(
            f"    struct gpw_growth growth;\n    gpw_growth_begin(s, GP_OP_{f.name}, &growth);"
        )
    lines.append(f"    if (r == CUDA_SUCCESS)\n        r = {call}({', '.join(head + args)});")
    if f.worker == "custom" and f.waits:
        lines.append("    if (r == GPW_AGAIN)\n        return gpw_put_off(s, h);")
    if f.grows:
        lines += _undo_growth(f)
    for p in f.creates:
        kind = f"GP_HANDLE_{(p.handle or '').upper()}"
        lines.append(f"    gpw_handle_put(s, {kind}, a.q->{p.name}, (uint64_t){p.name}, r);")
        parent = f.parent(p)
        of = f"a.q->{parent.name}" if parent else "0"
        context = "true" if f.of_context(p) else "false"
        tag = "GPW_TAG_KERNEL" if p.pointee == "CUkernel" else "0"
        if p.handle in PARENTS or f.of_context(p):
            lines.append(f"    gpw_handle_bind(s, {kind}, a.q->{p.name}, {of}, {context}, {tag});")
    if not f.waits:
        lines.append("    return gpw_async_result(s, h, r);\n}\n")
        return lines
    if deferred:
        lines.append("    if (r == GPW_DEFERRED)\n        return 0;")
        zero = "".join(", NULL, 0" for _ in tails_out(f))
        lines.append(f"    return gpw_answer_{f.name}(s, gpw_token_of(h), r{zero});\n}}\n")
        lines += _answer(f)
        return lines
    lines.append(f"    struct gp_rep_{f.name} rep;\n    memset(&rep, 0, sizeof rep);")
    lines.append("    struct gpw_message m = {.head = &rep.r.h, .head_size = sizeof rep};")
    outs = values_out(f) + tails_out(f)
    if outs:
        lines.append("    if (r == CUDA_SUCCESS) {")
    for p in values_out(f):
        target = f"rep.{p.name}" if p.pointee in OVERALIGNED else f"&rep.{p.name}"
        lines.append(f"        memcpy({target}, &{p.name}, sizeof {p.name});")
    for p in tails_out(f):
        lines.append(f"        rep.n_{p.name} = n_{p.name};")
        lines.append(f"        gpw_message_tail(&m, {p.name}, n_{p.name});")
    if outs:
        lines.append("    }")
    lines.append("    return gpw_reply(s, h, r, &m);\n}\n")
    return lines


def _answer(f: Function) -> list[str]:
    """Declared in gpw_handlers.h, so it may follow its use."""
    outs = tails_out(f)
    args = "".join(f", const void *{p.name}, uint32_t n_{p.name}" for p in outs)
    lines = [
        f"int gpw_answer_{f.name}(struct gpw_session *s, struct gpw_token token,"
        f" CUresult result{args})"
    ]
    lines.append(f"{{\n    struct gp_rep_{f.name} rep;\n    memset(&rep, 0, sizeof rep);")
    lines.append("    struct gpw_message m = {.head = &rep.r.h, .head_size = sizeof rep};")
    for p in outs:
        lines.append(
            f"    rep.n_{p.name} = n_{p.name};\n    gpw_message_tail(&m, {p.name}, n_{p.name});"
        )
    lines.append("    return gpw_reply_token(s, token, result, &m);\n}\n")
    return lines


__all__ = ["dispatch", "driver_header", "driver_source", "handlers", "request"]
