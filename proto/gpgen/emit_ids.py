"""gp_ids.[ch]: what each side tells the other of its operations."""

from __future__ import annotations

from .emit_wire import NOTE
from .ids import short
from .spec import Spec


def _core(spec: Spec, notify: bool) -> list[str]:
    return [f.name for f in spec.wire if f.core and (f.mode == "notify") == notify]


def header(spec: Spec) -> str:
    return f"""{NOTE}
#ifndef GP_IDS_H
#define GP_IDS_H

#include <stdint.h>

/* Every operation that travels: id << 16 | signature, in the order of the ids. */
#define GP_OPERATIONS {len(spec.wire)}
extern const uint32_t gp_operations[GP_OPERATIONS];

/* Without these there is no session: what the client sends, what the worker sends. Each list
 * ends with 0. */
extern const uint16_t gp_core_requests[];
extern const uint16_t gp_core_notifies[];

#endif
"""


def source(spec: Spec) -> str:
    lines = [NOTE, '#include "gp_ids.h"\n\n#include "gp_ops.h"\n']
    lines.append("const uint32_t gp_operations[GP_OPERATIONS] = {")
    lines += [f"    (uint32_t)GP_OP_{f.name} << 16 | {short(f):#06x}," for f in spec.wire]
    lines.append("};")
    for name, notify in (("requests", False), ("notifies", True)):
        listed = "".join(f"    GP_OP_{f},\n" for f in _core(spec, notify))
        lines.append(f"\nconst uint16_t gp_core_{name}[] = {{\n{listed}    0,\n}};")
    return "\n".join(lines) + "\n"
