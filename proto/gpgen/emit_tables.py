"""Tables: cuGetProcAddress, the linker map, error names."""

from __future__ import annotations

from .emit_wire import NOTE
from .spec import Function, Spec


def proc_table(spec: Spec) -> str:
    """(name, version, per-thread) -> operation, function; sorted by name, newest first."""
    rows: list[tuple[str, int, int, str, str]] = []
    for f in spec.cuda:
        op = _operation(spec, f)
        rows.append((f.api, f.since, 0, op, f.name))
        rows += [(api, since, 0, op, f.name) for api, since in f.also.items()]
        rows += [
            (f.api, getattr(f, s), 1, op, f"{f.name}_{s}")
            for s in ("ptds", "ptsz")
            if getattr(f, s)
        ]
    rows.sort(key=lambda r: (r[0], -r[1], r[2]))
    lines = [NOTE, '#include "gp_ops.h"\n#include "gpc_exports.h"\n#include "proc_address.h"\n']
    lines.append("const struct gpc_proc gpc_proc_table[] = {")
    lines += [
        f'    {{"{api}", {since}, {per_thread}, GP_OP_{op}, (void *)(uintptr_t)&{name}}},'
        for api, since, per_thread, op, name in rows
    ]
    lines.append("};\n")
    lines.append(f"const size_t gpc_proc_count = {len(rows)};\n")
    return "\n".join(lines)


def _operation(spec: Spec, f: Function) -> str:
    """What a function stands and falls with where the worker is of another release: its own
    message, or the only one that it sends."""
    sent = spec.sent(f)
    return sent[0].name if f.has_wire or len(sent) == 1 else f.name


#: Functions of libc that stand in its place (client_lib/interposed).
INTERPOSED = (
    ("fread", "fwrite", "pread", "pread64", "preadv", "pwrite", "pwrite64", "read", "readv")
    + ("recv", "recvfrom", "recvmsg", "send", "sendmsg", "sendto", "sigaction", "signal")
    + ("write", "writev")
)


def linker_map(spec: Spec) -> str:
    """An anonymous version node: names must come out without @@VERSION."""
    names = [n for f in spec.cuda for n in (f.name, *f.variants)] + list(INTERPOSED)
    return "{\nglobal:\n" + "".join(f"    {n};\n" for n in names) + "local:\n    *;\n};\n"


def errors_header(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GP_ERRORS_H\n#define GP_ERRORS_H\n"]
    lines.append("/* X(name, value, text) for every CUresult. */\n#define GP_ERRORS(X) \\")
    rows = [f'    X({e.name}, {e.value}, "{e.text}")' for e in spec.errors]
    lines.append(" \\\n".join(rows))
    lines.append("\n/* Those that end a context: every later call gives the same. */")
    lines.append("static inline int gp_error_is_sticky(int error)\n{\n    switch (error) {")
    lines += [f"    case {e.value}: /* {e.name} */" for e in spec.errors if e.sticky]
    if any(e.sticky for e in spec.errors):
        lines.append("        return 1;")
    lines.append("    default:\n        return 0;\n    }\n}")
    lines.append("\n#endif\n")
    return "\n".join(lines)
