"""Cases of matrices between memory and registers: wmma as a whole, ldmatrix and its kin."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptx_cases import Case, Row
from ptx_matrix import ELEMENTS, WARP, encoded, multiply, registers_of, sizes

# --- wmma: where elements are is left open; loaded, multiplied and stored they say nothing of it --


@dataclass(frozen=True)
class Whole:
    """wmma.load of A and B, of which C is one number everywhere, wmma.mma, wmma.store."""

    shape: str
    a: str
    d: str
    layout_a: str = "row"
    layout_b: str = "col"
    join: str = ""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of A, B and D."""
        m, n, k = sizes(self.shape)
        bits = ELEMENTS[self.a].bits
        return m * k * bits // 8, k * n * bits // 8, m * n * ELEMENTS[self.d].bits // 8

    def registers(self, role: str) -> int:
        m, n, k = sizes(self.shape)
        if role in "ab":
            elements = (m * k if role == "a" else k * n) // WARP
            return 8 if self.a == "f16" else registers_of(self.a, elements)
        return registers_of(self.d, m * n // WARP)

    def number(self, data: bytes, first: int, index: int) -> float:
        bits = ELEMENTS[self.a].bits
        word = int.from_bytes(data[first + index * bits // 8 :][: max(1, bits // 8)], "little")
        if bits < 8:
            word = word >> (index * bits % 8) & ((1 << bits) - 1)
        return ELEMENTS[self.a].value(word)

    def warp(self, rows: Sequence[Row]) -> list[Row]:
        m, n, k = sizes(self.shape)
        data = b"".join(struct.pack(f"<{len(row)}Q", *row) for row in rows)
        size_a = self.sizes[0]
        a, b, c = {}, {}, {}
        for i in range(k):
            for row in range(m):
                a[row, i] = self.number(
                    data, 0, row * k + i if self.layout_a == "row" else i * m + row
                )
            for column in range(n):
                index = i * n + column if self.layout_b == "row" else column * k + i
                b[i, column] = self.number(data, size_a, index)
        for row in range(m):
            for column in range(n):
                c[row, column] = 2.0
        d = multiply(
            a, b, c, k, (lambda x, y: float(x != y)) if "xor" in self.join else (lambda x, y: x * y)
        )
        form = {"f16": "<H", "f32": "<I", "s32": "<I", "f64": "<Q"}[self.d]
        raw = b"".join(
            struct.pack(form, encoded(d[row, column], self.d))
            for row in range(m)
            for column in range(n)
        )
        words = len(raw) // 8 // WARP
        flat = struct.unpack(f"<{len(raw) // 8}Q", raw)
        return [flat[i : i + words] for i in range(0, len(flat), words)]

    def formula(self, values: Sequence[Row]) -> list[Row]:
        return [row for i in range(0, len(values), WARP) for row in self.warp(values[i : i + WARP])]

    @property
    def words(self) -> int:
        """Of input, of each lane: A and B lie one behind the other."""
        return -(-(self.sizes[0] + self.sizes[1]) // 8 // WARP)

    @property
    def given(self) -> int:
        return self.sizes[2] // 8 // WARP

    def names(self, role: str) -> str:
        return "{" + ", ".join(f"%{role}f{i}" for i in range(self.registers(role))) + "}"

    def loads(self) -> list[str]:
        m, n, k = sizes(self.shape)
        stride_a = k if self.layout_a == "row" else m
        stride_b = n if self.layout_b == "row" else k
        factor = {"f64": "f64"}.get(self.a, "b32")
        total = {"f64": "f64", "f32": "f32"}.get(self.d, "b32")
        return [
            f".reg .{factor} %af<{self.registers('a')}>, %bf<{self.registers('b')}>;",
            f".reg .{total} %df<{self.registers('d')}>;",
            "and.b32 %r0, %me, 31;",
            f"mul.wide.u32 %x0, %r0, {8 * self.words};\nsub.u64 %x0, %in, %x0;",
            f"mul.wide.u32 %x1, %r0, {8 * self.given};\nsub.u64 %x1, %out, %x1;",
            f"wmma.load.a.sync.aligned.{self.layout_a}.{self.shape}.global.{self.a} "
            f"{self.names('a')}, [%x0], {stride_a};",
            f"wmma.load.b.sync.aligned.{self.layout_b}.{self.shape}.{self.a} "
            f"{self.names('b')}, [%x0+{self.sizes[0]}], {stride_b};",
            *(f"mov.{total} %df{i}, {TWO[self.d]};" for i in range(self.registers("d"))),
        ]

    @property
    def op(self) -> str:
        types = f"{self.d}.{self.a}.{self.a}.{self.d}"
        if self.a == "f16":
            types = f"{self.d}.{self.d}"
        layouts = f"{self.layout_a}.{self.layout_b}.{self.shape}"
        rounding = ".rn" if self.a == "f64" else ""
        return f"wmma.mma{self.join}.sync.aligned.{layouts}.{types}{rounding}"

    def case(self) -> Case:
        d = self.names("d")
        product = f"{self.op} {d}, {self.names('a')}, {self.names('b')}, {d};"
        store = (
            f"wmma.store.d.sync.aligned.row.{self.shape}.global.{self.d} "
            f"[%x1], {d}, {sizes(self.shape)[1]};"
        )
        value = ELEMENTS[self.a].kind
        return Case(
            self.op,
            "\n".join([*self.loads(), product, store]),
            (WORDS.get(value, value),) * self.words,
            ("memory",) * self.given,
            target="sm_90",
            threads=64,
            version="8.4",
            formula=self.formula,
        )


#: As C's elements are written.
TWO = {"f16": "0x40004000", "f32": "0f40000000", "s32": "2", "f64": "0d4000000000000000"}
#: Words of 8 bytes of what registers have in 4.
WORDS = {"small_f16x2": "small_f16x4", "small_bf16x2": "small_bf16x4", "small_f32": "small_f32x2"}
WORDS["x32"] = "x64"


def whole() -> Iterator[Case]:
    for shape in ("m16n16k16", "m32n8k16", "m8n32k16"):
        for d in ("f32", "f16"):
            yield Whole(shape, "f16", d).case()
        for kind, d in (("bf16", "f32"), ("s8", "s32"), ("u8", "s32")):
            yield Whole(shape, kind, d).case()
    for a, b in (("row", "row"), ("col", "row"), ("col", "col")):
        yield Whole("m16n16k16", "f16", "f32", a, b).case()
    yield Whole("m16n16k8", "tf32", "f32").case()
    yield Whole("m8n8k4", "f64", "f64").case()
    yield Whole("m8n8k32", "s4", "s32").case()
    yield Whole("m8n8k32", "u4", "s32").case()
    for join in (".xor.popc", ".and.popc"):
        yield Whole("m8n8k128", "b1", "s32", join=join).case()
    yield turned()


def turned() -> Case:
    """A matrix of f32, loaded by rows and stored by columns: bits that nothing changes."""

    def formula(values: Sequence[Row]) -> list[Row]:
        given: list[Row] = []
        for i in range(0, len(values), WARP):
            flat = [word for row in values[i : i + WARP] for word in row]
            cells = [half for word in flat for half in (word & 0xFFFFFFFF, word >> 32)]
            moved = [cells[c * 16 + r] for r in range(16) for c in range(16)]
            words = [moved[j] | moved[j + 1] << 32 for j in range(0, 256, 2)]
            given += [tuple(words[j : j + 4]) for j in range(0, 128, 4)]
        return given

    c = ", ".join(f"%c{i}" for i in range(8))
    return Case(
        "wmma.load.c by rows, wmma.store.d by columns",
        ".reg .b32 %c<8>;\nand.b32 %r0, %me, 31;\nmul.wide.u32 %x0, %r0, 32;\n"
        "sub.u64 %x1, %out, %x0;\nsub.u64 %x0, %in, %x0;\nmov.u32 %r1, 16;\n"
        f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{c}}}, [%x0], %r1;\n"
        f"wmma.store.d.sync.aligned.col.m16n16k16.global.f32 [%x1], {{{c}}}, %r1;",
        ("x64",) * 4,
        ("memory",) * 4,
        threads=64,
        formula=formula,
    )


# --- rows of 8 x 16 bits ------------------------------------------------------------------------


def halves(row: Row) -> list[int]:
    return [word >> (16 * i) & 0xFFFF for word in row for i in range(4)]


def pairs_of(matrix: Sequence[Sequence[int]], lane: int, trans: bool) -> int:
    i, j = lane // 4, 2 * (lane % 4)
    if trans:
        return matrix[j][i] | matrix[j + 1][i] << 16
    return matrix[i][j] | matrix[i][j + 1] << 16


def loads() -> Iterator[Case]:
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            yield rows_case(count, trans, load=True)
            yield rows_case(count, trans, load=False)

    def transposed(values: Sequence[Row]) -> list[Row]:
        given: list[Row] = []
        for first in range(0, len(values), WARP):
            matrix = [[0] * 8 for _ in range(8)]
            for lane in range(WARP):
                word = values[first + lane][0]
                matrix[lane // 4][2 * (lane % 4)] = word & 0xFFFF
                matrix[lane // 4][2 * (lane % 4) + 1] = word >> 16
            given += [(pairs_of(matrix, lane, True),) for lane in range(WARP)]
        return given

    yield Case(
        "movmatrix.sync.aligned.m8n8.trans.b16",
        "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;",
        ("x32",),
        threads=64,
        formula=transposed,
    )


def rows_case(count: int, trans: str, load: bool) -> Case:
    def loaded(values: Sequence[Row]) -> list[Row]:
        given: list[Row] = []
        for first in range(0, len(values), WARP):
            rows = [halves(row) for row in values[first : first + WARP]]
            squares = [rows[8 * n : 8 * n + 8] for n in range(count)]
            given += [
                tuple(pairs_of(square, lane, bool(trans)) for square in squares)
                for lane in range(WARP)
            ]
        return given

    def stored(values: Sequence[Row]) -> list[Row]:
        given: list[Row] = []
        for first in range(0, len(values), WARP):
            rows = [[0] * 8 for _ in range(WARP)]
            for lane in range(WARP):
                for n in range(count):
                    word = values[first + lane][n]
                    i, j = lane // 4, 2 * (lane % 4)
                    for k, half in enumerate((word & 0xFFFF, word >> 16)):
                        row, column = (j + k, i) if trans else (i, j + k)
                        rows[8 * n + row][column] = half
            for row_of in rows:
                low, high = (
                    sum(half << (16 * i) for i, half in enumerate(part))
                    for part in (row_of[:4], row_of[4:])
                )
                given.append((low, high))
        return given

    op = f"{'ld' if load else 'st'}matrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
    if load:
        names = ", ".join(f"%d{i}" for i in range(count))
        body = "st.shared.v2.b64 [%sh], {%a0, %a1};\nbar.warp.sync 0xffffffff;\n"
        body += f"add.u32 %sh, %sh, -16;\n{op} {{{names}}}, [%sh+16];"
        return Case(
            op, body, ("x64", "x64"), ("b32",) * count, target="sm_75", threads=64, formula=loaded
        )
    names = ", ".join(f"%a{i}" for i in range(count))
    body = "st.shared.v2.b64 [%sh], {0, 0};\nbar.warp.sync 0xffffffff;\n"
    body += f"{op} [%sh], {{{names}}};\nbar.warp.sync 0xffffffff;\n"
    body += "ld.shared.v2.b64 {%d0, %d1}, [%sh];"
    return Case(
        op, body, ("x32",) * count, ("b64", "b64"), target="sm_90", threads=64, formula=stored
    )


def every_case() -> Iterator[Case]:
    yield from whole()
    yield from loads()
