"""The table of operations in gp_ops.[ch]: every fact that C code asks of one."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import request
from .param import Param
from .spec import CAPTURES, WORK, Function, Spec

_GRAPHS = ("graph", "graph_exec")

DECLARATION = """\
/*
 * Facts of an operation. Those whose names end in `_at` say where in its message a field
 * stands; 0: there is none.
 */
struct gp_op_info {
    const char *name; /* NULL: no operation has this number */
    const char *mode;
    unsigned char in_context; /* acts in the calling thread's context */
    unsigned char quiet; /* it puts nothing on the GPU */
    unsigned char stalls; /* what is on the GPU may wait for what the program does next */
    unsigned char tidies; /* the worker may use, or give back, memory that is free */
    unsigned char staged; /* the worker needs staging memory for it */
    unsigned char blocks; /* the driver may wait for the GPU in it */
    unsigned char deferred; /* its answer waits for the GPU */
    unsigned char idles; /* behind its success all work of a context is over */
    unsigned char slow; /* the driver loads or compiles in it */
    unsigned char work; /* enum gp_work: what it puts on the GPU */
    unsigned char capture; /* enum gp_capture: what it does to its stream's capture */
    unsigned char graph_made; /* enum gp_handle_kind of what stands at graph_made_at */
    uint16_t stream_at; /* the stream that names the context of the call */
    uint16_t stream_ended_at;
    uint16_t idle_at; /* which context; none there, or 0: the current one */
    uint16_t work_bytes_at, work_bytes_size; /* how much the work is */
    uint16_t dst_at, src_at; /* the two ends of a copy, which decide its direction */
    uint16_t graph_made_at; /* a graph, or what is instantiated of one */
    uint16_t graph_from_at; /* of which graph that is made */
    uint16_t graph_ended_at;
    uint16_t graph_run_at; /* what is instantiated, and put on the GPU */
    uint16_t graph_exec_at; /* what is instantiated, however it is meant */
    uint16_t graph_grown_at; /* a graph that gets a node, of the one at graph_from_at if any is */
    uint16_t graph_node_at; /* the node that it gets */
};
extern const struct gp_op_info gp_op_table[GP_OP_COUNT];

/* An operation by its number; of an unknown number nothing is true. */
static inline const struct gp_op_info *gp_op_info(uint16_t op)
{
    static const struct gp_op_info none;
    return op < GP_OP_COUNT ? &gp_op_table[op] : &none;
}
"""


@dataclass(frozen=True)
class _Facts:
    """One row, as C initialisers."""

    function: Function

    def at(self, p: Param | None) -> str:
        return f"offsetof(struct gp_req_{self.function.name}, {p.name})" if p else ""

    def rows(self) -> list[str]:
        f = self.function
        facts = {
            "name": f'"{f.name}"',
            "mode": f'"{f.mode}"',
            "in_context": "1" if f.needs == "context" else "",
            "quiet": "1" if f.quiet else "",
            "stalls": "1" if f.stalls else "",
            "tidies": "1" if f.tidies or f.takes else "",
            "staged": "1" if f.staged else "",
            "blocks": "1" if f.may_block else "",
            "deferred": "1" if f.is_deferred else "",
            "idles": "1" if f.waits_for == "context" else "",
            "slow": "1" if f.slow else "",
        }
        if f.has_wire:
            facts |= self.message()
        return [f".{key} = {value}" for key, value in facts.items() if value]

    def message(self) -> dict[str, str]:
        f = self.function
        fields = {field.name for field in request(f)}
        size = next((p for p in f.params if p.name in ("bytes", "ByteCount")), None)
        named = {p.name: p for p in f.params if p.name in fields}
        moves = f.work == "move"
        idle = next((p for p in named.values() if p.handle == "context"), None)
        facts = {
            "work": f"GP_WORK_{f.work.upper()}" if f.work else "",
            "capture": f"GP_CAPTURE_{f.in_capture.upper()}" if f.in_capture else "",
            "stream_at": self.at(f.place if f.place and f.place.handle == "stream" else None),
            "stream_ended_at": self.at(self._ended("stream")),
            "idle_at": self.at(idle if f.waits_for == "context" else None),
            "dst_at": self.at(named["dst"] if moves else None),
            "src_at": self.at(named["src"] if moves else None),
        }
        if f.work and size:
            facts["work_bytes_at"] = self.at(size)
            facts["work_bytes_size"] = f"sizeof(((struct gp_req_{f.name} *)0)->{size.name})"
        return facts | self._graphs()

    def _graphs(self) -> dict[str, str]:
        f = self.function
        made = next((p for p in f.creates if p.handle in _GRAPHS), None)
        node = next((p for p in f.creates if p.handle == "graph_node"), None)
        grown = f.parent(node) if node else None
        child = next((p for p in f.params if p.handle == "graph" and p not in (made, grown)), None)
        parent = f.parent(made) if made else child if grown else None
        held = next((p for p in f.params if p.handle == "graph_exec" and p is not made), None)
        run = held if held and f.place else None
        instance = made if made and made.handle == "graph_exec" else None
        return {
            "graph_made": f"GP_HANDLE_{(made.handle or '').upper()}" if made else "",
            "graph_made_at": self.at(made),
            "graph_from_at": self.at(parent if parent and parent.handle == "graph" else None),
            "graph_ended_at": self.at(self._ended(*_GRAPHS)),
            "graph_run_at": self.at(run),
            "graph_exec_at": self.at(held or instance),
            "graph_grown_at": self.at(grown),
            "graph_node_at": self.at(node if grown else None),
        }

    def _ended(self, *kinds: str) -> Param | None:
        ended = (p for p in self.function.params if p.has("destroy"))
        return next((p for p in ended if p.handle in kinds), None)


def declaration() -> str:
    """The kinds that facts have, and the table."""
    work = "".join(f"    GP_WORK_{kind.upper()},\n" for kind in WORK)
    captures = "".join(f"    GP_CAPTURE_{what.upper()},\n" for what in CAPTURES)
    return (
        f"enum gp_work {{\n    GP_WORK_NONE,\n{work}}};\n\n"
        f"enum gp_capture {{\n    GP_CAPTURE_NONE,\n{captures}}};\n\n{DECLARATION}"
    )


def table(spec: Spec) -> str:
    """One row for each operation."""
    lines = ["const struct gp_op_info gp_op_table[GP_OP_COUNT] = {"]
    for f in spec.functions:
        lines.append(f"    [GP_OP_{f.name}] = {{")
        lines += [f"        {row}," for row in _Facts(f).rows()]
        lines.append("    },")
    lines.append("};\n")
    return "\n".join(lines)
