"""The table of PTX cases: each is one variant of one instruction, run by many threads.

A body reads %a0, %a1 … (one value of each input kind, see ptx_values) and leaves its results in
%d0, %d1 …, or itself writes words of 8 bytes at [%out]. It may use %r0-%r7 (.b32), %x0-%x7
(.b64), %h0-%h3 (.b16), %p0-%p3, %me, and 16 bytes of shared memory per thread at %sh.
`ptx_table` fills the table; here is what a case is and how it becomes a module.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ptx_values import KINDS, tuples

BLOCK = 64
STORED = {"pred": "b32", "b16": "b16", "b32": "b32", "b64": "b64", "f16": "b16", "bf16": "b16"}
STORED |= {"f32": "b32", "f64": "b64", "f16x2": "b32", "bf16x2": "b32"}


Row = tuple[int, ...]
#: From the inputs of all threads to their outputs.
Formula = Callable[[Sequence[Row]], list[Row]]


@dataclass(frozen=True)
class Case:
    """`outputs` are registers (pred, b16 …), number formats where `ulp` or `absolute` allow
    a distance (f16, f32 …), or `memory` for a word that the body stores by itself. With a
    `formula` a case says itself what must come out, whether or not a real GPU was asked; or an
    `error` (a CUresult) in which it must end."""

    name: str
    body: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("b32",)
    ulp: int = 0
    absolute: float = 0.0
    target: str = "sm_75"
    version: str = "8.0"
    threads: int = 256
    block: int = BLOCK
    declarations: str = ""
    directives: str = ""
    formula: Formula | None = field(default=None, compare=False)
    error: int = 0

    @property
    def exact(self) -> bool:
        return not self.ulp and not self.absolute

    @cached_property
    def ptx(self) -> str:
        return "\n".join([*self._head(), *self._loads(), self.body, *self._stores(), "ret;\n}\n"])

    @cached_property
    def values(self) -> list[tuple[int, ...]]:
        """The inputs of each thread."""
        return list(tuples(self.inputs, self.name, self.threads))

    @cached_property
    def data(self) -> bytes:
        flat = [value for row in self.values for value in row]
        return struct.pack(f"<{len(flat)}Q", *flat)

    @cached_property
    def digest(self) -> str:
        """Changes whenever a recording of this case no longer holds."""
        shape = f"{self.threads} {len(self.outputs)} {self.block}"
        return f"{zlib.crc32(shape.encode() + self.ptx.encode() + self.data):08x}"

    def _head(self) -> list[str]:
        lines = [f".version {self.version}\n.target {self.target}\n.address_size 64"]
        if "%sh" in self.body:
            lines.append(f".shared .align 16 .b8 room[{16 * self.block}];")
        lines += [self.declarations] if self.declarations else []
        lines.append(f".visible .entry k(.param .u64 from, .param .u64 to){self.directives}\n{{")
        lines.append(".reg .b32 %r<8>, %me, %sh, %id;\n.reg .b64 %x<8>, %in, %out;")
        lines.append(".reg .b16 %h<4>;\n.reg .pred %p<4>;")
        for i, kind in enumerate(self.inputs):
            register = KINDS[kind].register
            lines.append(f".reg .{'b16' if register == 'b8' else register} %a{i};")
        for i, output in enumerate(self.outputs):
            if output != "memory":
                register = "pred" if output == "pred" else STORED[output]
                lines.append(f".reg .{register} %d{i};")
        return lines

    def _loads(self) -> list[str]:
        lines = ["mov.u32 %me, %tid.x;\nmov.u32 %id, %ctaid.x;"]
        lines.append(f"mad.lo.u32 %id, %id, {self.block}, %me;")
        lines.append("ld.param.u64 %in, [from];\nld.param.u64 %out, [to];")
        lines.append(f"mad.wide.u32 %in, %id, {8 * len(self.inputs)}, %in;")
        lines.append(f"mad.wide.u32 %out, %id, {8 * len(self.outputs)}, %out;")
        if "%sh" in self.body:
            lines.append("mov.u32 %sh, room;\nmad.lo.u32 %sh, %me, 16, %sh;")
        for i, kind in enumerate(self.inputs):
            register = KINDS[kind].register
            if register == "pred":
                lines.append(f"ld.global.b32 %r0, [%in+{8 * i}];\nsetp.ne.u32 %a{i}, %r0, 0;")
            else:
                lines.append(f"ld.global.{register} %a{i}, [%in+{8 * i}];")
        return lines

    def _stores(self) -> list[str]:
        lines = []
        for i, output in enumerate(self.outputs):
            if output == "pred":
                lines.append(f"selp.b32 %r0, 1, 0, %d{i};\nst.global.b32 [%out+{8 * i}], %r0;")
            elif output != "memory":
                lines.append(f"st.global.{STORED[output]} [%out+{8 * i}], %d{i};")
        return lines


def one(
    op: str,
    inputs: str,
    output: str = "b32",
    *,
    tail: str = "",
    name: str = "",
    ulp: int = 0,
    absolute: float = 0.0,
    target: str = "sm_75",
    version: str = "8.0",
    threads: int = 256,
) -> Case:
    """The case of `op %d0, %a0, %a1 …, tail`; `output` may name two, for `op %d0|%d1, …`."""
    kinds, outputs = tuple(inputs.split()), tuple(output.split())
    result = "|".join(f"%d{i}" for i in range(len(outputs)))
    operands = [result, *(f"%a{i}" for i in range(len(kinds))), *([tail] if tail else [])]
    return Case(
        name or f"{op} {tail}".strip(),
        f"{op} {', '.join(operands)};",
        kinds,
        outputs,
        ulp,
        absolute,
        target,
        version,
        threads,
    )
