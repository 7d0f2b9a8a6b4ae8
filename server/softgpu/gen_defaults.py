"""Write what the soft GPU's hand-written files leave: defaults, variants, look-up, errors.

    gen_defaults.py --cc CC --include DIR --spec DIR --out FILE.c

Reads CUDA's header through the compiler, so that every name and signature is
the header's own. The output has, for every function of it,

* a weak definition that answers CUDA_ERROR_NOT_SUPPORTED, which a hand-written
  one replaces when the library is linked, or the error that the spec's lists of
  forms say;
* for names with _ptsz and _ptds, a call of the plain function with the
  per-thread default stream in place of the default one;

and the table behind cuGetProcAddress (names, variants and versions from the
spec) and the texts of cuGetErrorName and cuGetErrorString.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

DECLARATION = re.compile(r"\bCUresult\s+(cu[A-Za-z0-9_]+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*;")


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        return [argument_name(p) for p in self.parameters]


def argument_name(parameter: str) -> str:
    """The name in one declared parameter."""
    found = re.search(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?$", parameter)
    if not found:
        sys.exit(f"gen_defaults: cannot read the parameter {parameter!r} of cuda.h")
    return found.group(1)


def read_header(compiler: str, include: Path) -> list[Function]:
    """Every function that cuda.h declares, old names included, and the two of cudaProfiler.h."""
    source = "#include <cuda.h>\nCUresult cuProfilerStart(void);\nCUresult cuProfilerStop(void);\n"
    command = [compiler, "-E", "-P", "-x", "c", "-D__CUDA_API_VERSION_INTERNAL"]
    done = subprocess.run(
        [*command, "-I", str(include), "-"], input=source, text=True, capture_output=True
    )
    if done.returncode != 0:
        sys.exit(f"gen_defaults: the compiler cannot read cuda.h in {include}:\n{done.stderr}")
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", done.stdout)
    functions = {}
    for name, inside in DECLARATION.findall(text):
        parts = [" ".join(p.split()) for p in inside.split(",")]
        parameters = tuple(p for p in parts if p and p != "void")
        functions[name] = Function(name, parameters)
    if len(functions) < 500:
        sys.exit(f"gen_defaults: only {len(functions)} functions found in cuda.h of {include}")
    return [functions[name] for name in sorted(functions)]


@dataclass(frozen=True)
class Form:
    """The errors of an old form: always, and if it asks an object that is none."""

    error: str
    not_live: str = ""


def old_form(function: Function, head: str, form: Form) -> str:
    """A form that gives one error, and sets the numbers that it would fill to 0."""
    lines = ["    if (!sg.ready)\n        return CUDA_ERROR_NOT_INITIALIZED;\n"]
    objects = []
    for parameter, name in zip(function.parameters, function.arguments, strict=True):
        if re.match(r"(CUdeviceptr_v1|unsigned int) ?\*", parameter):
            lines.append(f"    if ({name})\n        *{name} = 0;\n")
        elif form.not_live and re.match(r"CU(array|module|texref) ", parameter):
            objects.append(f"    if (!{name})\n        return {form.not_live};\n")
        else:
            lines.append(f"    (void){name};\n")
    return f"{head}\n{{\n{''.join(lines + objects)}    return {form.error};\n}}\n"


def definition(function: Function, names: set[str], forms: dict[str, Form]) -> str:
    """The default of one function, or its call with the per-thread stream."""
    head = f"CUresult {function.name}({', '.join(function.parameters) or 'void'})"
    base = re.sub(r"_ptsz$|_ptds$", "", function.name)
    if base != function.name and base in names:
        call = f"{base}({', '.join(function.arguments)})"
        return (
            f"{head}\n{{\n    sg_per_thread++;\n    CUresult result = {call};\n"
            "    sg_per_thread--;\n    return result;\n}\n"
        )
    if function.name in forms:
        return old_form(function, head, forms[function.name])
    unused = "".join(f"    (void){name};\n" for name in function.arguments)
    return (
        f"__attribute__((weak)) {head}\n{{\n{unused}"
        "    return sg.ready ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;\n}\n"
    )


def read_versions(spec: Path) -> dict[str, tuple[str, int]]:
    """symbol -> (the name that cuGetProcAddress is asked for, CUDA version)."""
    versions: dict[str, tuple[str, int]] = {}
    for file in sorted(spec.glob("*.toml")):
        for name, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if name.startswith("cu") and isinstance(entry, dict) and "since" in entry:
                versions[name] = (str(entry.get("api", name)), int(entry["since"]))
    return versions


def read_forms(spec: Path) -> dict[str, Form]:
    """function -> the errors that a list of the spec has for it."""
    forms: dict[str, Form] = {}
    for file in sorted(spec.glob("*.toml")):
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
        for form in entries["forms"] if "answers" in entries else []:
            name = form.split()[1].partition("(")[0]
            forms[name] = Form(entries["answers"], entries.get("not_live", ""))
    return forms


def table(functions: list[Function], versions: dict[str, tuple[str, int]]) -> str:
    """Rows {name asked for, version, per-thread variant, function}, sorted by name."""
    rows = []
    for function in functions:
        base = re.sub(r"_ptsz$|_ptds$", "", function.name)
        plain = re.sub(r"_v\d+$", "", base)
        api, since = versions.get(base, (plain, 2000))
        thread = "true" if base != function.name else "false"
        rows.append((api, since, function.name, thread))
    rows.sort()
    return "".join(
        f'    {{"{api}", {since}, {thread}, (void *){symbol}}},\n'
        for api, since, symbol, thread in rows
    )


def errors(spec: Path) -> str:
    data = tomllib.loads((spec / "errors.toml").read_text(encoding="utf-8"))
    rows = sorted((int(e["value"]), name, str(e["text"])) for name, e in data.items())
    return "".join(f'    {{{value}, "{name}", "{text}"}},\n' for value, name, text in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the rest of the soft GPU's functions.")
    parser.add_argument("--cc", required=True)
    parser.add_argument("--include", required=True, type=Path)
    parser.add_argument("--spec", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    functions = read_header(options.cc, options.include)
    names = {f.name for f in functions}
    parts = ['/* Generated by gen_defaults.py. */\n#include "defaults.h"\n']
    forms = read_forms(options.spec)
    parts += [definition(f, names, forms) for f in functions]
    rows = table(functions, read_versions(options.spec))
    parts.append(f"const struct sg_symbol sg_symbols[] = {{\n{rows}}};\n")
    parts.append("const size_t sg_symbol_count = sizeof(sg_symbols) / sizeof(*sg_symbols);\n")
    parts.append(f"const struct sg_error sg_errors[] = {{\n{errors(options.spec)}}};\n")
    parts.append("const size_t sg_error_count = sizeof(sg_errors) / sizeof(*sg_errors);\n")
    options.out.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
