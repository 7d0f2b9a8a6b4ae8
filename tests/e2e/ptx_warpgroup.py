"""Cases of products that four warps make together: wgmma.

Each thread puts its 64 bytes into shared memory, and descriptors find A and B in there, one over
the other. Where a descriptor's elements are is taken from PTX's table of canonical layouts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ptx_cases import Case, Row
from ptx_matrix import ELEMENTS, WARP, Grid, collect, encoded
from ptx_sparse import chosen, metadata, packed, spread

BLOCK = 128
BYTES = 64 * BLOCK
#: Of 64 bytes: kinds of inputs, by the type of A and B.
KINDS = {
    "f16": ("small_f16x4",) * 8,
    "bf16": ("small_bf16x4",) * 8,
    "tf32": ("small_f32x2",) * 8,
    "e4m3": ("small_e4m3x4",) * 16,
    "e5m2": ("small_e5m2x4",) * 16,
    "s8": ("x64",) * 8,
    "u8": ("x64",) * 8,
    "b1": ("x64",) * 8,
}
SWIZZLES = {"none": (0, 1), "128": (1, 8), "64": (2, 4), "32": (3, 2)}


def walk(n: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """CuTe's way from a number to an offset; the last mode takes what is left."""
    at = 0
    for size, stride in zip(shape, strides[:-1], strict=True):
        at += n % size * stride
        n //= size
    return at + n * strides[-1]


@dataclass(frozen=True)
class Tile:
    """A matrix in shared memory; leading and stride in bytes."""

    swizzle: str = "none"
    leading: int = 16
    stride: int = 128
    turned: bool = False
    start: int = 0

    @property
    def constant(self) -> int:
        code = SWIZZLES[self.swizzle][0]
        at = self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return at | code << 62

    def address(self, row: int, k: int, bits: int) -> int:
        """Byte of an element in the 16 bytes that it is in, times eight, and its bit."""
        t, width = 128 // bits, SWIZZLES[self.swizzle][1]
        lbo, sbo = self.leading * 8 // bits, self.stride * 8 // bits
        if self.turned and width == 1:
            at = walk(row, (t, 1), (1, t, sbo)) + walk(k, (8,), (t, lbo))
        elif self.turned:
            at = walk(row, (t, width), (1, t, lbo)) + walk(k, (8,), (width * t, sbo))
        elif width == 1:
            at = walk(row, (8,), (t, sbo)) + walk(k, (t,), (1, lbo))
        else:
            at = walk(row, (8,), (width * t, sbo)) + walk(k, (t,), (1, t))
        at = at * bits + self.start * 8
        return at ^ ((at >> 10) & (width - 1)) << 7

    def read(self, data: bytes, kind: str, rows: range, depth: int) -> Grid:
        element = ELEMENTS[kind]
        grid: Grid = {}
        for row in rows:
            for k in range(depth):
                at = self.address(row, k, element.bits)
                word = int.from_bytes(data[at // 8 : at // 8 + 4], "little") >> (at % 8)
                word &= (1 << element.bits) - 1
                if kind == "tf32":
                    word &= 0xFFFFE000
                grid[row - rows.start, k] = element.value(word)
        return grid


@dataclass(frozen=True)
class Product:
    n: int
    d: str
    a: str
    b: str
    left: Tile | None = field(default_factory=Tile)  # None: in registers
    right: Tile = field(default_factory=Tile)
    keeps: bool = True
    scale_a: int = 1
    scale_b: int = 1
    tail: str = ""
    sparse: bool = False

    @property
    def bits(self) -> int:
        return ELEMENTS[self.a].bits

    @property
    def depth(self) -> int:
        return 256 // self.bits * (2 if self.sparse else 1)

    @property
    def registers(self) -> int:
        return self.n // 4 if self.d == "f16" else self.n // 2

    @property
    def op(self) -> str:
        sp = ".sp" if self.sparse else ""
        types = f"{self.d}.{self.a}.{self.b}{self.tail}"
        return f"wgmma.mma_async{sp}.sync.aligned.m64n{self.n}k{self.depth}.{types}"

    @property
    def flags(self) -> str:
        if self.d == "s32":
            return ""
        flags = [self.scale_a, self.scale_b]
        if self.a in ("f16", "bf16"):
            flags += [int(self.left.turned)] if self.left else []
            flags += [int(self.right.turned)]
        return "".join(f", {flag}" for flag in flags)

    # --- what must come out -------------------------------------------------------------------

    def formula(self, values: Sequence[Row]) -> list[Row]:
        given = []
        for i in range(0, len(values), BLOCK):
            given += self.group(values[i : i + BLOCK])
        return given

    def group(self, rows: Sequence[Row]) -> list[Row]:
        form = "<16I" if len(rows[0]) >= 16 else "<8Q"
        count = 16 if len(rows[0]) >= 16 else 8
        data = b"".join(struct.pack(form, *row[:count]) for row in rows) + bytes(4)
        b = self.right.read(data, self.b, range(self.n), self.depth)
        given = []
        for warp in range(4):
            lanes = rows[warp * WARP : (warp + 1) * WARP]
            a = self.left_of(data, lanes, warp)
            given += [self.lane(a, b, warp * WARP + lane) for lane in range(WARP)]
        return given

    def left_of(self, data: bytes, lanes: Sequence[Row], warp: int) -> Grid:
        stored = self.depth // (2 if self.sparse else 1)
        if self.left:
            a = self.left.read(data, self.a, range(16 * warp, 16 * warp + 16), stored)
        else:
            count = 4 * max(1, 32 // self.bits)
            registers = [self.words(row) for row in lanes]
            a = collect(registers, 0, self.a, count, packed(self.bits))
        if self.sparse:
            words = [chosen(self.bits, row[0] & 0xFFFFFFFF) for row in lanes]
            a = spread(a, words, self.depth, self.bits, 0)
        return a

    @staticmethod
    def words(row: Row) -> Row:
        """The registers of A: the thread's first 16 bytes."""
        if len(row) >= 16:
            return row[:4]
        return tuple(word >> shift & 0xFFFFFFFF for word in row[:2] for shift in (0, 32))

    def lane(self, a: Grid, b: Grid, thread: int) -> Row:
        group, own = thread % WARP >> 2, thread % 4
        words = []
        for i in range(self.n // 2):
            row, column = group + 8 * (i >> 1 & 1), 8 * (i >> 2) + own * 2 + (i & 1)
            total = sum(a[row, k] * b[column, k] for k in range(self.depth))
            total *= self.scale_a * self.scale_b
            register = i // 2 if self.d == "f16" else i
            total += (thread + register) % 8 if self.keeps else 0
            words.append(encoded(total, self.d, ".satfinite" in self.tail))
        if self.d == "f16":
            words = [words[i] | words[i + 1] << 16 for i in range(0, len(words), 2)]
        return tuple(words)

    # --- the case -----------------------------------------------------------------------------

    def first(self, i: int) -> str:
        """What register i of D has before: a small number."""
        to = f"add.u32 %r2, %me, {i};\nand.b32 %r2, %r2, 7;\n"
        if self.d == "s32":
            return f"{to}mov.b32 %d{i}, %r2;"
        if self.d == "f16":
            return f"{to}cvt.rn.f16.u32 %h0, %r2;\nmov.b32 %d{i}, {{%h0, %h0}};"
        return f"{to}cvt.rn.f32.u32 %d{i}, %r2;"

    def body(self) -> str:
        kinds = KINDS[self.a]
        lines = ["mov.u32 %r1, tile;\nmad.lo.u32 %r0, %me, 64, %r1;"]
        step, form = (2, "v2.b64") if len(kinds) == 8 else (4, "v4.b32")
        for i in range(0, len(kinds), step):
            words = ", ".join(f"%a{i + j}" for j in range(step))
            lines.append(f"st.shared.{form} [%r0+{i // step * 16}], {{{words}}};")
        lines.append("fence.proxy.async.shared::cta;\nbar.sync 0;")
        lines.append("shr.u32 %r1, %r1, 4;\nand.b32 %r1, %r1, 0x3fff;\ncvt.u64.u32 %x0, %r1;")
        a = "{%a0, %a1, %a2, %a3}"
        if self.left:
            lines.append(f"add.u64 %x1, %x0, {self.left.constant};")
            a = "%x1"
        elif len(kinds) == 8:
            # loaded anew: of 64-bit registers that mov takes apart, an H100 multiplied the lower
            # halves twice
            lines.append("ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%in];")
            a = "{%r4, %r5, %r6, %r7}"
        lines.append(f"add.u64 %x2, %x0, {self.right.constant};")
        lines.append(f"setp.ne.u32 %p0, {int(self.keeps)}, 0;")
        lines += [self.first(i) for i in range(self.registers)]
        sparse = ""
        if self.sparse:
            lines.append(f"cvt.u32.u64 %r3, %a0;\n{metadata(self.bits, '%r3', '%r1', '%r2')}")
            sparse = ", %r1, 0"
        d = "{" + ", ".join(f"%d{i}" for i in range(self.registers)) + "}"
        lines.append("wgmma.fence.sync.aligned;")
        lines.append(f"{self.op} {d}, {a}, %x2{sparse}, %p0{self.flags};")
        lines.append("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;")
        return "\n".join(lines)

    def case(self, name: str = "") -> Case:
        return Case(
            f"{self.op}{self.flags}{' ' + name if name else ''}",
            self.body(),
            KINDS[self.a],
            ("b32",) * self.registers,
            target="sm_90a",
            version="8.4",
            threads=BLOCK,
            block=BLOCK,
            declarations=f".shared .align 1024 .b8 tile[{BYTES}];",
            formula=self.formula,
        )


#: Where 64 rows of 32 bytes may lie in the 8 KB, by rows and by columns.
ROWS = {
    "none": Tile("none", 1024, 128),
    "32": Tile("32", 16, 256),
    "64": Tile("64", 16, 512),
    "128": Tile("128", 16, 1024),
}
COLUMNS = {
    "none": Tile("none", 1024, 128, True),
    "32": Tile("32", 512, 256, True),
    "64": Tile("64", 1024, 512, True),
    "128": Tile("128", 2048, 1024, True),
}


def layouts() -> Iterator[Case]:
    for swizzle in SWIZZLES:
        rows, columns = ROWS[swizzle], COLUMNS[swizzle]
        yield Product(8, "f32", "f16", "f16", rows, rows).case(f"by {swizzle}")
        yield Product(16, "f32", "bf16", "bf16", columns, rows).case(f"by {swizzle}")
        yield Product(24, "f32", "f16", "f16", rows, columns).case(f"by {swizzle}")
        yield Product(8, "f32", "tf32", "tf32", rows, rows).case(f"by {swizzle}")
    inside = Tile("128", 16, 1024, False, 32)
    yield Product(8, "f32", "f16", "f16", inside, inside).case("inside a pattern")
    groups = Tile("128", 2048, 1024, True)
    yield Product(72, "f32", "f16", "f16", ROWS["64"], groups).case("over two patterns")
    wide = Tile("none", 4096, 128)
    yield Product(256, "f32", "f16", "f16", ROWS["none"], wide).case()


def types() -> Iterator[Case]:
    rows = ROWS["128"]
    for d, a, b in (
        ("f16", "f16", "f16"),
        ("f32", "e4m3", "e4m3"),
        ("f32", "e4m3", "e5m2"),
        ("f16", "e5m2", "e4m3"),
        ("s32", "s8", "s8"),
        ("s32", "u8", "s8"),
        ("s32", "u8", "u8"),
    ):
        yield Product(16, d, a, b, rows, rows).case()
    yield Product(8, "s32", "s8", "u8", rows, rows, tail=".satfinite").case()
    for d, kind in (("f32", "f16"), ("f32", "bf16"), ("f32", "tf32"), ("f32", "e4m3")):
        yield Product(8, d, kind, kind, None, rows).case("in registers")
    yield Product(32, "s32", "s8", "s8", None, rows).case("in registers")
    yield Product(24, "f32", "f16", "f16", None, COLUMNS["64"]).case("in registers")
    yield Product(8, "f32", "f16", "f16", rows, rows, keeps=False).case("without D")
    yield Product(8, "f32", "f16", "f16", rows, rows, scale_a=-1).case()
    yield Product(8, "f32", "tf32", "tf32", None, rows, scale_b=-1).case()
    yield Product(8, "s32", "b1", "b1", rows, rows, tail=".and.popc").case()


def sparse() -> Iterator[Case]:
    rows = ROWS["128"]
    yield Product(8, "f32", "f16", "f16", rows, rows, sparse=True).case()
    yield Product(8, "f32", "tf32", "tf32", None, rows, sparse=True).case("in registers")
    yield Product(16, "s32", "s8", "u8", rows, rows, sparse=True).case()


def every_case() -> Iterator[Case]:
    yield from layouts()
    yield from types()
    yield from sparse()
