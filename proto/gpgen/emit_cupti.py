"""CUPTI's names: what libcupti.so refuses, its maps, and the numbers of the driver's functions.

python -m gpgen.emit_cupti --spec proto/spec_cupti/cupti.toml --out DIR
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from .emit_wire import NOTE

#: CUDA's major versions, whose libraries and version nodes have the name.
VERSIONS = (12, 13)


def stubs(refused: list[str]) -> str:
    """Whatever the arguments are: the caller's convention leaves them to the caller."""
    lines = [NOTE, '#include "cupti_export.h"\n']
    for name in refused:
        lines.append(f"GPC_CUPTI_EXPORT uint32_t {name}(void);")
        lines.append(f"uint32_t {name}(void)\n{{\n    return GP_CUPTI_NOT_SUPPORTED;\n}}\n")
    return "\n".join(lines)


def numbers(table: dict[str, int]) -> str:
    """Sorted by name, for a search."""
    lines = [NOTE, '#include "driver_numbers.h"\n']
    lines.append("const struct gpc_driver_number gpc_driver_numbers[] = {")
    lines += [f'    {{"{name}", {number}}},' for name, number in sorted(table.items())]
    lines.append("};")
    last = max(table.values())
    lines.append(f"const size_t gpc_driver_number_count = {len(table)};")
    lines.append(f"const uint32_t gpc_driver_number_last = {last};")
    lines.append(f'_Static_assert({last} < GPC_CUPTI_NUMBERS, "there are more");\n')
    return "\n".join(lines)


def linker_map(version: int, names: list[str]) -> str:
    exported = "".join(f"    {name};\n" for name in sorted(names))
    return f"libcupti.so.{version} {{\n  global:\n{exported}  local:\n    *;\n}};\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpgen.emit_cupti", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    spec = tomllib.loads(arguments.spec.read_text(encoding="utf-8"))
    implemented, refused = spec["implemented"], spec["refused"]
    if twice := {name for name in implemented if name in refused}:
        raise SystemExit(f"{arguments.spec}: both implemented and refused: {', '.join(twice)}")
    out: Path = arguments.out
    (out / "gpc_cupti_stubs.c").write_text(stubs(refused), encoding="utf-8")
    (out / "gpc_driver_numbers.c").write_text(numbers(spec["driver_numbers"]), encoding="utf-8")
    for version in VERSIONS:
        text = linker_map(version, [*implemented, *refused])
        (out / f"libcupti.so.{version}.map").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
