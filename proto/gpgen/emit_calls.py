"""Calls of the driver with arguments drawn from a string of bytes, for tests/fuzz/fuzz_softgpu.c.

What a caller promises the driver is kept: a pointer to the host is to memory of the size that the
other arguments say. So functions are left out whose structures have pointers in them, or where a
number alone decides what is read; fuzz_softgpu.c makes those by hand.
"""

from __future__ import annotations

import re

from .emit_fuzz import kinds
from .emit_wire import NOTE
from .param import HANDLES, Param
from .spec import Function, Spec

#: Structures without a pointer to the host.
PLAIN = {
    *("CUmemPoolProps", "CUmemAllocationProp", "CUmemLocation", "CUmemAccessDesc", "CUuuid"),
    *("CUstreamAttrValue", "CUexecAffinityParam", "CUDA_MEMSET_NODE_PARAMS", "CUdevprop"),
}
#: By names: images and files, tables of functions, what waits for ever, what takes any address
#: for the host's.
LEFT_OUT = re.compile(
    r"cu(ModuleLoad|LibraryLoad|Link|GetProcAddress|GetExportTable|StreamWaitValue|StreamBatch"
    r"|Launch|Memcpy$|MemcpyAsync$|Memcpy\dD|MemcpyBatch|PointerGetAttributes|ThreadExchange"
    r"|Graph.*(Kernel|Memcpy|Host|Batch|External|AddNode|Params)|Checkpoint|Coredump|Init$"
    r"|MemcpyPeer|LogsRegister|OccupancyMaxPotentialBlockSize|StreamAddCallback|Profiler)"
)
_NUMBER = re.compile(
    r"(unsigned )?(int|char|short|long long)|size_t|float|cuuint\d+_t|u?int\d+_t|CUdevice"
    r"|CU\w+_attribute|CU\w+(Attribute|_flags|Mode|ID|Config|config|limit|_type|cache|Type|result)"
    r"|CUlimit|CUresult|CUmem_advise|CUsharedconfig|CUfunc_cache"
)


def calls(spec: Spec) -> str:
    lines = [NOTE, '#include "calls.h"\n']
    callable_ = [f for f in spec.functions if is_simple(f)]
    for f in callable_:
        lines += _caller(f)
    lines.append("const struct call_entry call_entries[] = {")
    lines += [f'    {{{f.id}, "{f.name}", call_{f.name}}},' for f in callable_]
    lines.append("};")
    lines.append("const unsigned call_entry_count =")
    lines.append("    sizeof call_entries / sizeof call_entries[0];\n")
    rows = [(str(f.id), _handles(f, made=False), _handles(f, made=True)) for f in callable_]
    return "\n".join([*lines, *kinds("call_kinds", rows)])


def _handles(f: Function, made: bool) -> set[str]:
    """The kinds of handles that a call takes, or gives."""
    return {HANDLES[_base(p)] for p in f.params if _base(p) in HANDLES and _makes(p) == made}


def is_simple(f: Function) -> bool:
    if f.name.startswith("gp_") or f.alias or f.header != "cuda.h" or LEFT_OUT.match(f.name):
        return False
    return all(_argument(f, p) for p in f.params)


def _base(p: Param) -> str:
    return p.ctype.replace("const ", "").rstrip("* ").strip()


def _argument(f: Function, p: Param) -> str:
    """An expression for the argument; "": there is none."""
    base, stars = _base(p), p.ctype.count("*")
    reads = p.ctype.startswith("const ")
    if p.array:
        return ""
    if stars == 0:
        if base in HANDLES:
            return f"({base})call_handle(c, {_kind(base)})"
        if base == "CUdeviceptr":
            return "call_address(c)"
        if not _NUMBER.fullmatch(base):
            return ""
        clamp = "call_count(c)" if _clamped(f, p) else f"call_number(c, sizeof({base}))"
        return f"({base}){clamp}"
    if stars == 1 and base == "void":
        return "call_host(c)"
    if stars == 1 and base == "char":
        return "call_text(c)" if reads else "call_slot(c)"
    if stars == 1 and reads and base in HANDLES:
        return f"({p.ctype})call_handles(c, {_kind(base)})"
    if stars == 1 and (base in HANDLES or base in PLAIN or base == "CUdeviceptr"):
        return f"({p.ctype})call_slot(c)"
    if stars == 1 and _NUMBER.fullmatch(base):
        return f"({p.ctype})call_slot(c)"
    return f"({p.ctype})call_slot(c)" if stars == 2 and base in ("void", "char") else ""


def _clamped(f: Function, p: Param) -> bool:
    """Whether a length that is too large would make the caller lie of its own memory."""
    points = any(q.is_pointer and _base(q) in ("void", "char", *HANDLES, *PLAIN) for q in f.params)
    return points and _base(p) in ("size_t", "unsigned int", "int")


def _kind(base: str) -> str:
    return f"GP_HANDLE_{HANDLES[base].upper()}"


def _makes(p: Param) -> bool:
    return p.is_pointer and not p.ctype.startswith("const ")


def _caller(f: Function) -> list[str]:
    lines = [f"static CUresult call_{f.name}(struct calls *c)\n{{"]
    names = []
    for p in f.params:
        star = "" if p.ctype.endswith("*") else " "
        lines.append(f"    {p.ctype}{star}{p.name} = {_argument(f, p)};")
        names.append(p.name)
    if not f.params:
        lines.append("    (void)c;")
    lines.append(f"    CUresult r = {f.name}({', '.join(names)});")
    for p in f.params:
        base = _base(p)
        makes = _makes(p)
        if makes and p.ctype.count("*") == 1 and base in HANDLES:
            lines.append(f"    if (r == CUDA_SUCCESS && {p.name})")
            lines.append(f"        call_learn(c, {_kind(base)}, (uint64_t)(uintptr_t)*{p.name});")
        elif makes and base == "CUdeviceptr":
            lines.append(f"    if (r == CUDA_SUCCESS && {p.name})")
            lines.append(f"        call_learn_address(c, *{p.name});")
    lines.append("    return r;\n}\n")
    return lines
