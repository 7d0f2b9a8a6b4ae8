"""Write the generated half of libnvidia-ml.so.1.

    python -m gpgen.emit_nvml --spec proto/spec_nvml --header flat.h --out build/proto/gen

--header is nvml.h after the C preprocessor (with NVML_NO_UNVERSIONED_FUNC_DEFS, which
shows every name); without it nothing is compared. --coverage FILE rewrites the table of
the docs, --reference FOLDER writes the page of the reference.
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path

from . import emit_nvml_calls, emit_nvml_reference
from .emit_docs import write_if_changed
from .param import SpecError
from .spec_nvml import Function, NvmlSpec, check_header, load

NOTE = emit_nvml_calls.NOTE
PRIVATE_SLOTS = 256


def facts(spec: NvmlSpec) -> str:
    numbers = [f for f in spec.facts.values() if f.kind != "text"]
    texts = [f for f in spec.facts.values() if f.kind == "text"]
    rows = [f'    X({f.name}, "{f.word}", {int(f.kind == "fresh")})' for f in numbers]
    fields = [f'    X({f.name}, "{f.word}", {f.word.replace("-", "_")}, {f.size})' for f in texts]
    lines = [NOTE, "#ifndef GPC_NVML_FACTS_H\n#define GPC_NVML_FACTS_H\n"]
    lines.append("/* X(name, word, is fresh) for every number known of a device. */")
    lines.append("#define GPC_NVML_FACTS(X) \\\n" + " \\\n".join(rows) + "\n")
    lines.append("/* X(name, word, field, room with NUL) for every text. */")
    lines.append("#define GPC_NVML_TEXTS(X) \\\n" + " \\\n".join(fields) + "\n")
    lines.append("enum gpc_nvml_fact {")
    lines += [f"    {f.name}," for f in numbers]
    lines.append("    GP_NVML_FACT_COUNT\n};\n\nenum gpc_nvml_text {")
    lines += [f"    {f.name}," for f in texts]
    lines.append("    GP_NVML_TEXT_COUNT\n};\n\n#endif\n")
    return "\n".join(lines)


def errors(spec: NvmlSpec) -> str:
    lines = [NOTE, "#ifndef GPC_NVML_ERRORS_H\n#define GPC_NVML_ERRORS_H\n"]
    lines.append("/* X(name, text) for every nvmlReturn_t. */\n#define GPC_NVML_ERRORS(X) \\")
    lines.append(" \\\n".join(f'    X({e.name}, "{e.text}")' for e in spec.errors))
    lines.append("\n#endif\n")
    return "\n".join(lines)


def linker_map(spec: NvmlSpec) -> str:
    """An anonymous version node, as in libcuda.map."""
    names = "".join(f"    {f.name};\n" for f in spec.functions)
    return "{\nglobal:\n" + names + "local:\n    *;\n};\n"


def stubs(spec: NvmlSpec) -> str:
    """The exported functions that nobody writes by hand."""
    lines = [NOTE, '#include "nvml_device.h"\n']
    for f in spec.functions:
        if f.client != "custom":
            lines.append(f"GPC_NVML_EXPORT {f.returns} {f.name}({f.prototype})\n{{")
            lines += _body(f, spec)
            lines.append("}\n")
    return "\n".join(lines)


def _body(f: Function, spec: NvmlSpec) -> list[str]:
    if f.mode == "like":
        return [f"    return {f.like}({f.arguments});"]
    used = {a.param.name for a in f.answers}
    if f.mode == "refuse":
        unused = [
            f"    (void){p.name};" for p in f.params if not (f.of_device and p is f.params[0])
        ]
        call = (
            f'gpc_nvml_refuse_device("{f.name}", device)'
            if f.of_device
            else f'gpc_nvml_refuse("{f.name}")'
        )
        return [*unused, f"    return {call};"]
    null = " || ".join(f"!{name}" for name in dict.fromkeys(a.param.name for a in f.answers))
    ready = "gpc_nvml_known(device)" if f.of_device else "gpc_nvml_ready()"
    lines = []
    if f.mode == "fixed":
        lines = [
            f"    (void){p.name};"
            for p in f.params
            if p.name not in used and p.decl != "nvmlDevice_t device"
        ]
        lines.append(
            f"    nvmlReturn_t r = {ready};\n    if (r != NVML_SUCCESS)\n        return r;"
        )
        lines.append(f"    if ({null})\n        return NVML_ERROR_INVALID_ARGUMENT;")
        lines += [f"    {a.target} = {a.value};" for a in f.answers]
        return [*lines, "    return NVML_SUCCESS;"]
    if spec.facts[f.answers[0].value].kind == "text":
        a = f.answers[0]
        text = spec.facts[a.value].name
        return [f"    return gpc_nvml_text(device, {text}, {a.param.name}, length);"]
    wanted = ", ".join(spec.facts[a.value].name for a in f.answers)
    lines.append(f"    static const enum gpc_nvml_fact wanted[] = {{{wanted}}};")
    lines.append(f"    unsigned long long got[{len(f.answers)}];")
    lines.append(f"    if ({null})\n        return gpc_nvml_bad_argument(device);")
    lines.append(f"    nvmlReturn_t r = gpc_nvml_facts(device, wanted, {len(f.answers)}, got);")
    lines.append("    if (r != NVML_SUCCESS)\n        return r;")
    lines += [
        f"    {a.target} = (__typeof__({a.target}))got[{i}];" for i, a in enumerate(f.answers)
    ]
    return [*lines, "    return NVML_SUCCESS;"]


def private_slots(_spec: NvmlSpec) -> str:
    """X(n) for each slot of the private table, so that each has a function of its own."""
    row = " ".join(f"X({n})" for n in range(1, PRIVATE_SLOTS))
    lines = [NOTE, f"#define GPC_NVML_PRIVATE_SLOTS {PRIVATE_SLOTS}"]
    lines.append(f"#define GPC_NVML_PRIVATE(X) {row}\n")
    return "\n".join(lines)


def coverage(spec: NvmlSpec) -> str:
    """The table of the docs, one file of the spec after the other."""
    done = [f for f in spec.functions if f.mode != "refuse"]
    lines = [
        "# What libnvidia-ml.so.1 answers",
        "",
        "Written by gpgen from `proto/spec_nvml`; do not edit.",
        f"{len(spec.functions)} functions are exported, {len(done)} are answered; the others"
        " say `NVML_ERROR_NOT_SUPPORTED`.",
    ]
    for path, group in groupby(spec.functions, key=lambda f: f.file):
        lines += ["", f"## {path.stem}", "", "| function | mode | note |", "| --- | --- | --- |"]
        lines += [f"| {f.name} | {f.mode} | {f.reason or f.like} |" for f in group]
    return "\n".join(lines) + "\n"


OUTPUTS = {
    "gpc_nvml_facts.h": facts,
    "gpc_nvml_errors.h": errors,
    "gpc_nvml_stubs.c": stubs,
    "gpc_nvml_private.h": private_slots,
    "libnvidia-ml.map": linker_map,
    "fuzz_nvml_calls.c": emit_nvml_calls.calls,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpgen.emit_nvml")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--header", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--coverage", type=Path)
    parser.add_argument("--reference", type=Path, help="folder for the reference's page")
    args = parser.parse_args(argv)
    try:
        spec = load(args.spec)
        if args.header:
            check_header(spec, args.header.read_text(encoding="utf-8"))
        emit_nvml_reference.check(spec)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 1
    if args.out:
        for name, emit in OUTPUTS.items():
            write_if_changed(args.out / name, emit(spec))
    if args.coverage:
        write_if_changed(args.coverage, coverage(spec))
    if args.reference:
        page = args.reference / emit_nvml_reference.PAGE
        write_if_changed(page, emit_nvml_reference.reference(spec))
    return 0


if __name__ == "__main__":
    sys.exit(main())
