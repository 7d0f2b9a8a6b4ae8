"""Who observes calls, GPUPOOL_TRACE among them: gpc_bodies.h and gpc_trace_calls.c.

Whoever includes export.h writes the *body* of an exported function: the name is
defined to gpc_body_NAME there. The exported function itself is written here and
calls the body, or where somebody observes calls, the function `observed_NAME`: that says when the
call begins and ends, what it was given, and decodes it into the trace where one is asked for.
So stubs written by hand and generated ones are observed alike, and a call that nobody observes
costs one load.
"""

from __future__ import annotations

import re

from .emit_wire import NOTE
from .param import HANDLES, Param
from .spec import Function, Spec

# Members worth a line of structures that the application passes.
STRUCTURES = {
    "CUlaunchConfig": [
        "gridDimX",
        "gridDimY",
        "gridDimZ",
        "blockDimX",
        "blockDimY",
        "blockDimZ",
        "sharedMemBytes",
        "hStream",
        "numAttrs",
    ],
    "CUDA_MEMCPY2D": [
        "srcXInBytes",
        "srcY",
        "srcMemoryType",
        "srcHost",
        "srcDevice",
        "srcPitch",
        "dstXInBytes",
        "dstY",
        "dstMemoryType",
        "dstHost",
        "dstDevice",
        "dstPitch",
        "WidthInBytes",
        "Height",
    ],
    "CUDA_MEMCPY3D": [
        "srcMemoryType",
        "srcHost",
        "srcDevice",
        "srcPitch",
        "srcHeight",
        "dstMemoryType",
        "dstHost",
        "dstDevice",
        "dstPitch",
        "dstHeight",
        "WidthInBytes",
        "Height",
        "Depth",
    ],
    "CUmemLocation": ["type", "id"],
    "CUmemAllocationProp": ["type", "requestedHandleTypes", "location.type", "location.id"],
    "CUmemPoolProps": ["allocType", "handleTypes", "location.type", "location.id"],
    "CUmemAccessDesc": ["location.type", "location.id", "flags"],
}

# Structures that travel by value.
BY_VALUE = {"CUmemLocation", "CUipcMemHandle", "CUipcEventHandle"}

# Types that are a number or a handle. A pointer to one that has no words (those of
# functions that send nothing) leads to one of them, which the call fills, unless its
# name is that of several, perhaps none.
NUMBERS = {
    "int",
    "unsigned int",
    "unsigned long long",
    "size_t",
    "float",
    "cuuint32_t",
    "cuuint64_t",
    "CUdevice",
    "CUdeviceptr",
    "void *",
    "const void *",
    "CUdriverProcAddressQueryResult",
    "CUmoduleLoadingMode",
    "CUstreamCaptureMode",
    "CUstreamCaptureStatus",
    *HANDLES,
}
SEVERAL = re.compile(
    r"^(?!num).*(array|attributes|data|extra|functions|kernels|logbuffer|luid|nodes|options|params|values)$",
    re.IGNORECASE,
)


def bodies(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPC_BODIES_H\n#define GPC_BODIES_H\n\n#include <cuda.h>\n"]
    names = [(f, name) for f in spec.cuda for name in (f.name, *f.variants)]
    lines += [f"CUresult gpc_body_{name}({_prototype(f)});" for f, name in names]
    lines.append("\n/* Not for the exported functions themselves. */\n#ifndef GPC_BODIES_ONLY")
    lines += [f"#define {name} gpc_body_{name}" for _, name in names]
    lines.append("#endif\n\n#endif\n")
    return "\n".join(lines)


def trace_calls(spec: Spec) -> str:
    lines = [NOTE, "#define GPC_BODIES_ONLY\n"]
    lines.append('#include "error_log.h"\n#include "export.h"\n#include "gpc_bodies.h"')
    lines.append('#include "observe.h"\n#include "trace.h"\n')
    for structure in _structures(spec):
        lines += _structure(structure)
    launches = {f.name for f in spec.cuda if "gp_launch" in f.sends}
    for f in spec.cuda:
        lines += _traced(f)
        lines += _observed(f, launches)
        for name in (f.name, *f.variants):
            lines += _export(f, name)
    return "\n".join(lines)


def _prototype(f: Function) -> str:
    return "void" if f.header == "interop" else f.prototype


def _shown(f: Function) -> list[Param]:
    """Of the functions that cuda.h does not declare nobody knows the parameters."""
    return [] if f.header == "interop" else f.params


def _structures(spec: Spec) -> list[str]:
    used = {
        p.pointee if p.is_pointer else p.ctype
        for f in spec.cuda
        for p in _shown(f)
        if not p.is_pointer or _is_one_structure(p)
    }
    return [name for name in STRUCTURES if name in used]


def _is_one_structure(p: Param) -> bool:
    reads = p.ctype.startswith("const ") or p.is_in_pointer
    return reads and not p.count and p.pointee in STRUCTURES


def _structure(name: str) -> list[str]:
    lines = [f"static void show_{name}(struct gpc_trace *t, const {name} *s)\n{{"]
    for index, member in enumerate(STRUCTURES[name]):
        lines.append(f'    gpc_trace_raw(t, "{", " if index else "{"}{member}=");')
        lines.append(f"    GPC_TRACE_VALUE(t, s->{member});")
    lines.append('    gpc_trace_raw(t, "}");\n}\n')
    return lines


def _before(p: Param) -> list[str]:
    """Show what the caller passes."""
    n = p.name
    label = f'    gpc_trace_label(&t_, "{n}");'
    if not p.is_pointer:
        if p.ctype in STRUCTURES:
            return [label, f"    show_{p.ctype}(&t_, &{n});"]
        if p.ctype in BY_VALUE:
            return [label, f"    gpc_trace_bytes(&t_, &{n}, sizeof {n});"]
        return [f"    GPC_TRACE_ARGUMENT(&t_, {n});"]
    if p.ctype == "const char *" and not p.count:
        return [label, f"    gpc_trace_text(&t_, {n});"]
    if p.ctype == "const CUuuid *":
        return [
            label,
            f"    if ({n})\n        gpc_trace_uuid(&t_, {n});",
            f"    else\n        gpc_trace_pointer(&t_, {n});",
        ]
    if _is_one_structure(p):
        return [
            label,
            f"    if ({n})\n        show_{p.pointee}(&t_, {n});",
            f"    else\n        gpc_trace_pointer(&t_, {n});",
        ]
    if p.count and p.has("in") and p.pointee in NUMBERS:
        return [f"    GPC_TRACE_ARRAY(&t_, {n}, {p.count});"]
    if p.count:
        size = f"(unsigned long long)({p.count}) * sizeof({p.element})"
        return [label, f"    gpc_trace_bytes(&t_, {n}, {size});"]
    lines = [f"    GPC_TRACE_ARGUMENT(&t_, {n});"]
    if p.is_in_pointer and p.pointee in NUMBERS:
        lines.append(f"    GPC_TRACE_POINTEE(&t_, {n});")
    elif p.is_in_pointer:
        lines = [label, f"    gpc_trace_bytes(&t_, {n}, sizeof *{n});"]
    return lines


def _after(p: Param) -> list[str]:
    """Show what a call that succeeded has filled."""
    n = p.name
    one = p.has("create") or p.is_out or not p.words
    if not p.is_pointer or not one or (p.ctype.startswith("const ") and not p.ctype.endswith("**")):
        return []
    if not p.words and SEVERAL.match(n):
        return []
    show = {
        "char": f"gpc_trace_text(&t_, {n});",
        "char *": f"gpc_trace_text(&t_, *{n});",
        "CUuuid": f"gpc_trace_uuid(&t_, {n});",
    }.get(p.pointee)
    if show:
        label = f'gpc_trace_label(&t_, "*{n}");'
        return [f"        if ({n}) {{\n            {label}\n            {show}\n        }}"]
    if p.count or not (p.pointee in NUMBERS or p.pointee.endswith("*")):
        return []  # a structure, or room whose fill only the call itself knows
    return [f"        GPC_TRACE_POINTEE(&t_, {n});"]


def _behind_body(f: Function) -> str:
    """The parameters of what stands between an exported function and its body."""
    shown = _shown(f)
    types = ", ".join(f"{p.ctype}{p.array}" for p in shown) or "void"
    return ", ".join(["const char *name_", f"CUresult (*body_)({types})", *(p.decl for p in shown)])


def _traced(f: Function) -> list[str]:
    """Own names end in an underscore, which those of CUDA's parameters never do."""
    shown = _shown(f)
    lines = [f"static CUresult traced_{f.name}({_behind_body(f)})\n{{"]
    lines.append("    struct gpc_trace t_;\n    gpc_trace_begin(&t_, name_);")
    for p in shown:
        lines += _before(p)
    lines.append("    gpc_trace_called(&t_);")
    lines.append(f"    CUresult r_ = body_({', '.join(p.name for p in shown)});")
    filled = [line for p in shown if f.mode != "refuse" for line in _after(p)]
    if filled:
        lines += ["    if (gpc_trace_returned(&t_, r_)) {", *filled, "    }"]
    else:
        lines.append("    gpc_trace_returned(&t_, r_);")
    lines.append("    gpc_trace_end(&t_);\n    return r_;\n}\n")
    return lines


def _launched(f: Function, launches: set[str]) -> str:
    """The parameter that is the kernel of a launch."""
    if f.name not in launches and f.alias.partition("(")[0] not in launches:
        return ""
    return next((p.name for p in f.params if p.ctype == "CUfunction"), "")


def _observed(f: Function, launches: set[str]) -> list[str]:
    """The arguments are one behind the other as in CUPTI's structures (generated_cuda_meta.h)."""
    shown = _shown(f)
    arguments = ", ".join(p.name for p in shown)
    behind = f", {arguments}" if arguments else ""
    lines = [f"static GPC_COLD CUresult observed_{f.name}({_behind_body(f)})\n{{"]
    known = [".name = name_"]
    if shown:
        members = " ".join(f"{p.decl};" for p in shown)
        lines.append(f"    const struct {{ {members} }} given_ = {{{arguments}}};")
        known.append(".given = &given_")
    if kernel := _launched(f, launches):
        known.append(f".launched = {kernel}")
    return [
        *lines,
        f"    struct gpc_observed o_ = {{{', '.join(known)}}};\n    gpc_observe_begin(&o_);",
        "    CUresult r_ = GPC_OBSERVED(GPC_OBSERVER_TRACE)",
        f"                      ? traced_{f.name}(name_, body_{behind})",
        f"                      : body_({arguments});",
        "    gpc_observe_end(&o_, r_);\n    return r_;\n}\n",
    ]


def _export(f: Function, name: str) -> list[str]:
    arguments = ", ".join(p.name for p in _shown(f))
    behind = f", {arguments}" if arguments else ""
    return [
        f"GPC_EXPORT CUresult {name}({_prototype(f)})\n{{",
        f'    return gpc_error_told("{f.name}",',
        "        GPC_OBSERVED(GPC_OBSERVERS_OF_CALLS)",
        f'            ? observed_{f.name}("{name}", gpc_body_{name}{behind})',
        f"            : gpc_body_{name}({arguments}));\n}}\n",
    ]
